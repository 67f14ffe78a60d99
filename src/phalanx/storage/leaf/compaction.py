"""Compaction: fragments of a leaf written anew, without their deleted rows, as others of a size."""

from __future__ import annotations

import functools
import json
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import lance
import pyarrow as pa
from lance import LanceOperation
from lance.fragment import FragmentMetadata
from lance.optimize import Compaction, CompactionTask, RewriteResult

from phalanx.storage import commits
from phalanx.storage.lance.checksums import complete, data_files, record
from phalanx.storage.lance.fault_points import Step, reach
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.retries import until_won
from phalanx.storage.leaf_indexes import described


@dataclass(frozen=True, slots=True)
class Compacted:
    """New fragments that stand for old ones; what Lance says of them has the rows' new places."""

    old: tuple[FragmentMetadata, ...]
    new: tuple[FragmentMetadata, ...]
    result: RewriteResult


def compact(
    location: Location, version: int, fragments: Sequence[int], rows_per_file: int
) -> Compacted:
    """Write the rows of some fragments into new files, which no version lists yet."""
    dataset = location.open_leaf(version)
    found = _by_number(dataset)
    description = json.loads(_any_task())
    description["read_version"] = dataset.version
    description["task"]["fragments"] = [found[number].to_json() for number in fragments]
    description["options"] |= {
        "target_rows_per_fragment": rows_per_file,
        # As the leaf's other files: not those of the task that this one is made of.
        "data_storage_version": None,
    }
    task = CompactionTask.from_json(json.dumps(description))  # type: ignore[attr-defined]
    result = task.execute(dataset)
    record(location, data_files(result.new_fragments))
    reach(Step.FILES_WRITTEN)
    return Compacted(tuple(result.original_fragments), tuple(result.new_fragments), result)


@functools.cache
def _any_task() -> str:
    """A task as Lance writes it down: it plans its own, and has no way to make one."""
    place = f"memory://{uuid.uuid4().hex}"
    dataset = lance.write_dataset(pa.table({"a": [0]}), place)
    dataset = lance.write_dataset(pa.table({"a": [1]}), dataset, mode="append")
    text: str = Compaction.plan(dataset, {}).tasks[0].json()  # type: ignore[attr-defined]
    return text


def unchanged(dataset: lance.LanceDataset, results: Sequence[Compacted]) -> list[Compacted]:
    """The results whose fragments are as they were when they were read."""
    now = _by_number(dataset)
    return [each for each in results if all(now.get(old.id) == old for old in each.old)]


def stage(location: Location, dataset: lance.LanceDataset, results: Sequence[Compacted]) -> int:
    """A detached version of a leaf in which the new files stand for the old ones.

    An index no longer covers what was rewritten: Lance looks there row by row, until the index is
    made anew.
    """
    committed = _replace(location, dataset, results, detached=True)
    reach(Step.VERSION_STAGED)
    return int(committed.version)


def _replace(
    location: Location, dataset: lance.LanceDataset, results: Sequence[Compacted], **how: Any
) -> lance.LanceDataset:
    groups = [LanceOperation.RewriteGroup(list(each.old), list(each.new)) for each in results]
    return commits.commit(location, dataset, LanceOperation.Rewrite(groups, []), **how)


def commit(
    location: Location, results: Sequence[Compacted], check: Callable[[], None], mark: str | None
) -> tuple[list[Compacted], int | None]:
    """Put the new files in the place of the old ones on the leaf's main branch, in one commit.

    Returns what was committed, and as which version: where another writer has removed rows
    meanwhile, the rows stay in the old files.
    """

    def attempt() -> tuple[list[Compacted], int | None]:
        check()
        dataset = location.open_leaf()
        left = unchanged(dataset, results)
        if left and (not dataset.has_index or _is_torn(dataset, left)):
            dataset = _replace(location, dataset, left, commit_message=mark)
        elif left:
            # It moves the dataset to the version that it makes, which carries no mark.
            Compaction.commit(dataset, [each.result for each in left])
            if location.checksums:
                complete(location, location.open_leaf())
        return left, int(dataset.version) if left else None

    return until_won(attempt)


def _is_torn(dataset: lance.LanceDataset, results: Sequence[Compacted]) -> bool:
    """Whether rows of a part of an index come into one file with others: Lance keeps no such part.

    Else it puts the new places of the rows into the index.
    """
    return any(
        0 < len(segment.fragments & {old.id for old in each.old}) < len(each.old)
        for index in described(dataset)
        for segment in index.segments
        for each in results
    )


def _by_number(dataset: lance.LanceDataset) -> dict[int, FragmentMetadata]:
    return {each.fragment_id: each.metadata for each in dataset.get_fragments()}
