"""Compaction: fragments of a leaf rewritten into files of a target size, without deleted rows."""

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

from phalanx.storage.lance.checksums import data_file_paths, record_checksums, record_missing
from phalanx.storage.lance.fault_points import FaultPoint, fault_point
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.retries import retry_conflicts
from phalanx.storage.lance.versions import apply_operation
from phalanx.storage.leaf.indexes import read_indexes


@dataclass(frozen=True, slots=True)
class CompactedFiles:
    """Old fragments and the new ones that replace them; `result` maps rows to new addresses."""

    old: tuple[FragmentMetadata, ...]
    new: tuple[FragmentMetadata, ...]
    result: RewriteResult


def compact_fragments(
    location: Location, version: int, fragments: Sequence[int], rows_per_file: int
) -> CompactedFiles:
    """Write the rows of some fragments into new files, which no version lists yet."""
    dataset = location.open_leaf(version)
    found = _fragments_by_id(dataset)
    description = json.loads(_task_template())
    description["read_version"] = dataset.version
    description["task"]["fragments"] = [found[number].to_json() for number in fragments]
    description["options"] |= {
        "target_rows_per_fragment": rows_per_file,
        # The leaf's own version, not that of the template.
        "data_storage_version": None,
    }
    task = CompactionTask.from_json(json.dumps(description))  # type: ignore[attr-defined]
    result = task.execute(dataset)
    record_checksums(location, data_file_paths(result.new_fragments))
    fault_point(FaultPoint.FILES_WRITTEN)
    return CompactedFiles(tuple(result.original_fragments), tuple(result.new_fragments), result)


@functools.cache
def _task_template() -> str:
    """Return a serialized compaction task: Lance plans its own and cannot create one."""
    uri = f"memory://{uuid.uuid4().hex}"
    dataset = lance.write_dataset(pa.table({"a": [0]}), uri)
    dataset = lance.write_dataset(pa.table({"a": [1]}), dataset, mode="append")
    text: str = Compaction.plan(dataset, {}).tasks[0].json()  # type: ignore[attr-defined]
    return text


def select_unchanged(
    dataset: lance.LanceDataset, results: Sequence[CompactedFiles]
) -> list[CompactedFiles]:
    """Select the results whose fragments have not changed since they were read."""
    now = _fragments_by_id(dataset)
    return [each for each in results if all(now.get(old.id) == old for old in each.old)]


def stage_compaction(
    location: Location, dataset: lance.LanceDataset, results: Sequence[CompactedFiles]
) -> int:
    """Create a detached version of a leaf in which the new files replace the old ones.

    Indexes no longer cover the rewritten rows: Lance scans those until the index is rebuilt.
    """
    committed = _apply_rewrite(location, dataset, results, detached=True)
    fault_point(FaultPoint.VERSION_STAGED)
    return int(committed.version)


def _apply_rewrite(
    location: Location,
    dataset: lance.LanceDataset,
    results: Sequence[CompactedFiles],
    **options: Any,
) -> lance.LanceDataset:
    groups = [LanceOperation.RewriteGroup(list(each.old), list(each.new)) for each in results]
    return apply_operation(location, dataset, LanceOperation.Rewrite(groups, []), **options)


def apply_compaction(
    location: Location,
    results: Sequence[CompactedFiles],
    check: Callable[[], None],
    mark: str | None,
) -> tuple[list[CompactedFiles], int | None]:
    """Replace the old files by the new ones on the leaf's main branch, in one commit.

    Return the applied results and the version. A result is skipped if another writer has removed
    rows from its old files.
    """

    def attempt() -> tuple[list[CompactedFiles], int | None]:
        check()
        dataset = location.open_leaf()
        left = select_unchanged(dataset, results)
        if left and (not dataset.has_index or _splits_segment(dataset, left)):
            dataset = _apply_rewrite(location, dataset, left, commit_message=mark)
        elif left:
            # This moves the dataset to the new version, which has no mark.
            Compaction.commit(dataset, [each.result for each in left])
            if location.checksums:
                record_missing(location, location.open_leaf())
        return left, int(dataset.version) if left else None

    return retry_conflicts(attempt)


def _splits_segment(dataset: lance.LanceDataset, results: Sequence[CompactedFiles]) -> bool:
    """Whether a result mixes rows of an index segment with other rows: Lance drops such a segment.

    Otherwise Lance updates the row addresses in the index.
    """
    return any(
        0 < len(segment.fragments & {old.id for old in each.old}) < len(each.old)
        for index in read_indexes(dataset)
        for segment in index.segments
        for each in results
    )


def _fragments_by_id(dataset: lance.LanceDataset) -> dict[int, FragmentMetadata]:
    return {each.fragment_id: each.metadata for each in dataset.get_fragments()}
