"""The plan of a join: which leaves are joined together, and which spec versions need a shuffle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from phalanx.arguments import JoinHow
from phalanx.model.specs.partition_key import to_json_value
from phalanx.planning.formatting import format_bytes, format_count
from phalanx.planning.joins.execution import Execution, plan_execution
from phalanx.planning.joins.groups import LeafPositions, build_region
from phalanx.planning.joins.keys import JoinKey
from phalanx.planning.joins.kinds import JOIN_HOWS
from phalanx.planning.joins.leaves import JoinedTable, JoinLeaf, SpecPair, pair_all_specs

_MAX_SHOWN_GROUPS = 20
_MAX_SHOWN_LEAVES = 6


@dataclass(frozen=True, slots=True)
class JoinGroup:
    """Partitions that are joined only with each other.

    Attributes:
        left: The partitions of the left table.
        right: The partitions of the right table.
    """

    left: tuple[JoinLeaf, ...]
    right: tuple[JoinLeaf, ...]

    @property
    def bytes(self) -> int:
        """The bytes of its data files."""
        return sum(leaf.bytes for leaf in (*self.left, *self.right))


@dataclass(frozen=True)
class JoinPlan:
    """The plan of a join of two tables on equal columns, for every kind of join.

    Empty partitions are left out. The same tables give the same plan.

    Attributes:
        left: The left table.
        right: The right table.
        on: The columns that are compared.
        pairs: How the partitions of each pair of spec versions match.
    """

    left: JoinedTable
    right: JoinedTable
    on: tuple[JoinKey, ...]
    pairs: tuple[SpecPair, ...]

    @property
    def compatible(self) -> bool:
        """Whether the whole join needs no shuffle."""
        return all(pair.compatible for pair in self.pairs)

    @property
    def reason(self) -> str:
        """Why some spec versions need a shuffle; empty if none do."""
        return "; ".join(
            f"left spec v{pair.left} and right spec v{pair.right}: {pair.reason}"
            for pair in self.pairs
            if not pair.compatible
        )

    @cached_property
    def _positions(self) -> tuple[LeafPositions, ...]:
        """The groups of all compatible pairs, including groups with leaves of one side only."""
        left_ids, right_ids = (
            {each.spec.id for each in side.specs} for side in (self.left, self.right)
        )
        return build_region(self.left, self.right, self.pairs, left_ids, right_ids).groups

    @cached_property
    def groups(self) -> tuple[JoinGroup, ...]:
        """The matching leaves, in independent groups."""
        return tuple(
            JoinGroup(
                tuple(self.left.leaves[position] for position in group.left),
                tuple(self.right.leaves[position] for position in group.right),
            )
            for group in self._positions
            if group.left and group.right
        )

    @cached_property
    def left_only(self) -> tuple[JoinLeaf, ...]:
        """The left leaves that certainly have no partner."""
        unsure = {pair.left for pair in self.pairs if not pair.compatible}
        alone = (
            self.left.leaves[position]
            for group in self._positions
            if not group.right
            for position in group.left
        )
        return tuple(leaf for leaf in alone if leaf.key.spec_id not in unsure)

    @cached_property
    def right_only(self) -> tuple[JoinLeaf, ...]:
        """The right leaves that certainly have no partner."""
        unsure = {pair.right for pair in self.pairs if not pair.compatible}
        alone = (
            self.right.leaves[position]
            for group in self._positions
            if not group.left
            for position in group.right
        )
        return tuple(leaf for leaf in alone if leaf.key.spec_id not in unsure)

    def plan_execution(self, how: JoinHow, task_bytes: int | None = None) -> Execution:
        """Internal: plan the tasks and shuffles of one kind of join."""
        return plan_execution(self.left, self.right, self.pairs, how, task_bytes)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan for JSON; versions are text, because they have 64 bits."""
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
            "executions": {how: _execution_dict(self.plan_execution(how)) for how in JOIN_HOWS},
        }

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"join {self.left.uri}"
        yield f"with {self.right.uri}"
        yield f"on   {', '.join(map(str, self.on))}"
        yield f"{_format_summary(self)}"
        for pair in self.pairs:
            yield ""
            yield from _pair_lines(self, pair)
        if self.groups or self.left_only or self.right_only:
            yield ""
        for group in self.groups[:_MAX_SHOWN_GROUPS]:
            left, right = (
                _format_leaves(self.left, group.left),
                _format_leaves(self.right, group.right),
            )
            yield f"group of {format_bytes(group.bytes)}: {left} with {right}"
        if (hidden := len(self.groups) - _MAX_SHOWN_GROUPS) > 0:
            yield f"and {format_count(hidden, 'group')} more"
        for name, side, leaves in (
            ("left", self.left, self.left_only),
            ("right", self.right, self.right_only),
        ):
            if leaves:
                yield f"{name} only: {_format_leaves(side, leaves)}"
        yield ""
        for how in JOIN_HOWS:
            yield f"{how}: {_format_execution(self.plan_execution(how))}"


def build_join_plan(left: JoinedTable, right: JoinedTable, on: Sequence[JoinKey]) -> JoinPlan:
    """Build the plan of a join. It does not depend on the order of the given leaves."""
    left, right = _sort_side(left), _sort_side(right)
    return JoinPlan(left, right, tuple(on), tuple(pair_all_specs(left, right, on)))


def _sort_side(side: JoinedTable) -> JoinedTable:
    """Sort the spec versions with rows; keep only the newest if none have rows."""
    specs = sorted(side.specs, key=lambda each: each.spec.id)
    non_empty = [each.sort() for each in specs if each.leaves]
    return JoinedTable(side.uri, side.schema, tuple(non_empty or specs[-1:]))


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
        "values": {name: to_json_value(value) for name, value in _named_values(side, leaf)},
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


def _format_leaves(side: JoinedTable, leaves: Sequence[JoinLeaf]) -> str:
    shown = [
        " ".join(
            f"{name}={'NULL' if value is None else to_json_value(value)}"
            for name, value in _named_values(side, leaf)
        )
        or "the only partition"
        for leaf in leaves[:_MAX_SHOWN_LEAVES]
    ]
    hidden = len(leaves) - len(shown)
    return ", ".join(shown) + (f" and {hidden:,} more" if hidden > 0 else "")


def _format_summary(plan: JoinPlan) -> str:
    if plan.compatible:
        return f"{format_count(len(plan.groups), 'group')}, no shuffle"
    shuffled = sum(not pair.compatible for pair in plan.pairs)
    which = "" if len(plan.pairs) == 1 else f" of {shuffled:,} of {len(plan.pairs):,} version pairs"
    return f"{format_count(len(plan.groups), 'group')}, and a shuffle{which}"


def _pair_lines(plan: JoinPlan, pair: SpecPair) -> Iterator[str]:
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
            f"  joins where {key.left_reduction.label(key.left.field_id)} = "
            f"{key.right_reduction.label(key.right.field_id)}"
        )
    yield f"  {format_count(len(pair.matches), 'common value')}"


def _format_execution(found: Execution) -> str:
    parts = []
    if found.tasks or not found.shuffles:
        size = format_bytes(sum(task.bytes for task in found.tasks))
        parts.append(f"{format_count(len(found.tasks), 'task')}, {size}")
    if found.cut_groups:
        parts.append(f"{format_count(found.cut_groups, 'large group')} cut")
    for each in found.shuffles:
        left_specs, right_specs = (
            ", ".join(f"v{number}" for number in numbers)
            for numbers in (each.left_specs, each.right_specs)
        )
        parts.append(
            f"a shuffle of left {left_specs} with right {right_specs}, {format_bytes(each.bytes)}"
        )
    return "; ".join(parts)
