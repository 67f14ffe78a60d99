"""A planned join as work: which leaves a task joins on its own, and which rows need a shuffle.

A pair of spec versions that is not compatible must not spoil the rest. What the rest is depends
on the kind of join: for an inner join every pair of versions stands for itself; a row that is
kept without a partner must see the whole other side, in one place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from phalanx.errors import PhalanxError
from phalanx.planning.join_groups import Places, Region, places_of, region
from phalanx.planning.join_leaves import JoinedTable, JoinLeaf, VersionPair

How: TypeAlias = Literal["inner", "left", "right", "full", "semi", "anti"]
# The right rows without a partner: what a left join lacks to be a full one.
Kind: TypeAlias = How | Literal["right_anti"]
HOWS: tuple[How, ...] = get_args(How)

TASK_BYTES = 128 << 20
_FEWEST_TASK_BYTES = 4 << 20
# A cut group has its other side read by every piece: at most so many times the group in all.
_MOST_REREAD = 4
_ALIASES: dict[str, How] = {
    **{name: name for name in HOWS},
    **dict.fromkeys(("leftouter", "left_outer"), "left"),
    **dict.fromkeys(("rightouter", "right_outer"), "right"),
    **dict.fromkeys(("outer", "fullouter", "full_outer"), "full"),
    **dict.fromkeys(("leftsemi", "left_semi"), "semi"),
    **dict.fromkeys(("leftanti", "left_anti"), "anti"),
}


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


def how_of(text: str) -> How:
    """The kind of join that a word of Spark's means."""
    found = _ALIASES.get(text.lower()) if isinstance(text, str) else None
    if found is None:
        raise PhalanxError(f"Cannot join with how={text!r}: expected one of {', '.join(HOWS)}.")
    return found


def execution(
    left: JoinedTable,
    right: JoinedTable,
    pairs: Sequence[VersionPair],
    how: How,
    task_bytes: int = TASK_BYTES,
    parallelism: int = 1,
) -> Execution:
    """The tasks and shuffles of a join.

    Small groups are put together into tasks of about `task_bytes`, or less where there would be
    fewer tasks than `parallelism`. A group of more than twice that is cut.
    """
    work = _Work(left, right, tuple(pairs))
    regions, shuffles = work.divided(how)
    total = sum(leaf.bytes for leaf in (*left.leaves, *right.leaves))
    wanted = min(task_bytes, max(_FEWEST_TASK_BYTES, total // max(parallelism, 1)))
    tasks: list[JoinTask] = []
    cut = 0
    for kind, each in regions:
        whole: list[JoinTask] = []
        for group in each.groups:
            pieces = list(work.tasks(kind, each, group, task_bytes))
            if len(pieces) > 1:
                cut += 1
                tasks += pieces
            else:
                whole += pieces
        tasks += _packed(whole, wanted)
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
        return regions, [each for each in found if _can_give_rows(kind, each.left, each.right)]

    def _shuffle(self, kind: Kind, mine: set[int], theirs: set[int]) -> Shuffle:
        return Shuffle(
            kind,
            tuple(sorted(mine)),
            tuple(sorted(theirs)),
            tuple(self.left.leaves[place] for place in places_of(self.left, mine)),
            tuple(self.right.leaves[place] for place in places_of(self.right, theirs)),
        )

    def tasks(
        self, kind: Kind, within: Region, group: Places, task_bytes: int
    ) -> Iterator[JoinTask]:
        """The tasks of one group: none if it gives no rows, several if it is large."""
        if not _can_give_rows(kind, group.left, group.right):
            return
        whole = JoinTask(
            kind,
            tuple(Piece(self.left.leaves[place]) for place in group.left),
            tuple(Piece(self.right.leaves[place]) for place in group.right),
        )
        if whole.bytes <= 2 * task_bytes:
            yield whole
            return
        if kind == "full":
            yield from self._cut("left", within, group, task_bytes)
            yield from self._cut("right_anti", within, group, task_bytes)
        else:
            yield from self._cut(kind, within, group, task_bytes)

    def _cut(
        self, kind: Kind, within: Region, group: Places, task_bytes: int
    ) -> Iterator[JoinTask]:
        """A group in pieces of one side, each with all that it meets on the other side."""
        sizes = [
            sum(side.leaves[place].bytes for place in places)
            for side, places in ((self.left, group.left), (self.right, group.right))
        ]
        by_left = kind in ("left", "semi", "anti") or (kind == "inner" and sizes[0] >= sizes[1])
        side, other = (self.left, self.right) if by_left else (self.right, self.left)
        places = group.left if by_left else group.right
        if not places:
            return
        partners = within.partners[0 if by_left else 1]
        wanted = task_bytes
        while True:
            chunks = list(_chunks(side, places, wanted))
            met = [sorted({each for at, _ in chunk for each in partners[at]}) for chunk in chunks]
            reread = sum(other.leaves[place].bytes for chunk in met for place in chunk)
            if len(chunks) == 1 or reread <= _MOST_REREAD * sum(sizes):
                break
            wanted *= 2
        for chunk, meets in zip(chunks, met, strict=True):
            pieces = tuple(piece for _, piece in chunk)
            others = tuple(Piece(other.leaves[place]) for place in meets)
            yield JoinTask(kind, *((pieces, others) if by_left else (others, pieces)))


def _can_give_rows(kind: Kind, left: Sequence[object], right: Sequence[object]) -> bool:
    match kind:
        case "inner" | "semi":
            return bool(left) and bool(right)
        case "left" | "anti":
            return bool(left)
        case "right" | "right_anti":
            return bool(right)
        case "full":
            return bool(left) or bool(right)


def _chunks(
    side: JoinedTable, places: Sequence[int], wanted: int
) -> Iterator[list[tuple[int, Piece]]]:
    """Leaves in chunks of about the wanted size; larger leaves are cut by fragment."""
    chunk: list[tuple[int, Piece]] = []
    size = 0
    for place in places:
        for piece in _pieces(side.leaves[place], wanted):
            if chunk and size + piece.bytes > wanted:
                yield chunk
                chunk, size = [], 0
            chunk.append((place, piece))
            size += piece.bytes
    if chunk:
        yield chunk


def _pieces(leaf: JoinLeaf, wanted: int) -> Iterator[Piece]:
    if leaf.bytes <= wanted or len(leaf.fragments) == 1:
        yield Piece(leaf)
        return
    ids: list[int] = []
    size = 0
    for fragment in leaf.fragments:
        if ids and size + fragment.bytes > wanted:
            yield Piece(leaf, tuple(ids))
            ids, size = [], 0
        ids.append(fragment.id)
        size += fragment.bytes
    yield Piece(leaf, tuple(ids))


def _packed(tasks: Sequence[JoinTask], wanted: int) -> Iterator[JoinTask]:
    """Tasks of one kind and region put together up to a size: each row still has its partners."""
    waiting: list[JoinTask] = []
    size = 0
    for task in tasks:
        if waiting and size + task.bytes > wanted:
            yield _one(waiting)
            waiting, size = [], 0
        waiting.append(task)
        size += task.bytes
    if waiting:
        yield _one(waiting)


def _one(tasks: Sequence[JoinTask]) -> JoinTask:
    return JoinTask(
        tasks[0].kind,
        tuple(piece for task in tasks for piece in task.left),
        tuple(piece for task in tasks for piece in task.right),
    )
