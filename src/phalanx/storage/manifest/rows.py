"""Commits of row changes to the manifest; each costs the same however many rows there are.

A changed row is marked as deleted and written again. To keep the number of fragments low, a commit
also rewrites the rows of small fragments. That needs no commit of its own, and no writer waits.
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

from phalanx.storage.lance.fault_points import FaultPoint, fault_point
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.retries import detect_uncertain_commit
from phalanx.storage.lance.scanning import scan_table
from phalanx.storage.lance.versions import apply_operation
from phalanx.storage.leaf import leaf

RowAddresses = npt.NDArray[np.uint64]
LANCE_ROW_ADDRESS = "_rowaddr"
# The sizes of fragments on one level differ by a factor of up to 8. Once a level has 8 fragments,
# they are merged into one.
_LEVEL_BITS = 3
_FAN_IN = 1 << _LEVEL_BITS
# A fragment of at least this size is rewritten when half of its rows are deleted.
_MANY_ROWS = 1024


def commit_row_changes(
    dataset: lance.LanceDataset,
    location: Location,
    added: pa.Table,
    removed: RowAddresses,
    *,
    rewrite_all: bool = False,
) -> lance.LanceDataset | None:
    """Add rows and remove those at the given addresses, in one commit.

    Return the new version if it differs from `dataset` by these rows alone, which are one fragment;
    None if other fragments were rewritten or another commit came first. With `rewrite_all`, rewrite
    all rows, so that no file contains the removed ones.

    A lost race raises, as does an unknown outcome. The race is lost if another commit changed a
    fragment that this one changes too. Commits that only add rows do not conflict.
    """
    fragments = dataset.get_fragments()
    folded = fragments if rewrite_all else _find_fragments_to_fold(fragments, removed)
    if folded:
        added = pa.concat_tables([_read_remaining_rows(dataset, folded, removed), added])
        numbers = [fragment.fragment_id for fragment in folded]
        removed = removed[~np.isin(removed >> leaf.OFFSET_BITS, numbers)]
    change = leaf.write_deletions_at(dataset, removed)
    new = leaf.write_files(dataset, location, added.to_reader())
    fault_point(FaultPoint.MANIFEST_WRITTEN)
    with detect_uncertain_commit():
        committed = apply_operation(
            location,
            dataset,
            # An Update even where rows are only added: a concurrent merge must conflict with it.
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
    is_next = committed.version == dataset.version + 1
    return committed if is_next and not folded and len(new) == 1 else None


def has_fragments_to_fold(dataset: lance.LanceDataset) -> bool:
    """Whether the next commit would rewrite small fragments."""
    return bool(_find_fragments_to_fold(dataset.get_fragments(), np.empty(0, np.uint64)))


def _find_fragments_to_fold(
    fragments: Iterable[LanceFragment], removed: RowAddresses
) -> list[LanceFragment]:
    """Return the fragments to rewrite: many of one level, all smaller ones, half-empty ones."""
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


def _read_remaining_rows(
    dataset: lance.LanceDataset, fragments: list[LanceFragment], removed: RowAddresses
) -> pa.Table:
    rows = scan_table(dataset, fragments=fragments, with_row_address=True, scan_in_order=True)
    gone = pc.is_in(rows.column(LANCE_ROW_ADDRESS), pa.array(removed, pa.uint64()))
    return rows.filter(pc.invert(gone)).drop_columns(LANCE_ROW_ADDRESS)
