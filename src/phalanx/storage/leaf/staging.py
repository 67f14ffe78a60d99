"""Detached versions of leaves, which no reader sees yet: how they are created and rebased."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import lance
from lance import LanceDataset, LanceOperation
from lance.fragment import FragmentMetadata

from phalanx.errors import CommitConflict
from phalanx.model.schema.schema import Schema
from phalanx.storage.lance.fault_points import FaultPoint, fault_point
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.scanning import count_rows
from phalanx.storage.lance.versions import apply_operation
from phalanx.storage.leaf import leaf
from phalanx.storage.leaf.leaf import FragmentChange
from phalanx.storage.leaf.reconcile import check_aligned


@dataclass(frozen=True, slots=True)
class StagedVersion:
    """A detached version of a leaf, with the number of rows added and removed."""

    version: int
    added: int
    removed: int


def stage_change(
    location: Location,
    dataset: lance.LanceDataset,
    fragments: tuple[FragmentMetadata, ...],
    schema: Schema,
    deletion: leaf.Deletion | None,
) -> StagedVersion | None:
    """Create a detached version with the change; None if nothing changes."""
    check_aligned(dataset, schema, location)
    found = FragmentChange() if deletion is None else deletion(dataset)
    change = FragmentChange((*fragments, *found.new), found.updated, found.removed)
    if deletion is not None:
        fault_point(FaultPoint.DELETIONS_WRITTEN)
    if change.is_empty:
        return None
    added = sum(fragment.num_rows for fragment in change.new)
    return StagedVersion(_stage_detached(location, dataset, change), added, found.rows_removed)


def rebase_staged(location: Location, base: int, staged: int, current: int) -> int:
    """Apply a staged change to a version that others have committed; return the new version.

    New rows are added. Rows can be removed only from fragments that have not changed; otherwise
    `CommitConflict` is raised.
    """
    after, now = location.open_leaf(staged), location.open_leaf(current)
    before, fragments = _fragments_by_id(location.open_leaf(base)), _fragments_by_id(now)
    change = _diff_fragments(before, _fragments_by_id(after))
    for number in (*change.removed, *(fragment.id for fragment in change.updated)):
        if fragments.get(number) != before[number]:
            raise CommitConflict(f"Two changes of {location} remove rows from the same file.")
    new = tuple(
        fragment
        for each in change.new
        for fragment in (
            # Lance finds a deletion file by its fragment's id, which will change.
            [_without_ids(each)]
            if each.deletion_file is None
            else copy_rows(location, after, [each], now)
        )
    )
    return _stage_detached(location, now, dataclasses.replace(change, new=new))


def _without_ids(fragment: FragmentMetadata) -> FragmentMetadata:
    """Return a fragment whose id and row ids are assigned when it is added."""
    return dataclasses.replace(
        fragment,
        id=0,
        row_id_meta=None,
        created_at_version_meta=None,
        last_updated_at_version_meta=None,
    )


def stage_moved_rows(
    source: Location, staged: int, target: Location, current: int, schema: Schema
) -> int:
    """Add the rows of a staged leaf to another leaf. Return the latter's new version."""
    now = target.open_leaf(current)
    check_aligned(now, schema, target)
    rows = source.open_leaf(staged)
    fragments = copy_rows(target, rows, [each.metadata for each in rows.get_fragments()], now)
    return _stage_detached(target, now, FragmentChange(fragments))


def stage_emptied(location: Location, version: int) -> StagedVersion:
    """Create a detached version without rows."""
    dataset = location.open_leaf(version)
    fragments = _fragments_by_id(dataset)
    if not fragments:
        return StagedVersion(version, 0, 0)
    change = FragmentChange(removed=tuple(fragments))
    return StagedVersion(_stage_detached(location, dataset, change), 0, count_rows(dataset))


def stage_rewritten(location: Location, dataset: lance.LanceDataset, fragments: list[int]) -> int:
    """Create a detached version in which some fragments are rewritten into new files."""
    chosen = [each.metadata for each in dataset.get_fragments() if each.fragment_id in fragments]
    new = tuple(_without_ids(each) for each in copy_rows(location, dataset, chosen, dataset))
    return _stage_detached(location, dataset, FragmentChange(new, removed=tuple(fragments)))


def copy_rows(
    target: Location,
    source: lance.LanceDataset,
    fragments: list[FragmentMetadata],
    into: lance.LanceDataset,
) -> tuple[FragmentMetadata, ...]:
    """Write the rows of some fragments into files of a leaf."""
    wanted = {fragment.id for fragment in fragments}
    chosen = [each for each in source.get_fragments() if each.fragment_id in wanted]
    reader = source.scanner(fragments=chosen, scan_in_order=True).to_reader()
    return leaf.write_files(into, target, reader)


def copy_files(
    dataset: lance.LanceDataset,
    source: Location,
    fragments: tuple[FragmentMetadata, ...],
    target: Location,
    into: lance.LanceDataset,
) -> tuple[FragmentMetadata, ...]:
    """Write the rows of files that no version lists yet into files of a leaf."""
    staged = LanceDataset.commit(
        dataset,
        LanceOperation.Append(list(fragments)),
        read_version=dataset.version,
        detached=True,
        **source.write_options,
    )
    ours = {file.path for fragment in fragments for file in fragment.files}
    chosen = [
        each.metadata
        for each in staged.get_fragments()
        if any(file.path in ours for file in each.metadata.files)
    ]
    return copy_rows(target, staged, chosen, into)


def count_changed_rows(
    before: lance.LanceDataset | None,
    after: lance.LanceDataset | None,
    same_files: Callable[[], Mapping[str, str]] = dict,
) -> tuple[int, int]:
    """Return how many rows were added and removed between two versions of a leaf.

    `same_files` maps files that hold the same rows to one of them. It is called only if needed.
    """
    old = {} if before is None else _fragments_by_id(before)
    new = {} if after is None else _fragments_by_id(after)
    moved = bool(old.keys() - new.keys()) and bool(new.keys() - old.keys())
    doubtful = moved or any(
        old[number].physical_rows == new[number].physical_rows
        and not _has_same_rows(old[number], new[number], {})
        for number in old.keys() & new.keys()
    )
    same = same_files() if doubtful else {}
    rows: defaultdict[str, int] = defaultdict(int)
    for number in old.keys() | new.keys():
        was, now = old.get(number), new.get(number)
        together = was is not None and now is not None and _has_same_rows(was, now, same)
        # Count by what identifies the rows: the fragment, or a group of files with the same rows.
        if was is not None:
            rows[f"#{number}" if together else _file_group(was, same)] -= was.num_rows
        if now is not None:
            rows[f"#{number}" if together else _file_group(now, same)] += now.num_rows
    counts = rows.values()
    return sum(max(0, each) for each in counts), sum(max(0, -each) for each in counts)


def _file_group(fragment: FragmentMetadata, same: Mapping[str, str]) -> str:
    path = fragment.files[0].path
    return same.get(path, path)


def _has_same_rows(one: FragmentMetadata, other: FragmentMetadata, same: Mapping[str, str]) -> bool:
    """Whether two fragments hold the same rows, ignoring deletions."""
    paths = {same.get(file.path, file.path) for file in one.files}
    return any(same.get(file.path, file.path) in paths for file in other.files)


def _diff_fragments(
    old: dict[int, FragmentMetadata], new: dict[int, FragmentMetadata]
) -> FragmentChange:
    return FragmentChange(
        new=tuple(fragment for number, fragment in new.items() if number not in old),
        updated=tuple(
            fragment
            for number, fragment in new.items()
            if number in old and fragment != old[number]
        ),
        removed=tuple(number for number in old if number not in new),
    )


def _fragments_by_id(dataset: lance.LanceDataset) -> dict[int, FragmentMetadata]:
    return {fragment.fragment_id: fragment.metadata for fragment in dataset.get_fragments()}


def _stage_detached(location: Location, dataset: lance.LanceDataset, change: FragmentChange) -> int:
    committed = apply_operation(location, dataset, change.to_operation(), detached=True)
    fault_point(FaultPoint.VERSION_STAGED)
    return int(committed.version)
