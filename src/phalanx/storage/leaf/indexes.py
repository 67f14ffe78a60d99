"""Indexes of leaves: built into files that no version lists yet, then put into a version."""

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
from phalanx.storage import commits
from phalanx.storage.lance.failures import plain_reason
from phalanx.storage.lance.fault_points import Step, reach
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.retries import until_won
from phalanx.storage.leaf_indexes import LeafIndex, indexes_of

# With more parts than these an index is made anew as one.
_MOST_SEGMENTS = 8
# What Lance says of vectors that are too few, or NULL, to make an index of.
_TOO_FEW = re.compile(r"cannot train \d+ centroids|not enough", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class BuiltIndex:
    """A new part of an index, and the parts whose place it takes; or why there is none.

    It can be put into every version that has the fragments it was made of.
    """

    name: str
    old: tuple[FragmentMetadata, ...]
    rows: int
    new: Index | None = None
    removed: tuple[Index, ...] = ()
    why_not: str | None = None

    @property
    def is_change(self) -> bool:
        """Whether there is anything to commit."""
        return self.new is not None or bool(self.removed)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What an index of a leaf lacks: the fragments to be covered, and the parts to be replaced."""

    spec: IndexSpec
    fragments: tuple[FragmentMetadata, ...]
    removed: tuple[Index, ...]

    @property
    def rows(self) -> int:
        """The rows to be covered."""
        return sum(each.num_rows for each in self.fragments)


def uncovered(
    spec: IndexSpec, dataset: lance.LanceDataset, anew: bool = False
) -> tuple[FragmentMetadata, ...]:
    """The fragments with rows that an index of a leaf does not cover; all, if it is another."""
    index = None if anew else _existing(spec, dataset)
    covered = frozenset() if index is None else index.covered
    return tuple(
        each.metadata
        for each in dataset.get_fragments()
        if each.fragment_id not in covered and each.metadata.num_rows
    )


def wanted(spec: IndexSpec, dataset: lance.LanceDataset, anew: bool) -> Wanted | None:
    """What is to be done for an index of a leaf; None if it covers all that there is.

    New rows become a part of their own, as long as they are not most of all rows.
    """
    missing = uncovered(spec, dataset, anew)
    if not missing:
        return None
    index = None if anew else _existing(spec, dataset)
    if index is not None:
        present = {each.fragment_id for each in dataset.get_fragments()}
        stale = [each for each in index.segments if not each.fragments & present]
        live = len(index.segments) - len(stale)
        rest = dataset.count_rows() - sum(each.num_rows for each in missing)
        if live < _MOST_SEGMENTS and rest >= sum(each.num_rows for each in missing):
            gone = [_segment(index, each.uuid) for each in stale]
            return Wanted(spec, missing, tuple(gone))
    everything = tuple(each.metadata for each in dataset.get_fragments() if each.metadata.num_rows)
    return Wanted(spec, everything, dropped([spec.name], dataset))


def dropped(names: Sequence[str], dataset: lance.LanceDataset) -> tuple[Index, ...]:
    """All parts of the indexes with these names."""
    return tuple(
        _segment(index, part.uuid)
        for index in indexes_of(dataset)
        if index.name in names
        for part in index.segments
    )


def _existing(spec: IndexSpec, dataset: lance.LanceDataset) -> LeafIndex | None:
    for index in indexes_of(dataset):
        same = index.name == spec.name and index.kind == spec.kind
        if same and index.field_id == spec.field_id and index.metric == spec.metric:
            return index
    return None


def _segment(index: LeafIndex, uuid: str) -> Index:
    part = next(each for each in index.segments if each.uuid == uuid)
    return Index(
        uuid=part.uuid,
        name=index.name,
        fields=[index.field_id],
        dataset_version=part.dataset_version,
        fragment_ids=Bitmap(part.fragments),
        index_version=part.index_version,
    )


def build(location: Location, version: int, want: Wanted, schema: Schema) -> BuiltIndex:
    """Write what an index lacks into files that no version lists yet."""
    dataset = location.open_leaf(version)
    spec = want.spec
    options: Mapping[str, Any] = spec.keywords
    path = schema.path_of(spec.field_id)
    assert path is not None
    try:
        made = dataset.create_index_uncommitted(
            ".".join(path),
            spec.kind,
            name=spec.name,
            replace=True,
            fragment_ids=[each.id for each in want.fragments],
            **options,
        )
        if spec.kind == INVERTED:
            # Lance takes what it has just written for an older format until this is done.
            made = dataset.merge_existing_index_segments([made])
    except (OSError, ValueError, RuntimeError) as error:
        if not spec.is_of_vectors or not _TOO_FEW.search(str(error)):
            raise
        return BuiltIndex(spec.name, want.fragments, want.rows, why_not=plain_reason(error))
    if not len(made.fragment_ids):
        why = "too few vectors to train a quantizer with."
        return BuiltIndex(spec.name, want.fragments, want.rows, why_not=why)
    reach(Step.FILES_WRITTEN)
    return BuiltIndex(spec.name, want.fragments, want.rows, made, want.removed)


def still_fitting(dataset: lance.LanceDataset, results: Sequence[BuiltIndex]) -> list[BuiltIndex]:
    """The results whose fragments have the rows that they had; some may be deleted since.

    A row that was deleted then is not in the index: it must not have come back, as a rollback
    brings it.
    """
    now = {each.fragment_id: each.metadata for each in dataset.get_fragments()}

    def fits(old: FragmentMetadata) -> bool:
        new = now.get(old.id)
        if new is None or new.files != old.files:
            return False
        return old.deletion_file is None or old.deletion_file == new.deletion_file

    return [each for each in results if all(map(fits, each.old))]


def stage(location: Location, dataset: lance.LanceDataset, results: Sequence[BuiltIndex]) -> int:
    """A detached version of a leaf with the new parts of its indexes."""
    committed = _commit(location, dataset, results, detached=True)
    reach(Step.VERSION_STAGED)
    return int(committed.version)


def commit(
    location: Location, results: Sequence[BuiltIndex], check: Callable[[], None], mark: str | None
) -> list[BuiltIndex]:
    """Put the new parts on the leaf's main branch, in one commit; those that still fit."""

    def attempt() -> list[BuiltIndex]:
        check()
        dataset = location.open_leaf()
        left = still_fitting(dataset, results)
        if left:
            _commit(location, dataset, left, commit_message=mark)
        return left

    return until_won(attempt)


def _commit(
    location: Location, dataset: lance.LanceDataset, results: Sequence[BuiltIndex], **how: Any
) -> lance.LanceDataset:
    # What another writer has replaced meanwhile is gone already.
    there = {part.uuid for index in indexes_of(dataset) for part in index.segments}
    new = [each.new for each in results if each.new is not None]
    gone = [part for each in results for part in each.removed if part.uuid in there]
    return commits.commit(location, dataset, LanceOperation.CreateIndex(new, gone), **how)
