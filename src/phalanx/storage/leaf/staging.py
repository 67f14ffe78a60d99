"""Versions of a leaf that nobody sees yet: detached commits, and how they are rebased."""

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
from phalanx.storage import commits
from phalanx.storage.lance.fault_points import Step, reach
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.scanning import count_of
from phalanx.storage.leaf import leaf
from phalanx.storage.leaf.leaf import Change
from phalanx.storage.leaf.reconcile import check_ids


@dataclass(frozen=True, slots=True)
class StagedVersion:
    """A version that a change made of a leaf, and how many rows came and went."""

    version: int
    added: int
    removed: int


def stage(
    location: Location,
    dataset: lance.LanceDataset,
    fragments: tuple[FragmentMetadata, ...],
    schema: Schema,
    deletion: leaf.Deletion | None,
) -> StagedVersion | None:
    """Make a detached version with the change; None where there is nothing to change."""
    check_ids(dataset, schema, location)
    found = Change() if deletion is None else deletion(dataset)
    change = Change((*fragments, *found.new), found.updated, found.removed)
    if deletion is not None:
        reach(Step.DELETIONS_WRITTEN)
    if change.is_nothing:
        return None
    added = sum(fragment.num_rows for fragment in change.new)
    return StagedVersion(_detached(location, dataset, change), added, found.rows_removed)


def rebase(location: Location, base: int, staged: int, current: int) -> int:
    """The staged change on top of a version that others have made meanwhile.

    New rows are added there too. Rows can be removed only from fragments that are as they were:
    anything else raises `CommitConflict`.
    """
    after, now = location.open_leaf(staged), location.open_leaf(current)
    before, fragments = _fragments(location.open_leaf(base)), _fragments(now)
    change = _difference(before, _fragments(after))
    for number in (*change.removed, *(fragment.id for fragment in change.updated)):
        if fragments.get(number) != before[number]:
            raise CommitConflict(f"Two changes of {location} remove rows of the same file.")
    new = tuple(
        fragment
        for each in change.new
        for fragment in (
            # A deletion file is found by the number of its fragment, which will be another.
            [_renumbered(each)]
            if each.deletion_file is None
            else copied_rows(location, after, [each], now)
        )
    )
    return _detached(location, now, dataclasses.replace(change, new=new))


def _renumbered(fragment: FragmentMetadata) -> FragmentMetadata:
    """A fragment that gets its numbers, and those of its rows, where it is added."""
    return dataclasses.replace(
        fragment,
        id=0,
        row_id_meta=None,
        created_at_version_meta=None,
        last_updated_at_version_meta=None,
    )


def moved(source: Location, staged: int, target: Location, current: int, schema: Schema) -> int:
    """The rows of a staged leaf added to another leaf, as a version of the latter."""
    now = target.open_leaf(current)
    check_ids(now, schema, target)
    rows = source.open_leaf(staged)
    fragments = copied_rows(target, rows, [each.metadata for each in rows.get_fragments()], now)
    return _detached(target, now, Change(fragments))


def emptied(location: Location, version: int) -> StagedVersion:
    """A version without rows."""
    dataset = location.open_leaf(version)
    fragments = _fragments(dataset)
    if not fragments:
        return StagedVersion(version, 0, 0)
    change = Change(removed=tuple(fragments))
    return StagedVersion(_detached(location, dataset, change), 0, count_of(dataset))


def rewritten(location: Location, dataset: lance.LanceDataset, fragments: list[int]) -> int:
    """A version in which the rows of some fragments are in new files, written by us."""
    chosen = [each.metadata for each in dataset.get_fragments() if each.fragment_id in fragments]
    new = tuple(_renumbered(each) for each in copied_rows(location, dataset, chosen, dataset))
    return _detached(location, dataset, Change(new, removed=tuple(fragments)))


def copied_rows(
    target: Location,
    source: lance.LanceDataset,
    fragments: list[FragmentMetadata],
    into: lance.LanceDataset,
) -> tuple[FragmentMetadata, ...]:
    """The rows of some fragments written into files of a leaf."""
    wanted = {fragment.id for fragment in fragments}
    chosen = [each for each in source.get_fragments() if each.fragment_id in wanted]
    reader = source.scanner(fragments=chosen, scan_in_order=True).to_reader()
    return leaf.write(into, target, reader)


def copied_files(
    dataset: lance.LanceDataset,
    source: Location,
    fragments: tuple[FragmentMetadata, ...],
    target: Location,
    into: lance.LanceDataset,
) -> tuple[FragmentMetadata, ...]:
    """The rows of files that no version of a leaf lists yet, written into files of a leaf."""
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
    return copied_rows(target, staged, chosen, into)


def rows_changed(
    before: lance.LanceDataset | None,
    after: lance.LanceDataset | None,
    same_files: Callable[[], Mapping[str, str]] = dict,
) -> tuple[int, int]:
    """How many rows came, and how many went, from one version of a leaf to another.

    `same_files` has for files that hold the same rows one that stands for all; it is asked only
    where that may matter.
    """
    old = {} if before is None else _fragments(before)
    new = {} if after is None else _fragments(after)
    moved = bool(old.keys() - new.keys()) and bool(new.keys() - old.keys())
    doubtful = moved or any(
        old[number].physical_rows == new[number].physical_rows
        and not _same_rows(old[number], new[number], {})
        for number in old.keys() & new.keys()
    )
    same = same_files() if doubtful else {}
    rows: defaultdict[str, int] = defaultdict(int)
    for number in old.keys() | new.keys():
        was, now = old.get(number), new.get(number)
        together = was is not None and now is not None and _same_rows(was, now, same)
        # By what the rows are the same: files of one kind, or the fragment itself.
        if was is not None:
            rows[f"#{number}" if together else _kind(was, same)] -= was.num_rows
        if now is not None:
            rows[f"#{number}" if together else _kind(now, same)] += now.num_rows
    counts = rows.values()
    return sum(max(0, each) for each in counts), sum(max(0, -each) for each in counts)


def _kind(fragment: FragmentMetadata, same: Mapping[str, str]) -> str:
    path = fragment.files[0].path
    return same.get(path, path)


def _same_rows(one: FragmentMetadata, other: FragmentMetadata, same: Mapping[str, str]) -> bool:
    """Whether two fragments hold the same rows, apart from deleted ones."""
    paths = {same.get(file.path, file.path) for file in one.files}
    return any(same.get(file.path, file.path) in paths for file in other.files)


def _difference(old: dict[int, FragmentMetadata], new: dict[int, FragmentMetadata]) -> Change:
    return Change(
        new=tuple(fragment for number, fragment in new.items() if number not in old),
        updated=tuple(
            fragment
            for number, fragment in new.items()
            if number in old and fragment != old[number]
        ),
        removed=tuple(number for number in old if number not in new),
    )


def _fragments(dataset: lance.LanceDataset) -> dict[int, FragmentMetadata]:
    return {fragment.fragment_id: fragment.metadata for fragment in dataset.get_fragments()}


def _detached(location: Location, dataset: lance.LanceDataset, change: Change) -> int:
    committed = commits.commit(location, dataset, change.operation(), detached=True)
    reach(Step.VERSION_STAGED)
    return int(committed.version)
