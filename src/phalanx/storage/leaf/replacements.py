"""Compacted files or index segments, prepared for a later commit.

They also fit later versions of the leaf, as long as those have the fragments they were made from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import lance

from phalanx.storage.lance.location import Location
from phalanx.storage.leaf import compaction
from phalanx.storage.leaf import indexes as leaf_indexes
from phalanx.storage.leaf.compaction import CompactedFiles
from phalanx.storage.leaf.indexes import BuiltIndex

PreparedReplacement: TypeAlias = CompactedFiles | BuiltIndex


def select_applicable_replacements(
    dataset: lance.LanceDataset, replacements: Sequence[PreparedReplacement]
) -> tuple[PreparedReplacement, ...]:
    """Select the replacements that fit a version of the leaf."""
    files = compaction.select_unchanged(
        dataset, [x for x in replacements if isinstance(x, CompactedFiles)]
    )
    parts = leaf_indexes.select_applicable(
        dataset, [x for x in replacements if isinstance(x, BuiltIndex)]
    )
    return (*files, *parts)


def stage_replacements(
    location: Location, dataset: lance.LanceDataset, replacements: Sequence[PreparedReplacement]
) -> int:
    """Create a detached version with the replacements, which are all of one kind."""
    files = [each for each in replacements if isinstance(each, CompactedFiles)]
    if files:
        return compaction.stage_compaction(location, dataset, files)
    return leaf_indexes.stage_indexes(
        location, dataset, [x for x in replacements if isinstance(x, BuiltIndex)]
    )
