"""What was made of a version of a leaf beforehand, and stands for something in it: files written
anew, or parts of indexes. It fits later versions as well, as long as they have what it was made of.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import lance

from phalanx.storage.lance.location import Location
from phalanx.storage.leaf import compaction as compacting
from phalanx.storage.leaf import indexes as indexing
from phalanx.storage.leaf.compaction import Compacted
from phalanx.storage.leaf.indexes import BuiltIndex

Replacement: TypeAlias = Compacted | BuiltIndex


def unchanged(
    dataset: lance.LanceDataset, results: Sequence[Replacement]
) -> tuple[Replacement, ...]:
    """The results that fit a version of the leaf."""
    files = compacting.unchanged(dataset, [x for x in results if isinstance(x, Compacted)])
    parts = indexing.still_fitting(dataset, [x for x in results if isinstance(x, BuiltIndex)])
    return (*files, *parts)


def stage(location: Location, dataset: lance.LanceDataset, results: Sequence[Replacement]) -> int:
    """A detached version of a leaf with the results, which are all of one kind."""
    files = [each for each in results if isinstance(each, Compacted)]
    if files:
        return compacting.stage(location, dataset, files)
    return indexing.stage(location, dataset, [x for x in results if isinstance(x, BuiltIndex)])
