"""The leaves of a manifest version, computed from those of an earlier one and what changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from lance import LanceFragment
from lance.fragment import FragmentMetadata

from phalanx.planning.pruning.leaf_columns import (
    LEAF_LOCATION,
    LEAF_OBJECT_ID,
    LEAF_VERSION,
    MANIFEST_ROW,
)
from phalanx.storage.leaf.leaf import OFFSET_BITS, OFFSET_MASK
from phalanx.storage.manifest.cached_rows import read_live_addresses
from phalanx.storage.manifest.leaf_tables import sort_leaves
from phalanx.storage.manifest.rows import RowAddresses

# Reads the leaves, by spec, that some fragments of the manifest list.
ReadLeaves = Callable[[list[LanceFragment]], dict[int, pa.Table]]


@dataclass(frozen=True, slots=True)
class CachedLeaves:
    """All leaves of one version of the manifest, by spec, and the fragments that list them."""

    fragments: Mapping[int, FragmentMetadata]
    leaves: Mapping[int, pa.Table]

    @classmethod
    def of(cls, dataset: lance.LanceDataset, leaves: Mapping[int, pa.Table]) -> CachedLeaves:
        """Return the leaves that were read from a version."""
        fragments = {each.fragment_id: each.metadata for each in dataset.get_fragments()}
        return cls(fragments, leaves)

    def update_to(
        self, dataset: lance.LanceDataset, read_leaves: ReadLeaves
    ) -> dict[int, pa.Table] | None:
        """Return the leaves of a later version, reading only its new fragments.

        None if that is not possible because the columns of the manifest changed.
        """
        now = {each.fragment_id: each for each in dataset.get_fragments()}
        changed = [
            number
            for number, metadata in self.fragments.items()
            if number not in now or now[number].metadata != metadata
        ]
        if any(
            number in now and now[number].metadata.files != self.fragments[number].files
            for number in changed
        ):
            return None
        new = [each for number, each in now.items() if number not in self.fragments]
        if not new and not changed:
            return dict(self.leaves)
        listed = read_leaves(new)
        alive = {
            number: read_live_addresses(now[number]) & OFFSET_MASK
            for number in changed
            if number in now
        }
        return {
            spec_id: _combine(leaves, _find_live_leaves(leaves, changed, alive), listed[spec_id])
            for spec_id, leaves in self.leaves.items()
        }


def _find_live_leaves(
    leaves: pa.Table, changed: list[int], alive: Mapping[int, RowAddresses]
) -> npt.NDArray[np.bool_]:
    """Return for each leaf whether its manifest row still exists at the same address."""
    addresses = leaves.column(MANIFEST_ROW).to_numpy()
    numbers = addresses >> OFFSET_BITS
    found = np.ones(len(addresses), dtype=bool)
    for number in changed:
        inside = np.flatnonzero(numbers == number)
        if not len(inside):
            continue
        offsets = addresses[inside] & OFFSET_MASK
        present = np.zeros(int(offsets.max()) + 1, dtype=bool)
        if number in alive:
            kept = alive[number]
            present[kept[kept < len(present)]] = True
        found[inside] = present[offsets]
    return found


def _combine(leaves: pa.Table, alive: npt.NDArray[np.bool_], new: pa.Table) -> pa.Table:
    """Return the leaves with new rows added, or in place of the rows they replace."""
    indices = pc.index_in(leaves.column(LEAF_OBJECT_ID), new.column(LEAF_OBJECT_ID))
    is_replaced = indices.is_valid()
    if new.num_rows:
        # The partition values of a leaf never change.
        for name in (LEAF_LOCATION, LEAF_VERSION, MANIFEST_ROW):
            column = pc.if_else(is_replaced, new.column(name).take(indices), leaves.column(name))
            leaves = leaves.set_column(leaves.column_names.index(name), name, column)
    stays = pc.or_(is_replaced, pa.array(alive))
    if not pc.all(stays).as_py():
        leaves = leaves.filter(stays)
    replacing = pc.unique(indices.drop_null()).to_numpy()
    fresh = new.take(pa.array(np.setdiff1d(np.arange(new.num_rows), replacing), pa.int64()))
    return sort_leaves(pa.concat_tables([leaves, fresh])) if fresh.num_rows else leaves
