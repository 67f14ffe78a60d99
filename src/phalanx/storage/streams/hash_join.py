"""A hash join of two streams of rows in bounded memory.

The smaller side is the build side and is kept in memory. The other side, the probe side, is read in
chunks, and DataFusion finds the rows with equal keys. If the build side does not fit in memory,
both sides are divided by a hash of their keys, repeatedly if needed. If a single key has too many
rows for that, the build side is read block by block instead.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from datafusion import SessionConfig, SessionContext

from phalanx.model.murmur3 import murmur3_multi
from phalanx.model.schema.rows import combine_batches
from phalanx.planning.joins.kinds import JoinKind

JOIN_MEMORY = 512 << 20
LEFT_PREFIX, RIGHT_PREFIX = "left.", "right."
# The strings of one Arrow array take at most two gigabytes.
_MAX_MEMORY = 1 << 30
_CHUNK_BYTES = 8 << 20
_MAX_LEVELS = 4
# If one piece has this share of the bytes, dividing again would not help.
_SKEWED = 0.5
_OUTPUT_BYTES = 16 << 20
_MIN_OUTPUT_ROWS, _MAX_OUTPUT_ROWS = 64, 1 << 15
_Positions: TypeAlias = npt.NDArray[np.int64]
_Flags: TypeAlias = npt.NDArray[np.bool_]
_ROW = ".row"
_ROWS_AT_ONCE = 1 << 15
# The prefix of key columns; no column of a table has a dot in its name.
KEY_PREFIX = ".key"
_PIECES = 16
_NULL_PIECE = _PIECES
# Rows are written to each file in batches of about this size.
_BUFFER_BYTES = 1 << 20
_names = itertools.count()


@dataclass(frozen=True, slots=True)
class JoinInput:
    """The rows of one side of a join, which can be read several times in the same order.

    The last columns are the keys, in the form in which they are compared. `bytes` is an estimate.
    """

    schema: pa.Schema
    read: Callable[[], Iterator[pa.RecordBatch]]
    bytes: int

    @property
    def keys(self) -> list[str]:
        """The names of the key columns."""
        return [name for name in self.schema.names if name.startswith(KEY_PREFIX)]

    @property
    def columns(self) -> list[str]:
        """The names of the columns that are not keys."""
        return [name for name in self.schema.names if not name.startswith(KEY_PREFIX)]


def hash_join_schema(left: JoinInput, right: JoinInput, kind: JoinKind) -> pa.Schema:
    """Return the columns of a join: `left.<name>` first, then `right.<name>`."""
    fields: list[pa.Field] = []
    if kind != "right_anti":
        fields += [_prefix_field(LEFT_PREFIX, left.schema.field(name)) for name in left.columns]
    if kind not in ("semi", "anti"):
        fields += [_prefix_field(RIGHT_PREFIX, right.schema.field(name)) for name in right.columns]
    return pa.schema(fields)


def _prefix_field(prefix: str, field: pa.Field) -> pa.Field:
    return pa.field(prefix + field.name, field.type)


def hash_join(
    kind: JoinKind, left: JoinInput, right: JoinInput, memory: int = JOIN_MEMORY
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the join, with the columns of `hash_join_schema`, in any order.

    About `memory` bytes of the build side are in memory at once, and as many of the probe side.
    """
    with tempfile.TemporaryDirectory(prefix="phalanx-") as folder:
        limit = max(1, min(memory, _MAX_MEMORY))
        yield from _Join(kind, limit, Path(folder)).join(left, right)


@dataclass(frozen=True, slots=True)
class _Join:
    """A join in progress, with its memory limit and the folder of its spilled pieces."""

    kind: JoinKind
    memory: int
    folder: Path

    def join(
        self, left: JoinInput, right: JoinInput, level: int = 0, is_skewed: bool = False
    ) -> Iterator[pa.RecordBatch]:
        builds_left = left.bytes < right.bytes
        build, probe = (left, right) if builds_left else (right, left)
        pair = _BuildAndProbe(self.kind, build, probe, builds_left)
        batches = build.read()
        first = _take_batches(batches, self.memory)
        more = next(batches, None)
        if more is None:
            yield from pair.join(iter([first]), is_one_block=True)
            return
        if is_skewed or level >= _MAX_LEVELS:
            blocks = self._read_blocks([*first, more], batches)
            yield from pair.join(blocks, is_one_block=False)
            return
        all_batches = (batch for part in ([*first, more], batches) for batch in part)
        build_pieces = divide_rows(build, all_batches, self.folder, level)
        first.clear()
        probe_pieces = divide_rows(probe, probe.read(), self.folder, level)
        total = max(1, sum(piece.bytes for piece in build_pieces))
        for build_piece, probe_piece in zip(build_pieces, probe_pieces, strict=True):
            one, two = (build_piece, probe_piece) if builds_left else (probe_piece, build_piece)
            is_piece_skewed = build_piece.bytes > _SKEWED * total
            yield from self.join(one, two, level + 1, is_piece_skewed)

    def _read_blocks(
        self, first: list[pa.RecordBatch], rest: Iterator[pa.RecordBatch]
    ) -> Iterator[list[pa.RecordBatch]]:
        while first:
            yield first
            first = _take_batches(rest, self.memory)


@dataclass(frozen=True, slots=True)
class _BuildAndProbe:
    """A build side, read as a whole or block by block, and a probe side."""

    kind: JoinKind
    build: JoinInput
    probe: JoinInput
    builds_left: bool

    def join(
        self, blocks: Iterable[list[pa.RecordBatch]], is_one_block: bool
    ) -> Iterator[pa.RecordBatch]:
        keeps_probe = self._find_kept_flag(is_build=False) is not None
        # Flags of the probe side's rows that have a match in any block so far.
        probe_matched = np.zeros(0, dtype=bool)
        for batches in blocks:
            block = _Block.of(batches, self.build)
            if not block.rows.num_rows and not keeps_probe:
                continue
            at = 0
            for chunk in self._read_probe_chunks(block):
                matched = np.zeros(chunk.num_rows, dtype=bool)
                yield from self._join_matches(block, chunk, matched)
                if is_one_block:
                    yield from self._select_kept(chunk, matched, is_build=False)
                elif keeps_probe:
                    probe_matched = np.append(
                        probe_matched,
                        np.zeros(max(0, at + len(matched) - len(probe_matched)), dtype=bool),
                    )
                    probe_matched[at : at + len(matched)] |= matched
                    at += len(matched)
            yield from self._select_kept(block.rows, block.matched, is_build=True)
        if keeps_probe and not is_one_block:
            at = 0
            for batch in self.probe.read():
                matched = probe_matched[at : at + batch.num_rows]
                yield from self._select_kept(batch, matched, is_build=False)
                at += batch.num_rows

    def _read_probe_chunks(self, block: _Block) -> Iterator[pa.RecordBatch]:
        """Yield the probe side in chunks no smaller than the block: DataFusion reads both for each.

        Every block gets the same rows in the same order.
        """
        chunk_bytes = max(_CHUNK_BYTES, block.rows.nbytes)
        batches = self.probe.read()
        while True:
            found = _take_batches(batches, chunk_bytes)
            if not found:
                return
            yield combine_batches(found, self.probe.schema)

    def _join_matches(
        self, block: _Block, chunk: pa.RecordBatch, matched: _Flags
    ) -> Iterator[pa.RecordBatch]:
        """Yield the pairs of matching rows, and flag the rows that have a match."""
        if not block.rows.num_rows or not chunk.num_rows:
            return
        match self.kind:
            case "semi" | "anti" | "right_anti":
                if (self.kind == "right_anti") == self.builds_left:
                    for probe_rows in block.find_probe_matches(chunk):
                        matched[probe_rows] = True
                else:
                    for build_rows in block.find_build_matches(chunk):
                        block.matched[build_rows] = True
            case _:
                max_rows = _choose_output_rows(block.rows, chunk)
                for build_rows, probe_rows in block.find_pairs(chunk):
                    block.matched[build_rows] = True
                    matched[probe_rows] = True
                    for start in range(0, len(build_rows), max_rows):
                        some = slice(start, start + max_rows)
                        yield self._combine(
                            block.rows.take(pa.array(build_rows[some])),
                            chunk.take(pa.array(probe_rows[some])),
                        )

    def _select_kept(
        self, rows: pa.RecordBatch, matched: _Flags, is_build: bool
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one side that the join keeps because of their flag."""
        kept_flag = self._find_kept_flag(is_build)
        if kept_flag is None:
            return
        positions = np.flatnonzero(matched == kept_flag)
        max_rows = _choose_output_rows(rows)
        for start in range(0, len(positions), max_rows):
            kept = rows.take(pa.array(positions[start : start + max_rows]))
            yield self._combine_with_nulls(kept, is_build)

    def _find_kept_flag(self, is_build: bool) -> bool | None:
        """Return which rows of a side the join keeps alone: with a match (True) or without (False).

        None if it keeps none.
        """
        is_left = is_build == self.builds_left
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

    def _combine(self, build: pa.RecordBatch, probe: pa.RecordBatch) -> pa.RecordBatch:
        left, right = (build, probe) if self.builds_left else (probe, build)
        return self._build_output(left, right, left.num_rows)

    def _combine_with_nulls(self, rows: pa.RecordBatch, is_build: bool) -> pa.RecordBatch:
        is_left = is_build == self.builds_left
        left, right = (rows, None) if is_left else (None, rows)
        return self._build_output(left, right, rows.num_rows)

    def _build_output(
        self, left: pa.RecordBatch | None, right: pa.RecordBatch | None, rows: int
    ) -> pa.RecordBatch:
        left_input, right_input = (
            (self.build, self.probe) if self.builds_left else (self.probe, self.build)
        )
        schema = hash_join_schema(left_input, right_input, self.kind)
        arrays = []
        for field in schema:
            side, name = (left, field.name.removeprefix(LEFT_PREFIX))
            if field.name.startswith(RIGHT_PREFIX):
                side, name = (right, field.name.removeprefix(RIGHT_PREFIX))
            arrays.append(pa.nulls(rows, field.type) if side is None else side.column(name))
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


@dataclass(frozen=True, slots=True)
class _Block:
    """Rows of the build side, flags for those with a match, and their keys in DataFusion."""

    rows: pa.RecordBatch
    matched: _Flags
    keys: tuple[str, ...]
    session: SessionContext

    @classmethod
    def of(cls, batches: list[pa.RecordBatch], side: JoinInput) -> _Block:
        """Build a block of the batches. Empties the list, so that rows are not in memory twice."""
        rows = combine_batches(batches, side.schema)
        batches.clear()
        session = SessionContext(
            SessionConfig(
                {
                    "datafusion.execution.target_partitions": "1",
                    "datafusion.execution.batch_size": str(_ROWS_AT_ONCE),
                }
            )
        )
        block = cls(rows, np.zeros(rows.num_rows, dtype=bool), tuple(side.keys), session)
        session.register_record_batches("build", [[block._keys_with_positions(rows)]])
        return block

    def find_pairs(self, chunk: pa.RecordBatch) -> Iterator[tuple[_Positions, _Positions]]:
        """Yield the positions of build rows and probe rows that have equal keys."""
        found = self._query(
            f'SELECT build."{_ROW}", probe."{_ROW}" FROM build JOIN probe ON {self._condition}',
            chunk,
        )
        return ((build_rows, probe_rows) for build_rows, probe_rows in found)

    def find_probe_matches(self, chunk: pa.RecordBatch) -> Iterator[_Positions]:
        """Yield the positions of probe rows that have a match in the block."""
        return self._find_matched("probe", "build", chunk)

    def find_build_matches(self, chunk: pa.RecordBatch) -> Iterator[_Positions]:
        """Yield the positions of build rows that have a match in the chunk."""
        return self._find_matched("build", "probe", chunk)

    def _find_matched(self, kept: str, seen: str, chunk: pa.RecordBatch) -> Iterator[_Positions]:
        # DISTINCT, because DataFusion looks at all pairs, and a frequent key has too many.
        keys = ", ".join(f'"{key}"' for key in self.keys)
        found = self._query(
            f'SELECT {kept}."{_ROW}" FROM {kept} '
            f"LEFT SEMI JOIN (SELECT DISTINCT {keys} FROM {seen}) AS {seen} ON {self._condition}",
            chunk,
        )
        return (positions for (positions,) in found)

    @property
    def _condition(self) -> str:
        return " AND ".join(f'build."{key}" = probe."{key}"' for key in self.keys)

    def _query(self, query: str, chunk: pa.RecordBatch) -> Iterator[tuple[_Positions, ...]]:
        self.session.register_record_batches("probe", [[self._keys_with_positions(chunk)]])
        try:
            for batch in self.session.sql(query).execute_stream():
                yield tuple(column.to_numpy() for column in batch.to_pyarrow().columns)
        finally:
            self.session.deregister_table("probe")

    def _keys_with_positions(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the keys of the rows and their positions."""
        positions = pa.array(np.arange(rows.num_rows, dtype=np.int64))
        return pa.RecordBatch.from_arrays(
            [*(rows.column(key) for key in self.keys), positions], names=[*self.keys, _ROW]
        )


def _take_batches(batches: Iterator[pa.RecordBatch], memory: int) -> list[pa.RecordBatch]:
    """Take the next batches, of about this many bytes together."""
    found: list[pa.RecordBatch] = []
    size = 0
    while size < memory and (batch := next(batches, None)) is not None:
        found.append(batch)
        size += batch.nbytes
    return found


def _choose_output_rows(*sides: pa.RecordBatch) -> int:
    """Return how many rows make a batch of some megabytes."""
    width: int = sum(side.nbytes // max(side.num_rows, 1) for side in sides)
    return max(_MIN_OUTPUT_ROWS, min(_OUTPUT_BYTES // max(width, 1), _MAX_OUTPUT_ROWS))


def divide_rows(
    rows: JoinInput, batches: Iterable[pa.RecordBatch], folder: Path, level: int
) -> list[JoinInput]:
    """Divide the batches into pieces on disk: equal keys are in one piece, NULL keys in the last.

    Each level divides the pieces of the level above differently. `batches` may be a part of the
    rows only.
    """
    paths = [folder / f"{next(_names)}.arrow" for _ in range(_PIECES + 1)]
    waiting: list[list[pa.RecordBatch]] = [[] for _ in paths]
    waiting_bytes = [0] * len(paths)
    sizes = [0] * len(paths)
    with ExitStack() as stack:
        writers: dict[int, pa.RecordBatchStreamWriter] = {}

        def flush(piece: int) -> None:
            if piece not in writers:
                file = stack.enter_context(pa.OSFile(str(paths[piece]), "wb"))
                # A stream, unlike a file, may change its dictionaries.
                writers[piece] = stack.enter_context(pa.ipc.new_stream(file, rows.schema))
            for part in pa.Table.from_batches(waiting[piece]).combine_chunks().to_batches():
                writers[piece].write_batch(part)
            waiting[piece].clear()
            waiting_bytes[piece] = 0

        for batch in batches:
            for piece, part in _split_batch(batch, rows.keys, level):
                waiting[piece].append(part)
                waiting_bytes[piece] += part.nbytes
                sizes[piece] += part.nbytes
                if waiting_bytes[piece] >= _BUFFER_BYTES:
                    flush(piece)
        for piece, parts in enumerate(waiting):
            if parts:
                flush(piece)
    return [
        JoinInput(rows.schema, _reader(path), size) for path, size in zip(paths, sizes, strict=True)
    ]


def _split_batch(
    batch: pa.RecordBatch, keys: Sequence[str], level: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of a batch by piece."""
    codes = _hash_to_pieces([batch.column(name) for name in keys], level)
    order = np.argsort(codes, kind="stable")
    counts = np.bincount(codes, minlength=_PIECES + 1)
    ends = np.cumsum(counts)
    for piece in np.flatnonzero(counts).tolist():
        # A slice would keep the whole batch in memory while it waits for more rows.
        yield piece, batch.take(pa.array(order[ends[piece] - counts[piece] : ends[piece]]))


def _hash_to_pieces(keys: Sequence[pa.Array], level: int) -> npt.NDArray[np.uint8]:
    """Return the piece of each row, from hash bits that buckets and other levels do not use."""
    hashes = murmur3_multi(*keys).fill_null(0).to_numpy(zero_copy_only=False)
    mixed = hashes.astype(np.int64).view(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    for _ in range(level + 1):
        mixed = (mixed ^ (mixed >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    codes: npt.NDArray[np.uint8] = ((mixed >> np.uint64(48)) % np.uint64(_PIECES)).astype(np.uint8)
    is_null = np.zeros(len(codes), dtype=bool)
    for key in keys:
        if key.null_count:
            is_null |= pc.is_null(key).to_numpy(zero_copy_only=False)
    codes[is_null] = _NULL_PIECE
    return codes


def _reader(path: Path) -> Callable[[], Iterator[pa.RecordBatch]]:
    def read() -> Iterator[pa.RecordBatch]:
        if path.exists():
            with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as reader:
                yield from reader

    return read
