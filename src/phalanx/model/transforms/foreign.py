"""Transforms of other systems: what Phalanx plans by in their catalogs, and never stores."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, NoReturn

import pyarrow as pa

from phalanx.errors import InvalidSpec
from phalanx.model.transforms.transform import Transform


@dataclass(frozen=True, slots=True)
class Nearest:
    """What stands for a transform of another system in the format, outermost level first.

    `exact` means the same partitions: rows are together there if and only if they are here.
    """

    transforms: tuple[Transform, ...]
    exact: bool
    note: str


class ForeignTransform(Transform):
    """A transform with another system's meaning; the format has no name for it."""

    @abstractmethod
    def nearest(self, source: pa.DataType) -> Nearest:
        """What an import into the format partitions by instead."""

    def to_json(self) -> dict[str, Any]:
        self._refuse()

    def sql(self, *sources: pa.DataType) -> str:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise InvalidSpec(
            f"Cannot store the transform {self.name} of another system: its values mean something "
            "else there. Import the table, and partition by what is nearest to it."
        )


def nearest(transform: Transform, source: pa.DataType) -> Nearest:
    """What a transform of any system becomes in the format; its own transforms stay."""
    if isinstance(transform, ForeignTransform):
        return transform.nearest(source)
    return Nearest((transform,), True, "the same transform")
