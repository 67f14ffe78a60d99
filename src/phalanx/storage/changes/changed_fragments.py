"""Rows that a snapshot brought to a fragment of a leaf, or took from it, read when asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from phalanx.model.predicates.evaluation import matches
from phalanx.model.predicates.predicate import TRUE
from phalanx.model.predicates.rendering import to_lance
from phalanx.model.schema.rows import chosen_column, chosen_schema, plain_schema, readable
from phalanx.model.schema.schema import Schema
from phalanx.storage.changes.row_positions import Rows, file_of, live_places
from phalanx.storage.changes.updates import links_of
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.scanning import batches_of
from phalanx.storage.lance.schema import is_aligned, schema_of
from phalanx.storage.leaf.leaf import OFFSET_MASK
from phalanx.storage.leaf.path_values import for_leaf
from phalanx.storage.leaf.reading import LeafScan, batch_rows, columns_read
from phalanx.storage.leaf.reconcile import reconciled

CHANGE, SNAPSHOT, UPDATE = "_change", "_snapshot", "_update"
# What is told of a row beside its columns: what happened to it, by which snapshot, and for updates
# a number that the row before has in common with the row after.
TOLD = pa.schema(
    [
        pa.field(CHANGE, pa.string(), nullable=False),
        pa.field(SNAPSHOT, pa.int64(), nullable=False),
        pa.field(UPDATE, pa.int64()),
    ]
)
INSERT, DELETE, BEFORE, AFTER = "insert", "delete", "update_before", "update_after"


@dataclass(frozen=True, slots=True)
class FragmentVersion:
    """A fragment as one version of its leaf has it."""

    version: int
    number: int


@dataclass(frozen=True, slots=True)
class RecordedUpdates:
    """Where it is written which rows of a snapshot became which."""

    root: Location
    name: str


@dataclass(frozen=True, slots=True)
class ChangedRows:
    """Rows of one fragment that came with a snapshot, or went: those that the scan matches.

    They are the rows that are not deleted in the scan's version, and are so in `unchanged`, which
    is the same fragment on the other side of the snapshot; None where that has no such fragment.
    `rows` and `size` are about how many rows and bytes there are, matching or not.
    """

    scan: LeafScan
    fragment: int
    snapshot: int
    came: bool
    unchanged: FragmentVersion | None
    updates: RecordedUpdates | None
    rows: int
    size: int

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows, and what is told of them."""
        return told_schema(self.scan.schema, self.scan.columns)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, in their order."""
        dataset = self.scan.location.open_leaf(self.scan.version)
        fragment = fragment_of(dataset, self.fragment)
        file = file_of(fragment.metadata)
        for batch, places in self._matching(dataset, fragment):
            if len(places):
                columns = [chosen_column(batch, name) for name in self.scan.columns]
                yield pa.RecordBatch.from_arrays(
                    [*columns, *self._told(file, places)], schema=self.schema
                )

    def _told(self, file: str, places: Rows) -> list[pa.Array]:
        alone, updated = (INSERT, AFTER) if self.came else (DELETE, BEFORE)
        count = len(places)
        snapshots = pa.repeat(pa.scalar(self.snapshot, pa.int64()), count)
        if self.updates is None:
            return [pa.repeat(pa.scalar(alone), count), snapshots, pa.nulls(count, pa.int64())]
        old, new = links_of(self.updates.root, self.updates.name)
        numbers = (new if self.came else old).numbers(file, places)
        links = pa.array(numbers, mask=numbers < 0)
        return [pc.if_else(links.is_valid(), updated, alone), snapshots, links]

    def _matching(
        self, dataset: lance.LanceDataset, fragment: lance.LanceFragment
    ) -> Iterator[tuple[pa.RecordBatch, Rows]]:
        """The rows with the columns that are needed, by the table's names, and their places."""
        scan = self.scan
        in_line = is_aligned(dataset, scan.schema)
        inner, rest = for_leaf(scan.predicate, None)
        if not in_line or self.unchanged is not None:
            # Lance filters only what it scans, by the names that the leaf has.
            inner, rest = TRUE, scan.predicate
        tops = (name.partition(".")[0] for name in scan.columns)
        wanted = {*tops, *columns_read(rest, scan.schema)}
        names = tuple(name for name in scan.schema.names if name in wanted)
        stored = list(names) if in_line else _stored(schema_of(dataset), scan.schema, names)
        if self.unchanged is not None:
            found = self._taken(dataset, fragment, self.unchanged, stored)
        else:
            condition = None if inner == TRUE else to_lance(inner)
            found = _scanned(dataset, fragment, stored, condition, scan.schema)
        for rows, places in found:
            batch = rows
            if not in_line:
                batch = _in_line(rows, schema_of(dataset), scan.schema, names, stored)
            if rest == TRUE:
                yield batch, places
                continue
            kept = matches(rest, batch)
            yield readable(batch).filter(kept), places[kept.to_numpy(zero_copy_only=False)]

    def _taken(
        self,
        dataset: lance.LanceDataset,
        fragment: lance.LanceFragment,
        unchanged: FragmentVersion,
        stored: list[str],
    ) -> Iterator[tuple[pa.RecordBatch, Rows]]:
        """The rows that are on this side of the snapshot alone."""
        other = self.scan.location.open_leaf(unchanged.version)
        here = live_places(dataset, fragment.metadata)
        there = live_places(other, fragment_of(other, unchanged.number).metadata)
        # Lance takes rows by their places among those that are not deleted.
        chosen = np.flatnonzero(~np.isin(here, there, assume_unique=True))
        most = batch_rows(dataset, self.scan.schema)
        for start in range(0, len(chosen), most):
            part = chosen[start : start + most]
            if stored:
                rows = fragment.take(part.tolist(), columns=stored).combine_chunks()
                yield rows.to_batches()[0], here[part]
            else:
                yield _without_columns(len(part)), here[part]


def told_schema(schema: Schema, columns: Sequence[str]) -> pa.Schema:
    """These columns of a table, and what is told of every row."""
    return pa.schema([*chosen_schema(schema, tuple(columns)), *TOLD])


def fragment_of(dataset: lance.LanceDataset, number: int) -> lance.LanceFragment:
    """A fragment by its number, which the version has."""
    found = dataset.get_fragment(number)
    assert found is not None
    return found


def _scanned(
    dataset: lance.LanceDataset,
    fragment: lance.LanceFragment,
    stored: list[str],
    condition: str | None,
    schema: Schema,
) -> Iterator[tuple[pa.RecordBatch, Rows]]:
    """The rows of a fragment that Lance finds to match, and their places."""
    batches = batches_of(
        dataset,
        columns=stored,
        filter=condition,
        fragments=[fragment],
        with_row_address=True,
        scan_in_order=True,
        batch_size=batch_rows(dataset, schema),
    )
    for batch in batches:
        addresses = batch.column("_rowaddr").to_numpy()
        yield batch, (addresses & OFFSET_MASK).astype(np.uint32)


def _stored(leaf: Schema, schema: Schema, names: Sequence[str]) -> list[str]:
    """What a leaf calls these columns of the table, as far as it has them."""
    paths = [leaf.path_of(schema.id_of((name,))) for name in names]
    return [path[0] for path in paths if path is not None]


def _in_line(
    rows: pa.RecordBatch, leaf: Schema, schema: Schema, names: Sequence[str], stored: list[str]
) -> pa.RecordBatch:
    """Rows of a leaf with another schema as the table has them."""
    if not stored:
        plain = plain_schema(schema)
        fields = [plain.field(name) for name in names]
        nothing = [pa.nulls(rows.num_rows, field.type) for field in fields]
        return pa.RecordBatch.from_arrays(nothing, schema=pa.schema(fields))
    return reconciled(rows, _part(leaf, tuple(stored)), _part(schema, tuple(names)))


@lru_cache(maxsize=64)
def _part(schema: Schema, names: tuple[str, ...]) -> Schema:
    return Schema.of(pa.schema([schema.arrow.field(name) for name in names]))


def _without_columns(rows: int) -> pa.RecordBatch:
    """So many rows of no columns, which are counted by something."""
    return pa.RecordBatch.from_arrays([pa.nulls(rows)], names=["_rowaddr"])
