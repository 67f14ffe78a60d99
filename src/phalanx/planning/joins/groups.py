"""Leaves that have to be joined together: the parts of a join that do not touch each other."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property

from phalanx.planning.joins.leaves import JoinedTable, VersionPair


@dataclass(frozen=True, slots=True)
class Places:
    """Some leaves of each side, by their places."""

    left: tuple[int, ...]
    right: tuple[int, ...]


@dataclass(frozen=True)
class Region:
    """Spec versions of both sides that are all compatible with each other, and all their leaves."""

    left_specs: tuple[int, ...]
    right_specs: tuple[int, ...]
    left: tuple[int, ...]
    right: tuple[int, ...]
    pairs: tuple[VersionPair, ...]

    @cached_property
    def groups(self) -> tuple[Places, ...]:
        """The leaves in groups, such that no row has a partner in another group.

        Leaves that meet are in one group. A leaf that meets none is a group by itself. The order
        is that of the left leaves; groups without any come last.
        """
        found = _Sets(len(self.left) + len(self.right))
        left = {place: number for number, place in enumerate(self.left)}
        right = {place: number for number, place in enumerate(self.right, len(self.left))}
        for pair in self.pairs:
            for meeting in pair.meetings:
                first, *others = [
                    *(left[place] for place in meeting.left),
                    *(right[place] for place in meeting.right),
                ]
                for other in others:
                    found.unite(first, other)
        members: dict[int, tuple[list[int], list[int]]] = {}
        for place, number in left.items():
            members.setdefault(found.root(number), ([], []))[0].append(place)
        for place, number in right.items():
            members.setdefault(found.root(number), ([], []))[1].append(place)
        return tuple(Places(tuple(mine), tuple(theirs)) for mine, theirs in members.values())

    @cached_property
    def partners(self) -> tuple[dict[int, set[int]], dict[int, set[int]]]:
        """The right leaves that each left leaf meets, and the left ones that each right one does.

        Where the leaves of a meeting are many, this is large: it is asked for to cut a group.
        """
        of_left: dict[int, set[int]] = {place: set() for place in self.left}
        of_right: dict[int, set[int]] = {place: set() for place in self.right}
        for pair in self.pairs:
            for meeting in pair.meetings:
                for place in meeting.left:
                    of_left[place].update(meeting.right)
                for place in meeting.right:
                    of_right[place].update(meeting.left)
        return of_left, of_right


def region(
    left: JoinedTable,
    right: JoinedTable,
    pairs: Iterable[VersionPair],
    left_specs: Collection[int],
    right_specs: Collection[int],
) -> Region:
    """The leaves of these spec versions."""
    return Region(
        tuple(sorted(left_specs)),
        tuple(sorted(right_specs)),
        places_of(left, left_specs),
        places_of(right, right_specs),
        tuple(pair for pair in pairs if pair.left in left_specs and pair.right in right_specs),
    )


def places_of(side: JoinedTable, specs: Collection[int]) -> tuple[int, ...]:
    """The places of all leaves of some spec versions."""
    return tuple(
        place
        for each in side.specs
        if each.spec.id in specs
        for place in range(
            side.first_of(each.spec.id), side.first_of(each.spec.id) + len(each.leaves)
        )
    )


class _Sets:
    """Numbers in disjoint sets, each with its smallest number as the root."""

    def __init__(self, count: int) -> None:
        self._parents = list(range(count))

    def root(self, number: int) -> int:
        """The smallest number of the set."""
        parents = self._parents
        while parents[number] != number:
            parents[number] = parents[parents[number]]
            number = parents[number]
        return number

    def unite(self, one: int, other: int) -> None:
        """Make one set of two."""
        one, other = self.root(one), self.root(other)
        self._parents[max(one, other)] = min(one, other)
