"""The plan of a join: which leaves meet, which spec versions do not, and what is done about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from phalanx.model.specs.partition_key import json_value
from phalanx.planning.joins.execution import Execution, execution
from phalanx.planning.joins.groups import Places, region
from phalanx.planning.joins.keys import JoinKey
from phalanx.planning.joins.kinds import HOWS, How
from phalanx.planning.joins.leaves import JoinedTable, JoinLeaf, VersionPair, paired
from phalanx.planning.pruning.scan_plan import counted, readable

_SHOWN_GROUPS = 20
_SHOWN_LEAVES = 6


@dataclass(frozen=True, slots=True)
class JoinGroup:
    """Leaves that are joined with each other, and with no others."""

    left: tuple[JoinLeaf, ...]
    right: tuple[JoinLeaf, ...]

    @property
    def bytes(self) -> int:
        """How many bytes its data files have."""
        return sum(leaf.bytes for leaf in (*self.left, *self.right))


@dataclass(frozen=True)
class JoinPlan:
    """How two tables are joined on equal columns, whatever the kind of join.

    Leaves without rows are in no plan. The same tables give the same plan.
    """

    left: JoinedTable
    right: JoinedTable
    on: tuple[JoinKey, ...]
    pairs: tuple[VersionPair, ...]

    @property
    def compatible(self) -> bool:
        """Whether the whole join goes without a shuffle."""
        return all(pair.compatible for pair in self.pairs)

    @property
    def reason(self) -> str:
        """Why some spec versions need a shuffle; empty if none does."""
        return "; ".join(
            f"left spec v{pair.left} and right spec v{pair.right}: {pair.reason}"
            for pair in self.pairs
            if not pair.compatible
        )

    @cached_property
    def _places(self) -> tuple[Places, ...]:
        """The groups of all pairs that are compatible, those without a partner too."""
        mine, theirs = ({each.spec.id for each in side.specs} for side in (self.left, self.right))
        return region(self.left, self.right, self.pairs, mine, theirs).groups

    @cached_property
    def groups(self) -> tuple[JoinGroup, ...]:
        """The leaves that meet, in groups that do not touch each other."""
        return tuple(
            JoinGroup(
                tuple(self.left.leaves[place] for place in group.left),
                tuple(self.right.leaves[place] for place in group.right),
            )
            for group in self._places
            if group.left and group.right
        )

    @cached_property
    def left_only(self) -> tuple[JoinLeaf, ...]:
        """The left leaves that surely have no partner."""
        unsure = {pair.left for pair in self.pairs if not pair.compatible}
        alone = (
            self.left.leaves[place]
            for group in self._places
            if not group.right
            for place in group.left
        )
        return tuple(leaf for leaf in alone if leaf.key.spec_id not in unsure)

    @cached_property
    def right_only(self) -> tuple[JoinLeaf, ...]:
        """The right leaves that surely have no partner."""
        unsure = {pair.right for pair in self.pairs if not pair.compatible}
        alone = (
            self.right.leaves[place]
            for group in self._places
            if not group.left
            for place in group.right
        )
        return tuple(leaf for leaf in alone if leaf.key.spec_id not in unsure)

    def execution(self, how: How, task_bytes: int | None = None) -> Execution:
        """The tasks and shuffles of one kind of join; see `join_tasks`."""
        return execution(self.left, self.right, self.pairs, how, task_bytes)

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON has it; versions as text, because they have 64 bits."""
        return {
            "left": _side_dict(self.left),
            "right": _side_dict(self.right),
            "on": [list(key.columns) for key in self.on],
            "compatible": self.compatible,
            "reason": self.reason or None,
            "pairs": [pair.to_dict() for pair in self.pairs],
            "groups": [
                {
                    "bytes": group.bytes,
                    "left": [_leaf_dict(self.left, leaf) for leaf in group.left],
                    "right": [_leaf_dict(self.right, leaf) for leaf in group.right],
                }
                for group in self.groups
            ],
            "left_only": [_leaf_dict(self.left, leaf) for leaf in self.left_only],
            "right_only": [_leaf_dict(self.right, leaf) for leaf in self.right_only],
            "executions": {how: _execution_dict(self.execution(how)) for how in HOWS},
        }

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"join {self.left.uri}"
        yield f"with {self.right.uri}"
        yield f"on   {', '.join(map(str, self.on))}"
        yield f"{_summary(self)}"
        for pair in self.pairs:
            yield ""
            yield from _pair_lines(self, pair)
        if self.groups or self.left_only or self.right_only:
            yield ""
        for group in self.groups[:_SHOWN_GROUPS]:
            left, right = _shown(self.left, group.left), _shown(self.right, group.right)
            yield f"group of {readable(group.bytes)}: {left} with {right}"
        if (hidden := len(self.groups) - _SHOWN_GROUPS) > 0:
            yield f"and {counted(hidden, 'group')} more"
        for name, side, leaves in (
            ("left", self.left, self.left_only),
            ("right", self.right, self.right_only),
        ):
            if leaves:
                yield f"{name} only: {_shown(side, leaves)}"
        yield ""
        for how in HOWS:
            yield f"{how}: {_execution_line(self.execution(how))}"


def planned(left: JoinedTable, right: JoinedTable, on: Sequence[JoinKey]) -> JoinPlan:
    """The plan of a join; it does not depend on the order in which leaves are given."""
    left, right = _in_order(left), _in_order(right)
    return JoinPlan(left, right, tuple(on), tuple(paired(left, right, on)))


def _in_order(side: JoinedTable) -> JoinedTable:
    """The spec versions that hold rows, in order; the newest one where none does."""
    specs = sorted(side.specs, key=lambda each: each.spec.id)
    held = [each.sorted() for each in specs if each.leaves]
    return JoinedTable(side.uri, side.schema, tuple(held or specs[-1:]))


def _side_dict(side: JoinedTable) -> dict[str, Any]:
    return {
        "uri": side.uri,
        "specs": [
            {
                "spec_id": each.spec.id,
                "partition_by": each.spec.label(side.schema),
                "partitions": len(each.leaves),
                "rows": sum(leaf.rows for leaf in each.leaves),
                "bytes": sum(leaf.bytes for leaf in each.leaves),
            }
            for each in side.specs
        ],
    }


def _leaf_dict(side: JoinedTable, leaf: JoinLeaf) -> dict[str, Any]:
    return {
        "spec_id": leaf.key.spec_id,
        "values": {name: json_value(value) for name, value in _named_values(side, leaf)},
        "location": leaf.location,
        "version": None if leaf.version is None else str(leaf.version),
        "residual": leaf.residual,
        "rows": leaf.rows,
        "bytes": leaf.bytes,
    }


def _execution_dict(found: Execution) -> dict[str, Any]:
    return {
        "tasks": len(found.tasks),
        "cut_groups": found.cut_groups,
        "grouped_bytes": sum(task.bytes for task in found.tasks),
        "shuffles": [
            {
                "left_specs": list(each.left_specs),
                "right_specs": list(each.right_specs),
                "bytes": each.bytes,
            }
            for each in found.shuffles
        ],
    }


def _named_values(side: JoinedTable, leaf: JoinLeaf) -> Iterator[tuple[str, Any]]:
    spec = next(each.spec for each in side.specs if each.spec.id == leaf.key.spec_id)
    return zip((field.field_id for field in spec.fields), leaf.key.values, strict=True)


def _shown(side: JoinedTable, leaves: Sequence[JoinLeaf]) -> str:
    shown = [
        " ".join(
            f"{name}={'NULL' if value is None else json_value(value)}"
            for name, value in _named_values(side, leaf)
        )
        or "the only partition"
        for leaf in leaves[:_SHOWN_LEAVES]
    ]
    hidden = len(leaves) - len(shown)
    return ", ".join(shown) + (f" and {hidden:,} more" if hidden > 0 else "")


def _summary(plan: JoinPlan) -> str:
    if plan.compatible:
        return f"{counted(len(plan.groups), 'group')}, no shuffle"
    shuffled = sum(not pair.compatible for pair in plan.pairs)
    which = "" if len(plan.pairs) == 1 else f" of {shuffled:,} of {len(plan.pairs):,} version pairs"
    return f"{counted(len(plan.groups), 'group')}, and a shuffle{which}"


def _pair_lines(plan: JoinPlan, pair: VersionPair) -> Iterator[str]:
    left, right = (
        next(each.spec.label(side.schema) for each in side.specs if each.spec.id == number)
        for side, number in ((plan.left, pair.left), (plan.right, pair.right))
    )
    yield (
        f"left spec v{pair.left} by {left or 'nothing'}, "
        f"right spec v{pair.right} by {right or 'nothing'}"
    )
    if not pair.compatible:
        yield f"  needs a shuffle: {pair.reason}"
        return
    for key in pair.keys:
        yield (
            f"  meets where {key.left_reduction.label(key.left.field_id)} = "
            f"{key.right_reduction.label(key.right.field_id)}"
        )
    yield f"  {counted(len(pair.meetings), 'common value')}"


def _execution_line(found: Execution) -> str:
    parts = []
    if found.tasks or not found.shuffles:
        size = readable(sum(task.bytes for task in found.tasks))
        parts.append(f"{counted(len(found.tasks), 'task')}, {size}")
    if found.cut_groups:
        parts.append(f"{counted(found.cut_groups, 'large group')} cut")
    for each in found.shuffles:
        mine, theirs = (
            ", ".join(f"v{number}" for number in numbers)
            for numbers in (each.left_specs, each.right_specs)
        )
        parts.append(f"a shuffle of left {mine} with right {theirs}, {readable(each.bytes)}")
    return "; ".join(parts)
