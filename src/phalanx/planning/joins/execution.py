"""A planned join as work: which leaves a task joins on its own, and which rows need a shuffle.

A pair of spec versions that is not compatible must not spoil the rest. What the rest is depends
on the kind of join: for an inner join every pair of versions stands for itself; a row that is
kept without a partner must see the whole other side, in one place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from phalanx.planning.join_cuts import Cutter, JoinTask
from phalanx.planning.joins.groups import Region, places_of, region
from phalanx.planning.joins.kinds import How, Kind, can_give_rows
from phalanx.planning.joins.leaves import JoinedTable, JoinLeaf, VersionPair
from phalanx.planning.splits import MOST_BYTES, packed, split_size


@dataclass(frozen=True, slots=True)
class Shuffle:
    """Leaves that do not meet: the engine has to bring their rows together."""

    kind: Kind
    left_specs: tuple[int, ...]
    right_specs: tuple[int, ...]
    left: tuple[JoinLeaf, ...]
    right: tuple[JoinLeaf, ...]

    @property
    def bytes(self) -> int:
        """How many bytes it reads."""
        return sum(leaf.bytes for leaf in (*self.left, *self.right))


@dataclass(frozen=True, slots=True)
class Execution:
    """How a join of one kind is run: the union of what tasks and shuffles give."""

    how: How
    tasks: tuple[JoinTask, ...]
    shuffles: tuple[Shuffle, ...]
    cut_groups: int = 0


def execution(
    left: JoinedTable,
    right: JoinedTable,
    pairs: Sequence[VersionPair],
    how: How,
    task_bytes: int | None = None,
) -> Execution:
    """The tasks and shuffles of a join.

    Small groups are put together into tasks of about `task_bytes`, by default as many as a
    cluster can use. A group of more than twice that, and more than a task should have, is cut.
    """
    regions, shuffles = _Work(left, right, tuple(pairs)).divided(how)
    wanted = split_size(sum(leaf.bytes for leaf in (*left.leaves, *right.leaves)), task_bytes)
    cutter = Cutter(left, right, task_bytes or MOST_BYTES)
    tasks: list[JoinTask] = []
    cut = 0
    for kind, each in regions:
        whole: list[JoinTask] = []
        for group in each.groups:
            pieces = cutter.tasks(kind, each, group)
            if len(pieces) > 1:
                cut += 1
                tasks += pieces
            else:
                whole += pieces
        # Tasks of one kind and region can be one: each row still has its partners, and no others.
        tasks += map(_one, packed(whole, lambda task: task.bytes, wanted))
    return Execution(how, tuple(tasks), tuple(shuffles), cut)


@dataclass(frozen=True, slots=True)
class _Work:
    left: JoinedTable
    right: JoinedTable
    pairs: tuple[VersionPair, ...]

    def divided(self, how: Kind) -> tuple[list[tuple[Kind, Region]], list[Shuffle]]:
        """The versions that are joined leaf by leaf, and those that need a shuffle.

        Each row that the join makes or keeps comes from exactly one of them.
        """
        mine = [each.spec.id for each in self.left.specs if each.leaves]
        theirs = [each.spec.id for each in self.right.specs if each.leaves]
        fits = {(pair.left, pair.right) for pair in self.pairs if pair.compatible}
        match how:
            case "inner":
                return self._divided_pairs(mine, theirs, fits)
            case "left" | "semi" | "anti":
                whole = {one for one in mine if all((one, other) in fits for other in theirs)}
                rest = set(mine) - whole
                return self._parts(how, [(whole, theirs)], [(rest, theirs)])
            case "right" | "right_anti":
                whole = {other for other in theirs if all((one, other) in fits for one in mine)}
                rest = set(theirs) - whole
                return self._parts(how, [(mine, whole)], [(mine, rest)])
            case "full":
                if all((one, other) in fits for one in mine for other in theirs):
                    return self._parts(how, [(mine, theirs)], [])
                regions, shuffles = self.divided("left")
                more, others = self.divided("right_anti")
                if not any(each.left for _, each in regions) and not any(
                    each.right for _, each in more
                ):
                    # No version can do without a shuffle: one of all is less than two.
                    return self._parts(how, [], [(mine, theirs)])
                return regions + more, shuffles + others

    def _divided_pairs(
        self, mine: Sequence[int], theirs: Sequence[int], fits: set[tuple[int, int]]
    ) -> tuple[list[tuple[Kind, Region]], list[Shuffle]]:
        """Each pair of versions stands for itself; left versions that fit alike go together."""
        alike: dict[frozenset[int], list[int]] = {}
        for one in mine:
            fitting = frozenset(other for other in theirs if (one, other) in fits)
            alike.setdefault(fitting, []).append(one)
        return self._parts(
            "inner",
            [(ones, fitting) for fitting, ones in alike.items()],
            [(ones, set(theirs) - fitting) for fitting, ones in alike.items()],
        )

    def _parts(
        self,
        kind: Kind,
        grouped: Iterable[tuple[Iterable[int], Iterable[int]]],
        shuffled: Iterable[tuple[Iterable[int], Iterable[int]]],
    ) -> tuple[list[tuple[Kind, Region]], list[Shuffle]]:
        regions = [
            (kind, region(self.left, self.right, self.pairs, set(mine), set(theirs)))
            for mine, theirs in grouped
        ]
        found = (self._shuffle(kind, set(mine), set(theirs)) for mine, theirs in shuffled)
        return regions, [each for each in found if can_give_rows(kind, each.left, each.right)]

    def _shuffle(self, kind: Kind, mine: set[int], theirs: set[int]) -> Shuffle:
        return Shuffle(
            kind,
            tuple(sorted(mine)),
            tuple(sorted(theirs)),
            tuple(self.left.leaves[place] for place in places_of(self.left, mine)),
            tuple(self.right.leaves[place] for place in places_of(self.right, theirs)),
        )


def _one(tasks: Sequence[JoinTask]) -> JoinTask:
    return JoinTask(
        tasks[0].kind,
        tuple(piece for task in tasks for piece in task.left),
        tuple(piece for task in tasks for piece in task.right),
    )
