"""Rows on their way into a table: split by partition, and written into files of their leaves."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import lance
import pyarrow as pa
from lance.fragment import FragmentMetadata

from phalanx.errors import InvalidPredicate
from phalanx.model.predicates.evaluation import matches
from phalanx.model.predicates.predicate import TRUE, Predicate
from phalanx.model.schema.rows import conformed, plain_schema
from phalanx.model.specs.partition_key import keyed
from phalanx.storage.commit.writing import Footprint, LeafWrite, Reading, write_rows
from phalanx.storage.lance.location import Location
from phalanx.storage.new_leaves import NewLeaves
from phalanx.storage.state.table_state import LeafListing, Leaves
from phalanx.storage.streams.shuffle import Shuffled, shuffle


class Target(Protocol):
    """Where leaves are changed: on their main branches, or within a transaction."""

    @property
    def manifest(self) -> LeafListing:
        """The table as the next statement sees it."""

    @property
    def horizon(self) -> str:
        """What a vacuum changes: files written under another one may be gone."""

    def ensure_partitions(self, keys: pa.Table, new: NewLeaves) -> None:
        """Create the partitions of the newest spec that are missing."""

    def open_leaf(self, location: Location, version: int | None) -> lance.LanceDataset:
        """A leaf to write files for, in the namespace's schema."""

    def depend_on(self, footprint: Footprint, replaced: bool) -> None:
        """Say which leaves a statement looked at, and whether rows of its own replace theirs."""

    def has_read(self, reading: Reading) -> None:
        """Say what the rows of a statement were computed from.

        A later change there is a conflict, unless it was made without reading any row itself: the
        statement might as well have run before that.
        """

    def drop(self, leaves: Leaves, repair: str) -> int:
        """Take whole leaves out of the table; how many they are."""

    def commit(self, writes: Sequence[LeafWrite], operation: str, repair: str) -> int:
        """Change the leaves; the number of rows removed."""


Statement = Callable[[Target], int]


class Arriving(Protocol):
    """Rows that a statement brings: how many, of which partitions, and their files."""

    @property
    def rows(self) -> int:
        """How many rows there are."""

    @property
    def keys(self) -> pa.Table:
        """The partitions they belong to, under the newest spec."""

    def arrive(self, target: Target) -> list[LeafWrite]:
        """Their files, in leaves that the target has from now on."""


@dataclass(slots=True)
class LocalRows:
    """Rows that this process has split by partition, and writes."""

    shuffled: Shuffled
    # Their files by leaf, for each horizon under which they were tried.
    _written: defaultdict[str, dict[str, tuple[FragmentMetadata, ...]]] = field(
        default_factory=lambda: defaultdict(dict)
    )

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return self.shuffled.rows

    @property
    def keys(self) -> pa.Table:
        """The partitions they belong to."""
        return self.shuffled.keys

    def arrive(self, target: Target) -> list[LeafWrite]:
        """Their files; those that an earlier attempt has written are not written again."""
        target.ensure_partitions(self.keys, NewLeaves())
        known = self._written[target.horizon]
        return write_rows(target.manifest, self.shuffled, target.open_leaf, known)


def shuffled(
    manifest: LeafListing,
    reader: pa.RecordBatchReader,
    predicate: Predicate = TRUE,
    where: str = "true",
    *,
    in_memory: bool = False,
    beside: pa.Schema | None = None,
) -> Shuffled:
    """The rows by partition, every one of them valid; nothing is written yet.

    Columns `beside` those of the table go along, and are none of its own.
    """
    schema, spec = manifest.properties.schema, manifest.properties.spec
    batches: Iterable[pa.RecordBatch] = (
        conformed(reader, schema.arrow)
        if beside is None
        else _conformed_beside(reader, schema.arrow, beside)
    )
    columns = [*plain_schema(schema), *(beside or ())]
    if predicate != TRUE:
        batches = _all_matching(batches, predicate, where)
    return shuffle(
        batches,
        pa.schema(columns),
        lambda rows: keyed(spec, rows, schema),
        in_memory=in_memory,
    )


def _conformed_beside(
    reader: pa.RecordBatchReader, schema: pa.Schema, beside: pa.Schema
) -> Iterator[pa.RecordBatch]:
    waiting: deque[pa.RecordBatch] = deque()
    own = pa.schema([field for field in reader.schema if field.name not in beside.names])

    def rows() -> Iterator[pa.RecordBatch]:
        for batch in reader:
            waiting.append(batch.select(beside.names))
            yield batch.select(own.names)

    for batch in conformed(pa.RecordBatchReader.from_batches(own, rows()), schema):
        arrays = [*batch.columns, *waiting.popleft().columns]
        yield pa.RecordBatch.from_arrays(arrays, schema=pa.schema([*batch.schema, *beside]))


def _all_matching(
    batches: Iterable[pa.RecordBatch], predicate: Predicate, where: str
) -> Iterator[pa.RecordBatch]:
    done = 0
    for batch in batches:
        kept = matches(predicate, batch)
        if kept.true_count < batch.num_rows:
            row = kept.to_pylist().index(False)
            raise InvalidPredicate(
                f"Row {done + row} of the data does not match {where!r}, the rows to be replaced: "
                f"{batch.slice(row, 1).to_pylist()[0]}. Leave it out, or widen the predicate."
            )
        done += batch.num_rows
        yield batch
