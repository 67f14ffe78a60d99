"""The leaves of the manifest, brought from one version to a later one by what has changed."""

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

from phalanx.planning.pruning.scan_plan import LOCATION, OBJECT_ID, READ_VERSION, ROW_ADDRESS
from phalanx.storage.lance.failures import reading
from phalanx.storage.leaf.leaf import OFFSET_BITS, OFFSET_MASK
from phalanx.storage.manifest.leaf_tables import in_order
from phalanx.storage.manifest.rows import ADDRESS, Addresses

# The leaves, by spec, that some fragments of the manifest list.
Listing = Callable[[list[LanceFragment]], dict[int, pa.Table]]


@dataclass(frozen=True, slots=True)
class KnownLeaves:
    """All leaves of one version of the manifest, by spec, and the fragments that list them."""

    fragments: Mapping[int, FragmentMetadata]
    leaves: Mapping[int, pa.Table]

    @classmethod
    def of(cls, dataset: lance.LanceDataset, leaves: Mapping[int, pa.Table]) -> KnownLeaves:
        """What is known of a version whose leaves have been read."""
        fragments = {each.fragment_id: each.metadata for each in dataset.get_fragments()}
        return cls(fragments, leaves)

    def brought_to(
        self, dataset: lance.LanceDataset, listing: Listing
    ) -> dict[int, pa.Table] | None:
        """The leaves of a later version, of which only new fragments are read.

        None where that would not do: the manifest has other columns by now.
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
        listed = listing(new)
        alive = {number: _offsets(now[number]) for number in changed if number in now}
        return {
            spec_id: _combined(leaves, _is_alive(leaves, changed, alive), listed[spec_id])
            for spec_id, leaves in self.leaves.items()
        }


def _offsets(fragment: LanceFragment) -> Addresses:
    """Where the rows of a fragment are that nobody has deleted."""
    with reading("read the rows that the manifest lists"):
        rows = fragment.to_table(columns=[], with_row_address=True)
    found: Addresses = rows.column(ADDRESS).to_numpy() & OFFSET_MASK
    return found


def _is_alive(
    leaves: pa.Table, changed: list[int], alive: Mapping[int, Addresses]
) -> npt.NDArray[np.bool_]:
    """Whether each leaf's row is still where it was."""
    addresses = leaves.column(ROW_ADDRESS).to_numpy()
    numbers = addresses >> OFFSET_BITS
    found = np.ones(len(addresses), dtype=bool)
    for number in changed:
        mine = np.flatnonzero(numbers == number)
        if not len(mine):
            continue
        offsets = addresses[mine] & OFFSET_MASK
        present = np.zeros(int(offsets.max()) + 1, dtype=bool)
        if number in alive:
            kept = alive[number]
            present[kept[kept < len(present)]] = True
        found[mine] = present[offsets]
    return found


def _combined(leaves: pa.Table, alive: npt.NDArray[np.bool_], new: pa.Table) -> pa.Table:
    """The leaves with new rows in place of those that they replace."""
    places = pc.index_in(leaves.column(OBJECT_ID), new.column(OBJECT_ID))
    is_replaced = places.is_valid()
    if new.num_rows:
        # The partition values of a leaf never change.
        for name in (LOCATION, READ_VERSION, ROW_ADDRESS):
            column = pc.if_else(is_replaced, new.column(name).take(places), leaves.column(name))
            leaves = leaves.set_column(leaves.column_names.index(name), name, column)
    stays = pc.or_(is_replaced, pa.array(alive))
    if not pc.all(stays).as_py():
        leaves = leaves.filter(stays)
    replacing = pc.unique(places.drop_null()).to_numpy()
    fresh = new.take(pa.array(np.setdiff1d(np.arange(new.num_rows), replacing), pa.int64()))
    return in_order(pa.concat_tables([leaves, fresh])) if fresh.num_rows else leaves
