"""Changes of the manifest's rows: one commit each, which costs the same however many there are.

The rows that change are marked as deleted where they are, and written anew. So that fragments do
not pile up, a commit takes along the rows of small ones: no commit is made for that alone, and no
writer has to wait for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from lance import LanceFragment, LanceOperation

from phalanx.storage import commits
from phalanx.storage.lance.fault_points import Step, reach
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.retries import settling
from phalanx.storage.lance.scanning import table_of
from phalanx.storage.leaf import leaf

Addresses = npt.NDArray[np.uint64]
ADDRESS = "_rowaddr"
# Sizes are about the same if they are within 2 to the power of this; so many of them become one.
_LEVEL_BITS = 3
_FAN_IN = 1 << _LEVEL_BITS
# A fragment of at least this size is written anew when half of its rows are deleted.
_MANY_ROWS = 1024


def change_rows(
    dataset: lance.LanceDataset,
    location: Location,
    added: pa.Table,
    removed: Addresses,
    *,
    everything: bool = False,
) -> None:
    """Add rows, and remove those at the given addresses, in one commit.

    With `everything` all rows are written anew, so that no file still has those that are removed.

    A lost race raises, and `Unsettled` where the commit may stand. The race is lost if someone else
    changed a fragment that this commit changes too; who only added rows does not disturb it.
    """
    fragments = dataset.get_fragments()
    folded = fragments if everything else _piled_up(fragments, removed)
    if folded:
        added = pa.concat_tables([_rows_in(dataset, folded, removed), added])
        numbers = [fragment.fragment_id for fragment in folded]
        removed = removed[~np.isin(removed >> leaf.OFFSET_BITS, numbers)]
    change = leaf.deletion_by_address(dataset, removed)
    new = leaf.write(dataset, location, added.to_reader())
    reach(Step.MANIFEST_WRITTEN)
    with settling():
        commits.commit(
            location,
            dataset,
            # Also where rows are only added: a merge must lose against it.
            LanceOperation.Update(
                removed_fragment_ids=[
                    *change.removed,
                    *(fragment.fragment_id for fragment in folded),
                ],
                updated_fragments=list(change.updated),
                new_fragments=list(new),
            ),
            max_retries=0,
        )


def is_piled_up(dataset: lance.LanceDataset) -> bool:
    """Whether a commit would take along fragments."""
    return bool(_piled_up(dataset.get_fragments(), np.empty(0, np.uint64)))


def _piled_up(fragments: Iterable[LanceFragment], removed: Addresses) -> list[LanceFragment]:
    """The fragments to write anew: many of a size, with all smaller ones, and half-empty ones."""
    numbers, counts = np.unique(removed >> leaf.OFFSET_BITS, return_counts=True)
    leaving = dict(zip(numbers.tolist(), counts.tolist(), strict=True))
    levels: dict[int, list[LanceFragment]] = defaultdict(list)
    folded: list[LanceFragment] = []
    for fragment in fragments:
        metadata = fragment.metadata
        left = metadata.num_rows - leaving.get(fragment.fragment_id, 0)
        if metadata.physical_rows >= _MANY_ROWS and 2 * left < metadata.physical_rows:
            folded.append(fragment)
        else:
            levels[left.bit_length() // _LEVEL_BITS].append(fragment)
    full = max((level for level, found in levels.items() if len(found) >= _FAN_IN), default=-1)
    return [*folded, *(each for level in levels if level <= full for each in levels[level])]


def _rows_in(
    dataset: lance.LanceDataset, fragments: list[LanceFragment], removed: Addresses
) -> pa.Table:
    rows = table_of(dataset, fragments=fragments, with_row_address=True, scan_in_order=True)
    gone = pc.is_in(rows.column(ADDRESS), pa.array(removed, pa.uint64()))
    return rows.filter(pc.invert(gone)).drop_columns(ADDRESS)
