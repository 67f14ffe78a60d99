"""Turn a planned join into work: tasks that join leaves on their own, and shuffles for the rest.

A pair of incompatible spec versions must not force a shuffle of all others. For an inner join every
pair of versions is independent. A row that is kept without a partner must be compared with the
whole other side in one task or shuffle. A large group is cut along the side whose rows are kept:
each piece is joined with all its partners, and the other side is read once for each piece.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from phalanx.arguments import JoinHow
from phalanx.planning.joins.groups import LeafPositions, Region, build_region, positions_of
from phalanx.planning.joins.kinds import JoinKind, can_produce_rows
from phalanx.planning.joins.leaves import JoinedTable, JoinLeaf, SpecPair
from phalanx.planning.splits import MAX_TASK_BYTES, choose_task_bytes, pack_in_tasks

# Cutting a group may read at most this many times the bytes of the group.
_MAX_REREAD_FACTOR = 4


@dataclass(frozen=True, slots=True)
class LeafPiece:
    """A leaf or some of its fragments."""

    leaf: JoinLeaf
    fragments: tuple[int, ...] | None = None

    @property
    def bytes(self) -> int:
        """The bytes of its data files."""
        if self.fragments is None:
            return self.leaf.bytes
        ids = set(self.fragments)
        return sum(each.bytes for each in self.leaf.fragments if each.id in ids)


@dataclass(frozen=True, slots=True)
class JoinTask:
    """Leaves that one task joins, independently of all other leaves."""

    kind: JoinKind
    left: tuple[LeafPiece, ...]
    right: tuple[LeafPiece, ...]

    @property
    def bytes(self) -> int:
        """The bytes that it reads."""
        return sum(piece.bytes for piece in (*self.left, *self.right))


@dataclass(frozen=True, slots=True)
class GroupCutter:
    """Cuts groups of leaves of two tables into tasks of about `task_bytes`."""

    left: JoinedTable
    right: JoinedTable
    task_bytes: int

    def cut_group(self, kind: JoinKind, within: Region, group: LeafPositions) -> list[JoinTask]:
        """Return the tasks of a group: none without a result, several if it is too large."""
        if not can_produce_rows(kind, group.left, group.right):
            return []
        whole = JoinTask(
            kind,
            tuple(LeafPiece(self.left.leaves[position]) for position in group.left),
            tuple(LeafPiece(self.right.leaves[position]) for position in group.right),
        )
        if whole.bytes <= 2 * self.task_bytes:
            return [whole]
        if kind == "full":
            kept = list(self._cut_one_side("left", within, group))
            rest = list(self._cut_one_side("right_anti", within, group))
            return [whole] if len(kept) <= 1 and len(rest) <= 1 else kept + rest
        found = list(self._cut_one_side(kind, within, group))
        return found if len(found) > 1 else [whole]

    def _cut_one_side(
        self, kind: JoinKind, within: Region, group: LeafPositions
    ) -> Iterator[JoinTask]:
        """Cut a group into pieces of one side, each with all its partners on the other side."""
        left_bytes, right_bytes = (
            sum(side.leaves[position].bytes for position in positions)
            for side, positions in ((self.left, group.left), (self.right, group.right))
        )
        by_left = kind in ("left", "semi", "anti") or (
            kind == "inner" and left_bytes >= right_bytes
        )
        side, other = (self.left, self.right) if by_left else (self.right, self.left)
        positions = group.left if by_left else group.right
        partners = within.partners[0 if by_left else 1]
        chunk_bytes = self.task_bytes
        while True:
            chunks = _pack_chunks(side, positions, chunk_bytes)
            met = [sorted({each for at, _ in chunk for each in partners[at]}) for chunk in chunks]
            reread = sum(other.leaves[position].bytes for chunk in met for position in chunk)
            if len(chunks) <= 1 or reread <= _MAX_REREAD_FACTOR * (left_bytes + right_bytes):
                break
            chunk_bytes *= 2
        for chunk, meets in zip(chunks, met, strict=True):
            pieces = tuple(piece for _, piece in chunk)
            others = tuple(LeafPiece(other.leaves[position]) for position in meets)
            yield JoinTask(kind, *((pieces, others) if by_left else (others, pieces)))


def _pack_chunks(
    side: JoinedTable, positions: Sequence[int], chunk_bytes: int
) -> list[tuple[tuple[int, LeafPiece], ...]]:
    """Pack leaves with their positions into chunks of about `chunk_bytes`; cut larger leaves."""
    pieces = [
        (position, piece)
        for position in positions
        for piece in _cut_leaf(side.leaves[position], chunk_bytes)
    ]
    return pack_in_tasks(pieces, lambda item: item[1].bytes, chunk_bytes)


def _cut_leaf(leaf: JoinLeaf, chunk_bytes: int) -> Iterator[LeafPiece]:
    """Yield the leaf, or its fragments in several pieces if it is large."""
    if leaf.bytes <= chunk_bytes or len(leaf.fragments) == 1:
        yield LeafPiece(leaf)
        return
    for some in pack_in_tasks(leaf.fragments, lambda fragment: fragment.bytes, chunk_bytes):
        yield LeafPiece(leaf, tuple(fragment.id for fragment in some))


@dataclass(frozen=True, slots=True)
class JoinShuffle:
    """Leaves of incompatible specs, which the engine joins by a shuffle."""

    kind: JoinKind
    left_specs: tuple[int, ...]
    right_specs: tuple[int, ...]
    left: tuple[JoinLeaf, ...]
    right: tuple[JoinLeaf, ...]

    @property
    def bytes(self) -> int:
        """The bytes that it reads."""
        return sum(leaf.bytes for leaf in (*self.left, *self.right))


@dataclass(frozen=True, slots=True)
class Execution:
    """The execution of a join of one kind: the union of the results of tasks and shuffles."""

    how: JoinHow
    tasks: tuple[JoinTask, ...]
    shuffles: tuple[JoinShuffle, ...]
    cut_groups: int = 0


def plan_execution(
    left: JoinedTable,
    right: JoinedTable,
    pairs: Sequence[SpecPair],
    how: JoinHow,
    task_bytes: int | None = None,
) -> Execution:
    """Plan the tasks and shuffles of a join.

    Small groups are packed into tasks of about `task_bytes`, by default as many as a cluster can
    use. A group of more than twice `task_bytes`, by default the maximum of a task, is cut.
    """
    regions, shuffles = _SpecDivider(left, right, tuple(pairs)).divide(how)
    target_bytes = choose_task_bytes(
        sum(leaf.bytes for leaf in (*left.leaves, *right.leaves)), task_bytes
    )
    cutter = GroupCutter(left, right, task_bytes or MAX_TASK_BYTES)
    tasks: list[JoinTask] = []
    cut = 0
    for kind, each in regions:
        whole: list[JoinTask] = []
        for group in each.groups:
            pieces = cutter.cut_group(kind, each, group)
            if len(pieces) > 1:
                cut += 1
                tasks += pieces
            else:
                whole += pieces
        # Merging tasks of one kind and region does not change which rows match.
        tasks += map(_merge_tasks, pack_in_tasks(whole, lambda task: task.bytes, target_bytes))
    return Execution(how, tuple(tasks), tuple(shuffles), cut)


@dataclass(frozen=True, slots=True)
class _SpecDivider:
    left: JoinedTable
    right: JoinedTable
    pairs: tuple[SpecPair, ...]

    def divide(self, how: JoinKind) -> tuple[list[tuple[JoinKind, Region]], list[JoinShuffle]]:
        """Return the spec versions to join leaf by leaf, and those that need a shuffle.

        Each row of the result comes from exactly one of them.
        """
        left_ids = [each.spec.id for each in self.left.specs if each.leaves]
        right_ids = [each.spec.id for each in self.right.specs if each.leaves]
        fits = {(pair.left, pair.right) for pair in self.pairs if pair.compatible}
        match how:
            case "inner":
                return self._divide_inner(left_ids, right_ids, fits)
            case "left" | "semi" | "anti":
                whole = {
                    one for one in left_ids if all((one, other) in fits for other in right_ids)
                }
                rest = set(left_ids) - whole
                return self._build_parts(how, [(whole, right_ids)], [(rest, right_ids)])
            case "right" | "right_anti":
                whole = {
                    other for other in right_ids if all((one, other) in fits for one in left_ids)
                }
                rest = set(right_ids) - whole
                return self._build_parts(how, [(left_ids, whole)], [(left_ids, rest)])
            case "full":
                if all((one, other) in fits for one in left_ids for other in right_ids):
                    return self._build_parts(how, [(left_ids, right_ids)], [])
                regions, shuffles = self.divide("left")
                more, others = self.divide("right_anti")
                if not any(each.left for _, each in regions) and not any(
                    each.right for _, each in more
                ):
                    # Every version needs a shuffle, so use one for all instead of two.
                    return self._build_parts(how, [], [(left_ids, right_ids)])
                return regions + more, shuffles + others

    def _divide_inner(
        self, left_ids: Sequence[int], right_ids: Sequence[int], fits: set[tuple[int, int]]
    ) -> tuple[list[tuple[JoinKind, Region]], list[JoinShuffle]]:
        """Treat each pair of versions alone, but combine left versions with the same partners."""
        alike: dict[frozenset[int], list[int]] = {}
        for one in left_ids:
            fitting = frozenset(other for other in right_ids if (one, other) in fits)
            alike.setdefault(fitting, []).append(one)
        return self._build_parts(
            "inner",
            [(ones, fitting) for fitting, ones in alike.items()],
            [(ones, set(right_ids) - fitting) for fitting, ones in alike.items()],
        )

    def _build_parts(
        self,
        kind: JoinKind,
        grouped: Iterable[tuple[Iterable[int], Iterable[int]]],
        shuffled: Iterable[tuple[Iterable[int], Iterable[int]]],
    ) -> tuple[list[tuple[JoinKind, Region]], list[JoinShuffle]]:
        regions = [
            (kind, build_region(self.left, self.right, self.pairs, set(left_ids), set(right_ids)))
            for left_ids, right_ids in grouped
        ]
        found = (
            self._build_shuffle(kind, set(left_ids), set(right_ids))
            for left_ids, right_ids in shuffled
        )
        return regions, [each for each in found if can_produce_rows(kind, each.left, each.right)]

    def _build_shuffle(
        self, kind: JoinKind, left_ids: set[int], right_ids: set[int]
    ) -> JoinShuffle:
        return JoinShuffle(
            kind,
            tuple(sorted(left_ids)),
            tuple(sorted(right_ids)),
            tuple(self.left.leaves[position] for position in positions_of(self.left, left_ids)),
            tuple(self.right.leaves[position] for position in positions_of(self.right, right_ids)),
        )


def _merge_tasks(tasks: Sequence[JoinTask]) -> JoinTask:
    return JoinTask(
        tasks[0].kind,
        tuple(piece for task in tasks for piece in task.left),
        tuple(piece for task in tasks for piece in task.right),
    )
