"""All rows of a small manifest, kept in memory and brought up to date by what a commit changed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lance import LanceFragment
from lance.fragment import FragmentMetadata

from phalanx.storage.lance.failures import translate_read_errors
from phalanx.storage.lance.scanning import scan_table
from phalanx.storage.leaf.leaf import OFFSET_BITS
from phalanx.storage.manifest.rows import LANCE_ROW_ADDRESS, RowAddresses

# A manifest with at most this many rows is read whole: one scan costs less than several filters.
MAX_CACHED_ROWS = 4096


@dataclass(frozen=True, slots=True)
class CachedRows:
    """All rows of one version of a manifest as they are stored, with their addresses."""

    fragments: Mapping[int, FragmentMetadata]
    rows: pa.Table

    @classmethod
    def read(cls, dataset: lance.LanceDataset, earlier: CachedRows | None) -> CachedRows | None:
        """Read the rows of a version, or what changed since an earlier one; None if too many."""
        fragments = {each.fragment_id: each for each in dataset.get_fragments()}
        metadata = {number: each.metadata for number, each in fragments.items()}
        if sum(each.physical_rows for each in metadata.values()) > MAX_CACHED_ROWS:
            return None
        kept = None if earlier is None else earlier._select_live_rows(dataset, fragments, metadata)
        if earlier is None or kept is None:
            return cls(metadata, _scan(dataset))
        new = [each for number, each in fragments.items() if number not in earlier.fragments]
        return cls(metadata, pa.concat_tables([kept, _scan(dataset, new)]) if new else kept)

    def _select_live_rows(
        self,
        dataset: lance.LanceDataset,
        fragments: Mapping[int, LanceFragment],
        metadata: Mapping[int, FragmentMetadata],
    ) -> pa.Table | None:
        """Return the rows that a later version still has; None if its columns or files differ."""
        stored = pa.schema([*self.rows.schema][:-1])
        if not stored.equals(dataset.schema) or any(
            number in metadata and metadata[number].files != before.files
            for number, before in self.fragments.items()
        ):
            return None
        changed = {
            number for number, each in self.fragments.items() if metadata.get(number) != each
        }
        if not changed:
            return self.rows
        addresses = self.rows.column(LANCE_ROW_ADDRESS).to_numpy()
        is_live = ~np.isin(addresses >> OFFSET_BITS, list(changed))
        for number in changed & metadata.keys():
            is_live |= np.isin(addresses, read_live_addresses(fragments[number]))
        return self.rows.filter(pa.array(is_live))

    def change(
        self, committed: lance.LanceDataset, added: pa.Table, removed: RowAddresses
    ) -> CachedRows | None:
        """Return the rows of the version that a commit made from this one, without reading them.

        The added rows are the newest fragment. None if there are too many rows.
        """
        metadata = {each.fragment_id: each.metadata for each in committed.get_fragments()}
        newest = max(metadata)
        if (
            sum(each.physical_rows for each in metadata.values()) > MAX_CACHED_ROWS
            or newest in self.fragments
            or metadata[newest].physical_rows != added.num_rows
        ):
            return None
        gone = np.isin(self.rows.column(LANCE_ROW_ADDRESS).to_numpy(), removed)
        first = newest << OFFSET_BITS
        addresses = pa.array(np.arange(first, first + added.num_rows, dtype=np.uint64))
        new = added.append_column(self.rows.schema.field(LANCE_ROW_ADDRESS), addresses)
        return CachedRows(
            metadata,
            pa.concat_tables([self.rows.filter(pa.array(~gone)), new.cast(self.rows.schema)]),
        )

    def select(self, kind: str | None, ids: Collection[str] | None, prefix: str | None) -> pa.Table:
        """Return the rows of an object type, with one of some ids, or with a prefix of the id."""
        rows = self.rows
        if kind is not None:
            rows = rows.filter(pc.equal(_as_text(rows.column("object_type")), kind))
        if ids is not None:
            wanted = pa.array(ids, pa.string())
            rows = rows.filter(pc.is_in(_as_text(rows.column("object_id")), wanted))
        if prefix is not None:
            rows = rows.filter(pc.starts_with(_as_text(rows.column("object_id")), prefix))
        return rows


def read_live_addresses(fragment: LanceFragment) -> RowAddresses:
    """Return the addresses of the rows of a fragment that are not deleted."""
    with translate_read_errors("read the rows that the manifest lists"):
        rows = fragment.to_table(columns=[], with_row_address=True)
    found: RowAddresses = rows.column(LANCE_ROW_ADDRESS).to_numpy()
    return found


def _scan(dataset: lance.LanceDataset, fragments: list[LanceFragment] | None = None) -> pa.Table:
    return scan_table(dataset, fragments=fragments, with_row_address=True)


def _as_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column of names as plain text: other writers use other types."""
    return column if column.type == pa.string() else column.cast(pa.string())
