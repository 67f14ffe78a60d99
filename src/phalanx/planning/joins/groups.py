"""Group the leaves that have to be joined together: the connected components of a join."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property

from phalanx.planning.joins.leaves import JoinedTable, SpecPair


@dataclass(frozen=True, slots=True)
class LeafPositions:
    """Some leaves of each side, as positions in `JoinedTable.leaves`."""

    left: tuple[int, ...]
    right: tuple[int, ...]


@dataclass(frozen=True)
class Region:
    """Spec versions of both sides that are all compatible with each other, with their leaves."""

    left_specs: tuple[int, ...]
    right_specs: tuple[int, ...]
    left: tuple[int, ...]
    right: tuple[int, ...]
    pairs: tuple[SpecPair, ...]

    @cached_property
    def groups(self) -> tuple[LeafPositions, ...]:
        """The leaves in groups, such that no row has a partner in another group.

        Matching leaves are in one group. A leaf without a match is a group by itself. Groups are in
        the order of their left leaves; groups without left leaves are last.
        """
        found = _DisjointSets(len(self.left) + len(self.right))
        left = {position: number for number, position in enumerate(self.left)}
        right = {position: number for number, position in enumerate(self.right, len(self.left))}
        for pair in self.pairs:
            for leaf_match in pair.matches:
                first, *others = [
                    *(left[position] for position in leaf_match.left),
                    *(right[position] for position in leaf_match.right),
                ]
                for other in others:
                    found.unite(first, other)
        members: dict[int, tuple[list[int], list[int]]] = {}
        for position, number in left.items():
            members.setdefault(found.find_root(number), ([], []))[0].append(position)
        for position, number in right.items():
            members.setdefault(found.find_root(number), ([], []))[1].append(position)
        return tuple(
            LeafPositions(tuple(lefts), tuple(rights)) for lefts, rights in members.values()
        )

    @cached_property
    def partners(self) -> tuple[dict[int, set[int]], dict[int, set[int]]]:
        """The right leaves that match each left leaf, and the left leaves that match each right.

        This may be large, and is only needed to cut a group.
        """
        of_left: dict[int, set[int]] = {position: set() for position in self.left}
        of_right: dict[int, set[int]] = {position: set() for position in self.right}
        for pair in self.pairs:
            for leaf_match in pair.matches:
                for position in leaf_match.left:
                    of_left[position].update(leaf_match.right)
                for position in leaf_match.right:
                    of_right[position].update(leaf_match.left)
        return of_left, of_right


def build_region(
    left: JoinedTable,
    right: JoinedTable,
    pairs: Iterable[SpecPair],
    left_specs: Collection[int],
    right_specs: Collection[int],
) -> Region:
    """Build the region of these spec versions."""
    return Region(
        tuple(sorted(left_specs)),
        tuple(sorted(right_specs)),
        positions_of(left, left_specs),
        positions_of(right, right_specs),
        tuple(pair for pair in pairs if pair.left in left_specs and pair.right in right_specs),
    )


def positions_of(side: JoinedTable, specs: Collection[int]) -> tuple[int, ...]:
    """Return the positions of all leaves of some spec versions."""
    return tuple(
        position
        for each in side.specs
        if each.spec.id in specs
        for position in range(
            side.first_position(each.spec.id), side.first_position(each.spec.id) + len(each.leaves)
        )
    )


class _DisjointSets:
    """Disjoint sets of numbers; the root of a set is its smallest number."""

    def __init__(self, count: int) -> None:
        self._parents = list(range(count))

    def find_root(self, number: int) -> int:
        """Return the smallest number of the set."""
        parents = self._parents
        while parents[number] != number:
            parents[number] = parents[parents[number]]
            number = parents[number]
        return number

    def unite(self, one: int, other: int) -> None:
        """Merge two sets."""
        one, other = self.find_root(one), self.find_root(other)
        self._parents[max(one, other)] = min(one, other)
