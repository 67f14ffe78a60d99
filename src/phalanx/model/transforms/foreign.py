"""Transforms of other systems. Phalanx plans scans with them, but never stores them."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, NoReturn

import pyarrow as pa

from phalanx.errors import InvalidSpec
from phalanx.model.transforms.transform import Transform


@dataclass(frozen=True, slots=True)
class ClosestTransforms:
    """The format's closest transforms for a transform of another system, outermost level first.

    `exact` means the same partitions: two rows share a partition in both systems or in neither.
    """

    transforms: tuple[Transform, ...]
    exact: bool
    note: str


class ForeignTransform(Transform):
    """A transform of another system that the format does not define."""

    @abstractmethod
    def find_closest(self, source: pa.DataType) -> ClosestTransforms:
        """Return the transforms that an import into the format uses instead."""

    def to_json(self) -> dict[str, Any]:
        self._refuse()

    def sql(self, *sources: pa.DataType) -> str:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise InvalidSpec(
            f"Cannot store the transform {self.name} of another system: the format does "
            "not define its values. Import the table, and partition by the closest transform."
        )


def find_closest_transforms(transform: Transform, source: pa.DataType) -> ClosestTransforms:
    """Return the format's closest transforms for any transform; its own stay unchanged."""
    if isinstance(transform, ForeignTransform):
        return transform.find_closest(source)
    return ClosestTransforms((transform,), True, "the same transform")
