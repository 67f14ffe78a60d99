"""The rows that a snapshot added to a fragment of a leaf or removed from it, read lazily."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from phalanx.model.predicates.evaluation import match_rows
from phalanx.model.predicates.predicate import TRUE
from phalanx.model.predicates.rendering import to_lance
from phalanx.model.schema.rows import make_readable, select_column, select_schema, to_row_schema
from phalanx.model.schema.schema import Schema
from phalanx.storage.changes.row_positions import RowOffsets, data_file_of, read_live_offsets
from phalanx.storage.changes.updates import read_update_indexes
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.scanning import scan_batches
from phalanx.storage.lance.schema import is_aligned, read_lance_schema
from phalanx.storage.leaf.leaf import OFFSET_MASK
from phalanx.storage.leaf.path_values import split_for_leaf
from phalanx.storage.leaf.reading import LeafScan, choose_batch_rows, list_read_columns
from phalanx.storage.leaf.reconcile import reconcile_batch

CHANGE_COLUMN, SNAPSHOT_COLUMN, UPDATE_COLUMN = "_change", "_snapshot", "_update"
# The columns of the change feed: what happened to a row, in which snapshot, and for updates a
# number that the old and the new row share.
CHANGE_FIELDS = pa.schema(
    [
        pa.field(CHANGE_COLUMN, pa.string(), nullable=False),
        pa.field(SNAPSHOT_COLUMN, pa.int64(), nullable=False),
        pa.field(UPDATE_COLUMN, pa.int64()),
    ]
)
INSERT, DELETE, UPDATE_BEFORE, UPDATE_AFTER = "insert", "delete", "update_before", "update_after"


@dataclass(frozen=True, slots=True)
class FragmentVersion:
    """A fragment in one version of its leaf."""

    version: int
    number: int


@dataclass(frozen=True, slots=True)
class UpdatesFile:
    """The file with the pairs of old and new rows of a snapshot's updates."""

    root: Location
    name: str


@dataclass(frozen=True, slots=True)
class ChangedFragment:
    """The rows of one fragment that a snapshot added or removed, and that match the scan.

    They are the rows that exist in the scan's version, and not in `other_side`: the same fragment
    on the other side of the snapshot, or None if it does not exist there. `rows` and `size` are
    estimates of the rows and bytes, matching or not.
    """

    scan: LeafScan
    fragment: int
    snapshot: int
    is_added: bool
    other_side: FragmentVersion | None
    updates: UpdatesFile | None
    rows: int
    size: int

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows, and those of the change feed."""
        return with_change_fields(self.scan.schema, self.scan.columns)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Return the rows, in their order in the fragment."""
        dataset = self.scan.location.open_leaf(self.scan.version)
        fragment = get_fragment(dataset, self.fragment)
        file = data_file_of(fragment.metadata)
        for batch, offsets in self._read_matching(dataset, fragment):
            if len(offsets):
                columns = [select_column(batch, name) for name in self.scan.columns]
                yield pa.RecordBatch.from_arrays(
                    [*columns, *self._build_change_columns(file, offsets)], schema=self.schema
                )

    def _build_change_columns(self, file: str, offsets: RowOffsets) -> list[pa.Array]:
        alone, updated = (INSERT, UPDATE_AFTER) if self.is_added else (DELETE, UPDATE_BEFORE)
        count = len(offsets)
        snapshots = pa.repeat(pa.scalar(self.snapshot, pa.int64()), count)
        if self.updates is None:
            return [pa.repeat(pa.scalar(alone), count), snapshots, pa.nulls(count, pa.int64())]
        old, new = read_update_indexes(self.updates.root, self.updates.name)
        numbers = (new if self.is_added else old).find_pairs(file, offsets)
        links = pa.array(numbers, mask=numbers < 0)
        return [pc.if_else(links.is_valid(), updated, alone), snapshots, links]

    def _read_matching(
        self, dataset: lance.LanceDataset, fragment: lance.LanceFragment
    ) -> Iterator[tuple[pa.RecordBatch, RowOffsets]]:
        """Return matching rows with the needed columns, by the table's names, and their offsets."""
        scan = self.scan
        in_line = is_aligned(dataset, scan.schema)
        inner, rest = split_for_leaf(scan.predicate, None)
        if not in_line or self.other_side is not None:
            # Lance filters only scans, and only by the column names of the leaf.
            inner, rest = TRUE, scan.predicate
        tops = (name.partition(".")[0] for name in scan.columns)
        wanted = {*tops, *list_read_columns(rest, scan.schema)}
        names = tuple(name for name in scan.schema.names if name in wanted)
        stored = (
            list(names)
            if in_line
            else _list_stored_names(read_lance_schema(dataset), scan.schema, names)
        )
        if self.other_side is not None:
            found = self._take_changed(dataset, fragment, self.other_side, stored)
        else:
            condition = None if inner == TRUE else to_lance(inner)
            found = _scan_fragment(dataset, fragment, stored, condition, scan.schema)
        for rows, offsets in found:
            batch = rows
            if not in_line:
                batch = _align(rows, read_lance_schema(dataset), scan.schema, names, stored)
            if rest == TRUE:
                yield batch, offsets
                continue
            kept = match_rows(rest, batch)
            yield make_readable(batch).filter(kept), offsets[kept.to_numpy(zero_copy_only=False)]

    def _take_changed(
        self,
        dataset: lance.LanceDataset,
        fragment: lance.LanceFragment,
        unchanged: FragmentVersion,
        stored: list[str],
    ) -> Iterator[tuple[pa.RecordBatch, RowOffsets]]:
        """Return the rows that exist only on this side of the snapshot, and their offsets."""
        other = self.scan.location.open_leaf(unchanged.version)
        here = read_live_offsets(dataset, fragment.metadata)
        there = read_live_offsets(other, get_fragment(other, unchanged.number).metadata)
        # Lance takes rows by their positions among those that are not deleted.
        chosen = np.flatnonzero(~np.isin(here, there, assume_unique=True))
        most = choose_batch_rows(dataset, self.scan.schema)
        for start in range(0, len(chosen), most):
            part = chosen[start : start + most]
            if stored:
                rows = fragment.take(part.tolist(), columns=stored).combine_chunks()
                yield rows.to_batches()[0], here[part]
            else:
                yield _make_empty_rows(len(part)), here[part]


def with_change_fields(schema: Schema, columns: Sequence[str]) -> pa.Schema:
    """Return the schema of these columns of a table, and those of the change feed."""
    return pa.schema([*select_schema(schema, tuple(columns)), *CHANGE_FIELDS])


def get_fragment(dataset: lance.LanceDataset, number: int) -> lance.LanceFragment:
    """Return a fragment that the version must have."""
    found = dataset.get_fragment(number)
    assert found is not None
    return found


def _scan_fragment(
    dataset: lance.LanceDataset,
    fragment: lance.LanceFragment,
    stored: list[str],
    condition: str | None,
    schema: Schema,
) -> Iterator[tuple[pa.RecordBatch, RowOffsets]]:
    """Scan the rows of a fragment that match in Lance, with their offsets."""
    batches = scan_batches(
        dataset,
        columns=stored,
        filter=condition,
        fragments=[fragment],
        with_row_address=True,
        scan_in_order=True,
        batch_size=choose_batch_rows(dataset, schema),
    )
    for batch in batches:
        addresses = batch.column("_rowaddr").to_numpy()
        yield batch, (addresses & OFFSET_MASK).astype(np.uint32)


def _list_stored_names(leaf: Schema, schema: Schema, names: Sequence[str]) -> list[str]:
    """Return the leaf's names of these columns of the table, if it has them."""
    paths = [leaf.path_of(schema.id_of((name,))) for name in names]
    return [path[0] for path in paths if path is not None]


def _align(
    rows: pa.RecordBatch, leaf: Schema, schema: Schema, names: Sequence[str], stored: list[str]
) -> pa.RecordBatch:
    """Convert rows of a leaf with another schema to the table's."""
    if not stored:
        plain = to_row_schema(schema)
        fields = [plain.field(name) for name in names]
        nothing = [pa.nulls(rows.num_rows, field.type) for field in fields]
        return pa.RecordBatch.from_arrays(nothing, schema=pa.schema(fields))
    return reconcile_batch(
        rows, _select_fields(leaf, tuple(stored)), _select_fields(schema, tuple(names))
    )


@lru_cache(maxsize=64)
def _select_fields(schema: Schema, names: tuple[str, ...]) -> Schema:
    return Schema.of(pa.schema([schema.arrow.field(name) for name in names]))


def _make_empty_rows(rows: int) -> pa.RecordBatch:
    """Make rows without values; one column is needed to count them."""
    return pa.RecordBatch.from_arrays([pa.nulls(rows)], names=["_rowaddr"])
