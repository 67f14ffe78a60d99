"""A group of leaves as tasks: one, or several where the group is large.

A group is cut along the side whose rows are kept: each piece meets all its partners, so that it
knows which of its rows have none. The other side is read once for each piece.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from phalanx.planning.joins.groups import Places, Region
from phalanx.planning.joins.kinds import Kind, can_give_rows
from phalanx.planning.joins.leaves import JoinedTable, JoinLeaf
from phalanx.planning.splits import packed

# The other side of a cut group is read at most so many times the size of the group.
_MOST_REREAD = 4


@dataclass(frozen=True, slots=True)
class Piece:
    """A leaf, or some fragments of it."""

    leaf: JoinLeaf
    fragments: tuple[int, ...] | None = None

    @property
    def bytes(self) -> int:
        """How many bytes it has."""
        if self.fragments is None:
            return self.leaf.bytes
        wanted = set(self.fragments)
        return sum(each.bytes for each in self.leaf.fragments if each.id in wanted)


@dataclass(frozen=True, slots=True)
class JoinTask:
    """Leaves to be joined by one task: no row of the others belongs to its result."""

    kind: Kind
    left: tuple[Piece, ...]
    right: tuple[Piece, ...]

    @property
    def bytes(self) -> int:
        """How many bytes it reads."""
        return sum(piece.bytes for piece in (*self.left, *self.right))


@dataclass(frozen=True, slots=True)
class Cutter:
    """The two sides, and how many bytes a task should have."""

    left: JoinedTable
    right: JoinedTable
    task_bytes: int

    def tasks(self, kind: Kind, within: Region, group: Places) -> list[JoinTask]:
        """The tasks of one group: none if it gives no rows, several if it is twice too large."""
        if not can_give_rows(kind, group.left, group.right):
            return []
        whole = JoinTask(
            kind,
            tuple(Piece(self.left.leaves[place]) for place in group.left),
            tuple(Piece(self.right.leaves[place]) for place in group.right),
        )
        if whole.bytes <= 2 * self.task_bytes:
            return [whole]
        if kind == "full":
            kept = list(self._cut("left", within, group))
            rest = list(self._cut("right_anti", within, group))
            return [whole] if len(kept) <= 1 and len(rest) <= 1 else kept + rest
        found = list(self._cut(kind, within, group))
        return found if len(found) > 1 else [whole]

    def _cut(self, kind: Kind, within: Region, group: Places) -> Iterator[JoinTask]:
        """A group in pieces of one side, each with all that it meets on the other side."""
        mine, theirs = (
            sum(side.leaves[place].bytes for place in places)
            for side, places in ((self.left, group.left), (self.right, group.right))
        )
        by_left = kind in ("left", "semi", "anti") or (kind == "inner" and mine >= theirs)
        side, other = (self.left, self.right) if by_left else (self.right, self.left)
        places = group.left if by_left else group.right
        partners = within.partners[0 if by_left else 1]
        wanted = self.task_bytes
        while True:
            chunks = _chunks(side, places, wanted)
            met = [sorted({each for at, _ in chunk for each in partners[at]}) for chunk in chunks]
            reread = sum(other.leaves[place].bytes for chunk in met for place in chunk)
            if len(chunks) <= 1 or reread <= _MOST_REREAD * (mine + theirs):
                break
            wanted *= 2
        for chunk, meets in zip(chunks, met, strict=True):
            pieces = tuple(piece for _, piece in chunk)
            others = tuple(Piece(other.leaves[place]) for place in meets)
            yield JoinTask(kind, *((pieces, others) if by_left else (others, pieces)))


def _chunks(
    side: JoinedTable, places: Sequence[int], wanted: int
) -> list[tuple[tuple[int, Piece], ...]]:
    """Leaves, with their places, in chunks of about the wanted size; larger leaves are cut."""
    pieces = [(place, piece) for place in places for piece in _pieces(side.leaves[place], wanted)]
    return packed(pieces, lambda placed: placed[1].bytes, wanted)


def _pieces(leaf: JoinLeaf, wanted: int) -> Iterator[Piece]:
    """A leaf, by fragment if it is large."""
    if leaf.bytes <= wanted or len(leaf.fragments) == 1:
        yield Piece(leaf)
        return
    for some in packed(leaf.fragments, lambda fragment: fragment.bytes, wanted):
        yield Piece(leaf, tuple(fragment.id for fragment in some))
