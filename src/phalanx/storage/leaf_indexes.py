"""The indexes that a version of a leaf has, and which of its fragments they cover."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import lance

from phalanx.storage.lance.version_cache import known

INVERTED = "INVERTED"
# How Lance calls kinds where it describes an index, where that is not how one asks for it.
_KINDS = {"INVERTED": INVERTED, "LABELLIST": "LABEL_LIST", "FTS": INVERTED}


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of an index: the fragments that it was made of."""

    uuid: str
    fragments: frozenset[int]
    dataset_version: int
    index_version: int


@dataclass(frozen=True, slots=True)
class LeafIndex:
    """An index of a leaf: on which field, of which kind, and what was chosen about it."""

    name: str
    field_id: int
    kind: str
    details: Mapping[str, Any]
    segments: tuple[Segment, ...]

    @property
    def metric(self) -> str | None:
        """What vectors are compared by."""
        found = self.details.get("metric_type")
        return None if found is None else str(found).lower()

    @property
    def covered(self) -> frozenset[int]:
        """The fragments that it covers, some of which the leaf may no longer have."""
        return frozenset().union(*(each.fragments for each in self.segments))


def indexes_of(dataset: lance.LanceDataset) -> tuple[LeafIndex, ...]:
    """All indexes of a version of a leaf."""
    return known(dataset, "indexes", lambda: described(dataset))


def described(dataset: lance.LanceDataset) -> tuple[LeafIndex, ...]:
    """The same for tables that come and go at one path: it is found out each time."""
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
