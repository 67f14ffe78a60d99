"""Indexes of leaves: which exist, which fragments they cover, and how they are built and applied.

An index is built into files that no version lists yet, then added to a version.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import lance
from lance import LanceOperation
from lance.bitmap import Bitmap
from lance.dataset import Index
from lance.fragment import FragmentMetadata

from phalanx.model.schema.schema import Schema
from phalanx.model.search.indexes import INVERTED, IndexSpec
from phalanx.storage.lance.failures import summarize_error
from phalanx.storage.lance.fault_points import FaultPoint, fault_point
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.retries import retry_conflicts
from phalanx.storage.lance.version_cache import compute_once
from phalanx.storage.lance.versions import apply_operation

# Lance describes these kinds by other names than it takes.
_KINDS = {"INVERTED": INVERTED, "LABELLIST": "LABEL_LIST", "FTS": INVERTED}
# An index with more segments is rebuilt as one.
_MAX_SEGMENTS = 8
# Lance's messages for too few vectors, or too many NULLs, to build an index.
_TOO_FEW_VECTORS = re.compile(r"cannot train \d+ centroids|not enough", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of an index, and the fragments that it covers."""

    uuid: str
    fragments: frozenset[int]
    dataset_version: int
    index_version: int


@dataclass(frozen=True, slots=True)
class LeafIndex:
    """An index of a leaf: its field, kind, options and segments."""

    name: str
    field_id: int
    kind: str
    details: Mapping[str, Any]
    segments: tuple[Segment, ...]

    @property
    def metric(self) -> str | None:
        """The distance metric of a vector index."""
        found = self.details.get("metric_type")
        return None if found is None else str(found).lower()

    @property
    def covered_fragments(self) -> frozenset[int]:
        """The covered fragments, some of which the leaf may no longer have."""
        return frozenset().union(*(each.fragments for each in self.segments))


def list_indexes(dataset: lance.LanceDataset) -> tuple[LeafIndex, ...]:
    """Return all indexes of a version of a leaf; cached."""
    return compute_once(dataset, "indexes", lambda: read_indexes(dataset))


def read_indexes(dataset: lance.LanceDataset) -> tuple[LeafIndex, ...]:
    """Like `list_indexes`, without the cache: for tables whose paths are reused."""
    if not dataset.has_index:
        return ()
    return tuple(
        LeafIndex(
            index.name,
            index.fields[0],
            _KINDS.get(index.index_type.upper(), index.index_type.upper()),
            dict(index.details or {}),
            tuple(
                Segment(
                    str(segment.uuid),
                    frozenset(segment.fragment_ids),
                    segment.dataset_version_at_last_update,
                    segment.index_version,
                )
                for segment in index.segments
            ),
        )
        for index in dataset.describe_indices()
        if index.fields
    )


@dataclass(frozen=True, slots=True)
class BuiltIndex:
    """A new index segment and the segments that it replaces; or the reason why there is none.

    It fits every version that has the fragments it was built from.
    """

    name: str
    old: tuple[FragmentMetadata, ...]
    rows: int
    new: Index | None = None
    removed: tuple[Index, ...] = ()
    why_not: str | None = None

    @property
    def is_change(self) -> bool:
        """Whether there is anything to apply."""
        return self.new is not None or bool(self.removed)


@dataclass(frozen=True, slots=True)
class IndexPlan:
    """The fragments that an index of a leaf does not cover, and the segments to replace."""

    spec: IndexSpec
    fragments: tuple[FragmentMetadata, ...]
    removed: tuple[Index, ...]

    @property
    def rows(self) -> int:
        """The number of rows to cover."""
        return sum(each.num_rows for each in self.fragments)


def list_uncovered_fragments(
    spec: IndexSpec, dataset: lance.LanceDataset, rebuild: bool = False
) -> tuple[FragmentMetadata, ...]:
    """Return the fragments with rows that an index of a leaf does not cover.

    These are all fragments if the leaf has no index of this spec, or with `rebuild`.
    """
    index = None if rebuild else _find_index(spec, dataset)
    covered = frozenset() if index is None else index.covered_fragments
    return tuple(
        each.metadata
        for each in dataset.get_fragments()
        if each.fragment_id not in covered and each.metadata.num_rows
    )


def plan_index(spec: IndexSpec, dataset: lance.LanceDataset, rebuild: bool) -> IndexPlan | None:
    """Plan what an index of a leaf lacks; None if it covers everything.

    New rows get their own segment, unless they are the majority of all rows.
    """
    missing = list_uncovered_fragments(spec, dataset, rebuild)
    if not missing:
        return None
    index = None if rebuild else _find_index(spec, dataset)
    if index is not None:
        present = {each.fragment_id for each in dataset.get_fragments()}
        stale = [each for each in index.segments if not each.fragments & present]
        live = len(index.segments) - len(stale)
        rest = dataset.count_rows() - sum(each.num_rows for each in missing)
        if live < _MAX_SEGMENTS and rest >= sum(each.num_rows for each in missing):
            unused = [_to_lance_index(index, each.uuid) for each in stale]
            return IndexPlan(spec, missing, tuple(unused))
    everything = tuple(each.metadata for each in dataset.get_fragments() if each.metadata.num_rows)
    return IndexPlan(spec, everything, list_segments([spec.name], dataset))


def list_segments(names: Sequence[str], dataset: lance.LanceDataset) -> tuple[Index, ...]:
    """Return all segments of the indexes with these names."""
    return tuple(
        _to_lance_index(index, part.uuid)
        for index in list_indexes(dataset)
        if index.name in names
        for part in index.segments
    )


def _find_index(spec: IndexSpec, dataset: lance.LanceDataset) -> LeafIndex | None:
    for index in list_indexes(dataset):
        same = index.name == spec.name and index.kind == spec.kind
        if same and index.field_id == spec.field_id and index.metric == spec.metric:
            return index
    return None


def _to_lance_index(index: LeafIndex, uuid: str) -> Index:
    part = next(each for each in index.segments if each.uuid == uuid)
    return Index(
        uuid=part.uuid,
        name=index.name,
        fields=[index.field_id],
        dataset_version=part.dataset_version,
        fragment_ids=Bitmap(part.fragments),
        index_version=part.index_version,
    )


def build_index(location: Location, version: int, plan: IndexPlan, schema: Schema) -> BuiltIndex:
    """Write a planned segment into files that no version lists yet."""
    dataset = location.open_leaf(version)
    spec = plan.spec
    options: Mapping[str, Any] = spec.keywords
    path = schema.path_of(spec.field_id)
    assert path is not None
    try:
        made = dataset.create_index_uncommitted(
            ".".join(path),
            spec.kind,
            name=spec.name,
            replace=True,
            fragment_ids=[each.id for each in plan.fragments],
            **options,
        )
        if spec.kind == INVERTED:
            # Without this Lance takes the new segment for an older format.
            made = dataset.merge_existing_index_segments([made])
    except (OSError, ValueError, RuntimeError) as error:
        if not spec.is_vector_index or not _TOO_FEW_VECTORS.search(str(error)):
            raise
        return BuiltIndex(spec.name, plan.fragments, plan.rows, why_not=summarize_error(error))
    if not len(made.fragment_ids):
        why = "too few vectors to train a quantizer with."
        return BuiltIndex(spec.name, plan.fragments, plan.rows, why_not=why)
    fault_point(FaultPoint.FILES_WRITTEN)
    return BuiltIndex(spec.name, plan.fragments, plan.rows, made, plan.removed)


def select_applicable(
    dataset: lance.LanceDataset, results: Sequence[BuiltIndex]
) -> list[BuiltIndex]:
    """Select the results whose fragments still have the same rows; some may be deleted since.

    A row that was deleted when the index was built is not in the index. It must not exist again,
    as after a rollback.
    """
    now = {each.fragment_id: each.metadata for each in dataset.get_fragments()}

    def fits(old: FragmentMetadata) -> bool:
        new = now.get(old.id)
        if new is None or new.files != old.files:
            return False
        return old.deletion_file is None or old.deletion_file == new.deletion_file

    return [each for each in results if all(map(fits, each.old))]


def stage_indexes(
    location: Location, dataset: lance.LanceDataset, results: Sequence[BuiltIndex]
) -> int:
    """Create a detached version of a leaf with the new index segments."""
    committed = _apply_segments(location, dataset, results, detached=True)
    fault_point(FaultPoint.VERSION_STAGED)
    return int(committed.version)


def apply_indexes(
    location: Location, results: Sequence[BuiltIndex], check: Callable[[], None], mark: str | None
) -> list[BuiltIndex]:
    """Add those segments that still fit to the leaf's main branch, in one commit."""

    def attempt() -> list[BuiltIndex]:
        check()
        dataset = location.open_leaf()
        left = select_applicable(dataset, results)
        if left:
            _apply_segments(location, dataset, left, commit_message=mark)
        return left

    return retry_conflicts(attempt)


def _apply_segments(
    location: Location, dataset: lance.LanceDataset, results: Sequence[BuiltIndex], **options: Any
) -> lance.LanceDataset:
    # Another writer may have replaced some segments already.
    present = {part.uuid for index in list_indexes(dataset) for part in index.segments}
    new = [each.new for each in results if each.new is not None]
    removed = [part for each in results for part in each.removed if part.uuid in present]
    return apply_operation(location, dataset, LanceOperation.CreateIndex(new, removed), **options)
