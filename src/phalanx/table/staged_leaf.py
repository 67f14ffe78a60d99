"""Leaves as a transaction has staged them, and as a compaction asks it to."""

from __future__ import annotations

from dataclasses import dataclass, field

from phalanx.model.specs.partition_key import PartitionKey
from phalanx.storage.lance.location import Location
from phalanx.storage.leaf.replacements import Replacement


@dataclass(frozen=True, slots=True)
class LeafRewrite:
    """A leaf in a version, and what was made to stand for something in it."""

    key: PartitionKey
    object_id: str
    location: Location
    version: int
    results: tuple[Replacement, ...]


@dataclass(slots=True)
class StagedLeaf:
    """A leaf with staged changes; one without a base was made by this transaction.

    Or it was dropped by an earlier one, and is listed again.
    """

    key: PartitionKey
    location: Location
    base: int | None
    version: int
    main: int
    operations: list[str] = field(default_factory=list)
    added: int = 0
    removed: int = 0
    rewritten: tuple[Replacement, ...] = ()
    is_again: bool = False

    @property
    def only_adds(self) -> bool:
        """Whether nothing but rows was added: it matters to nobody what else happens there."""
        return bool(self.operations) and set(self.operations) == {"append"} and not self.removed

    @property
    def operation(self) -> str:
        return "+".join(dict.fromkeys(self.operations)) or "create"
