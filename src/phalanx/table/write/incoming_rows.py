"""Rows that a statement adds: split by partition, and staged as files of their leaves."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import lance
import pyarrow as pa
from lance.fragment import FragmentMetadata

from phalanx.errors import InvalidPredicate
from phalanx.model.predicates.evaluation import match_rows
from phalanx.model.predicates.predicate import TRUE, Predicate
from phalanx.model.schema.rows import conform_rows, to_row_schema
from phalanx.model.specs.partition_key import group_by_partition
from phalanx.storage.commit.writing import Footprint, LeafWrite, ReadFootprint, write_rows
from phalanx.storage.lance.location import Location
from phalanx.storage.leaf.leaf import LeafCreator
from phalanx.storage.state.table_state import Leaves, TableState
from phalanx.storage.streams.shuffle import ShuffledRows, shuffle


class Target(Protocol):
    """Where a statement applies its changes: to main branches, or to a transaction."""

    @property
    def state(self) -> TableState:
        """The table as the next statement sees it."""

    @property
    def horizon(self) -> str:
        """The vacuum horizon; files written under an earlier one may be gone."""

    def ensure_partitions(self, keys: pa.Table, new: LeafCreator) -> None:
        """Create the missing partitions of the newest spec."""

    def open_leaf(self, location: Location, version: int | None) -> lance.LanceDataset:
        """Open a leaf to write files for, in the namespace's schema."""

    def depend_on(self, footprint: Footprint, replaced: bool) -> None:
        """Record which leaves a statement depends on, and whether its rows replace theirs."""

    def record_read(self, read: ReadFootprint) -> None:
        """Record what the rows of a statement were computed from.

        A later change of it is a conflict, unless that change read no rows: then the statement
        could have run before it.
        """

    def drop(self, leaves: Leaves, advice: str) -> int:
        """Drop whole leaves, and return their number."""

    def apply(self, writes: Sequence[LeafWrite], operation: str, advice: str) -> int:
        """Change the leaves, and return the number of rows removed."""


Statement = Callable[[Target], int]


class IncomingRows(Protocol):
    """Rows that a statement adds: their number, their partitions and their files."""

    @property
    def rows(self) -> int:
        """How many rows there are."""

    @property
    def keys(self) -> pa.Table:
        """Their partition keys under the newest spec."""

    def stage(self, target: Target) -> list[LeafWrite]:
        """Create missing partitions, and return the files of each leaf."""


@dataclass(slots=True)
class LocalRows:
    """Rows that this process has split by partition and writes itself."""

    shuffled: ShuffledRows
    # The files written so far, by leaf. An attempt under another horizon starts with none.
    _written: defaultdict[str, dict[str, tuple[FragmentMetadata, ...]]] = field(
        default_factory=lambda: defaultdict(dict)
    )

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return self.shuffled.rows

    @property
    def keys(self) -> pa.Table:
        """Their partition keys."""
        return self.shuffled.keys

    def stage(self, target: Target) -> list[LeafWrite]:
        """Write their files, reusing those of earlier attempts."""
        target.ensure_partitions(self.keys, LeafCreator())
        known = self._written[target.horizon]
        return write_rows(target.state, self.shuffled, target.open_leaf, known)


def shuffle_rows(
    state: TableState,
    reader: pa.RecordBatchReader,
    predicate: Predicate = TRUE,
    where: str = "true",
    *,
    in_memory: bool = False,
    extra: pa.Schema | None = None,
) -> ShuffledRows:
    """Validate the rows and split them by partition; no table file is written yet.

    `extra` columns are carried along, and are not part of the table.
    """
    schema, spec = state.properties.schema, state.properties.spec
    batches: Iterable[pa.RecordBatch] = (
        conform_rows(reader, schema.arrow)
        if extra is None
        else _conform_with_extra(reader, schema.arrow, extra)
    )
    columns = [*to_row_schema(schema), *(extra or ())]
    if predicate != TRUE:
        batches = _check_matching(batches, predicate, where)
    return shuffle(
        batches,
        pa.schema(columns),
        lambda rows: group_by_partition(spec, rows, schema),
        in_memory=in_memory,
    )


def _conform_with_extra(
    reader: pa.RecordBatchReader, schema: pa.Schema, extra: pa.Schema
) -> Iterator[pa.RecordBatch]:
    waiting: deque[pa.RecordBatch] = deque()
    own = pa.schema([field for field in reader.schema if field.name not in extra.names])

    def rows() -> Iterator[pa.RecordBatch]:
        for batch in reader:
            waiting.append(batch.select(extra.names))
            yield batch.select(own.names)

    for batch in conform_rows(pa.RecordBatchReader.from_batches(own, rows()), schema):
        arrays = [*batch.columns, *waiting.popleft().columns]
        yield pa.RecordBatch.from_arrays(arrays, schema=pa.schema([*batch.schema, *extra]))


def _check_matching(
    batches: Iterable[pa.RecordBatch], predicate: Predicate, where: str
) -> Iterator[pa.RecordBatch]:
    done = 0
    for batch in batches:
        kept = match_rows(predicate, batch)
        if kept.true_count < batch.num_rows:
            row = kept.to_pylist().index(False)
            raise InvalidPredicate(
                f"Row {done + row} of the data does not match {where!r}, the rows to be replaced: "
                f"{batch.slice(row, 1).to_pylist()[0]}. Leave it out, or widen the predicate."
            )
        done += batch.num_rows
        yield batch
