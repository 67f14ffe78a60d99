"""A join of two streams of rows in bounded memory.

The smaller side is held, the other one comes by in chunks, and DataFusion tells which rows have
equal keys. Where the smaller side is too large to be held, both are divided by a hash of their
keys until it is not. Rows that one single key has too many of are held block by block instead.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from phalanx.model.schema.rows import one_batch
from phalanx.planning.joins.kinds import Kind
from phalanx.storage.matching import Block, Flags
from phalanx.storage.streams.hash_join import JoinRows, divided

MEMORY = 512 << 20
LEFT, RIGHT = "left.", "right."
# The texts of one Arrow array have two gigabytes at most.
_MOST_HELD = 1 << 30
_CHUNK_BYTES = 8 << 20
_MOST_LEVELS = 4
# Dividing by a hash helps no more if a piece has kept so much of the whole.
_STUCK = 0.5
_OUTPUT_BYTES = 16 << 20
_FEWEST_ROWS, _MOST_ROWS = 64, 1 << 15


def joined_schema(left: JoinRows, right: JoinRows, kind: Kind) -> pa.Schema:
    """The columns of a join: left ones as `left.<name>`, then right ones as `right.<name>`."""
    fields: list[pa.Field] = []
    if kind != "right_anti":
        fields += [_field(LEFT, left.schema.field(name)) for name in left.columns]
    if kind not in ("semi", "anti"):
        fields += [_field(RIGHT, right.schema.field(name)) for name in right.columns]
    return pa.schema(fields)


def _field(prefix: str, field: pa.Field) -> pa.Field:
    return pa.field(prefix + field.name, field.type)


def joined(
    kind: Kind, left: JoinRows, right: JoinRows, memory: int = MEMORY
) -> Iterator[pa.RecordBatch]:
    """The rows of the join, with the columns of `joined_schema`, in any order.

    About `memory` bytes of the smaller side are held at once, and as many of the other.
    """
    with tempfile.TemporaryDirectory(prefix="phalanx-") as folder:
        held = max(1, min(memory, _MOST_HELD))
        yield from _Join(kind, held, Path(folder)).rows(left, right)


@dataclass(frozen=True, slots=True)
class _Join:
    kind: Kind
    memory: int
    folder: Path

    def rows(
        self, left: JoinRows, right: JoinRows, level: int = 0, stuck: bool = False
    ) -> Iterator[pa.RecordBatch]:
        holds_left = left.bytes < right.bytes
        held, other = (left, right) if holds_left else (right, left)
        pair = _Pair(self.kind, held, other, holds_left)
        batches = held.read()
        first = _taken(batches, self.memory)
        more = next(batches, None)
        if more is None:
            yield from pair.rows(iter([first]), is_one_block=True)
            return
        if stuck or level >= _MOST_LEVELS:
            blocks = self._blocks([*first, more], batches)
            yield from pair.rows(blocks, is_one_block=False)
            return
        everything = (batch for part in ([*first, more], batches) for batch in part)
        pieces = divided(held, everything, self.folder, level)
        first.clear()
        others = divided(other, other.read(), self.folder, level)
        total = max(1, sum(piece.bytes for piece in pieces))
        for mine, theirs in zip(pieces, others, strict=True):
            one, two = (mine, theirs) if holds_left else (theirs, mine)
            is_stuck = mine.bytes > _STUCK * total
            yield from self.rows(one, two, level + 1, is_stuck)

    def _blocks(
        self, first: list[pa.RecordBatch], rest: Iterator[pa.RecordBatch]
    ) -> Iterator[list[pa.RecordBatch]]:
        while first:
            yield first
            first = _taken(rest, self.memory)


def _taken(batches: Iterator[pa.RecordBatch], memory: int) -> list[pa.RecordBatch]:
    """The next batches of about so many bytes."""
    found: list[pa.RecordBatch] = []
    size = 0
    while size < memory and (batch := next(batches, None)) is not None:
        found.append(batch)
        size += batch.nbytes
    return found


@dataclass(frozen=True, slots=True)
class _Pair:
    """A side that is held, as a whole or block by block, and another that comes by."""

    kind: Kind
    held: JoinRows
    other: JoinRows
    holds_left: bool

    def rows(
        self, blocks: Iterable[list[pa.RecordBatch]], is_one_block: bool
    ) -> Iterator[pa.RecordBatch]:
        keeps_others = self._wanted(is_held=False) is not None
        # Which rows of the other side have had a partner in some block, in their order.
        seen = np.zeros(0, dtype=bool)
        for batches in blocks:
            block = Block.of(batches, self.held)
            if not block.rows.num_rows and not keeps_others:
                continue
            at = 0
            for chunk in self._chunks(block):
                met = np.zeros(chunk.num_rows, dtype=bool)
                yield from self._matches(block, chunk, met)
                if is_one_block:
                    yield from self._kept(chunk, met, is_held=False)
                elif keeps_others:
                    seen = np.append(seen, np.zeros(max(0, at + len(met) - len(seen)), dtype=bool))
                    seen[at : at + len(met)] |= met
                    at += len(met)
            yield from self._kept(block.rows, block.met, is_held=True)
        if keeps_others and not is_one_block:
            at = 0
            for batch in self.other.read():
                met = seen[at : at + batch.num_rows]
                yield from self._kept(batch, met, is_held=False)
                at += batch.num_rows

    def _chunks(self, block: Block) -> Iterator[pa.RecordBatch]:
        """The other side, in pieces no smaller than what is held: DataFusion reads both for each.

        Every block sees the same rows in the same order.
        """
        wanted = max(_CHUNK_BYTES, block.rows.nbytes)
        batches = self.other.read()
        while True:
            found = _taken(batches, wanted)
            if not found:
                return
            yield one_batch(found, self.other.schema)

    def _matches(self, block: Block, chunk: pa.RecordBatch, met: Flags) -> Iterator[pa.RecordBatch]:
        """Rows with partners, side by side; marks which rows these are."""
        if not block.rows.num_rows or not chunk.num_rows:
            return
        match self.kind:
            case "semi" | "anti" | "right_anti":
                if (self.kind == "right_anti") == self.holds_left:
                    for theirs in block.met_in(chunk):
                        met[theirs] = True
                else:
                    for mine in block.met_by(chunk):
                        block.met[mine] = True
            case _:
                most = _output_rows(block.rows, chunk)
                for mine, theirs in block.pairs_with(chunk):
                    block.met[mine] = True
                    met[theirs] = True
                    for start in range(0, len(mine), most):
                        some = slice(start, start + most)
                        yield self._side_by_side(
                            block.rows.take(pa.array(mine[some])),
                            chunk.take(pa.array(theirs[some])),
                        )

    def _kept(self, rows: pa.RecordBatch, met: Flags, is_held: bool) -> Iterator[pa.RecordBatch]:
        """The rows of a side that the join keeps for having a partner, or for having none."""
        wanted = self._wanted(is_held)
        if wanted is None:
            return
        places = np.flatnonzero(met == wanted)
        most = _output_rows(rows)
        for start in range(0, len(places), most):
            kept = rows.take(pa.array(places[start : start + most]))
            yield self._alone(kept, is_held)

    def _wanted(self, is_held: bool) -> bool | None:
        """Whether rows of a side are kept that have a partner (True), or none (False)."""
        is_left = is_held == self.holds_left
        match self.kind:
            case "semi":
                return True if is_left else None
            case "left" | "anti":
                return False if is_left else None
            case "right" | "right_anti":
                return None if is_left else False
            case "full":
                return False
            case "inner":
                return None

    def _side_by_side(self, held: pa.RecordBatch, other: pa.RecordBatch) -> pa.RecordBatch:
        left, right = (held, other) if self.holds_left else (other, held)
        return self._output(left, right, left.num_rows)

    def _alone(self, rows: pa.RecordBatch, is_held: bool) -> pa.RecordBatch:
        is_left = is_held == self.holds_left
        left, right = (rows, None) if is_left else (None, rows)
        return self._output(left, right, rows.num_rows)

    def _output(
        self, left: pa.RecordBatch | None, right: pa.RecordBatch | None, rows: int
    ) -> pa.RecordBatch:
        mine, theirs = (self.held, self.other) if self.holds_left else (self.other, self.held)
        schema = joined_schema(mine, theirs, self.kind)
        arrays = []
        for field in schema:
            side, name = (left, field.name.removeprefix(LEFT))
            if field.name.startswith(RIGHT):
                side, name = (right, field.name.removeprefix(RIGHT))
            arrays.append(pa.nulls(rows, field.type) if side is None else side.column(name))
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _output_rows(*sides: pa.RecordBatch) -> int:
    """How many rows of these make a batch of some megabytes."""
    width: int = sum(side.nbytes // max(side.num_rows, 1) for side in sides)
    return max(_FEWEST_ROWS, min(_OUTPUT_BYTES // max(width, 1), _MOST_ROWS))
