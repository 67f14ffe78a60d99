"""Rows that do not fit in memory: in temporary files, those with equal keys in one of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from phalanx.model.murmur3 import murmur3_multi

# How the names of key columns begin; no column of a table has a dot in its name.
KEY = ".key"
_PIECES = 16
_NULLS = _PIECES
# Each file gets its rows in batches of about this size.
_BUFFER_BYTES = 1 << 20
_names = itertools.count()


@dataclass(frozen=True, slots=True)
class JoinRows:
    """The rows of one side of a join, which can be read more than once, in the same order.

    Their last columns are the keys, in the form in which they are compared. `bytes` is a guess.
    """

    schema: pa.Schema
    read: Callable[[], Iterator[pa.RecordBatch]]
    bytes: int

    @property
    def keys(self) -> list[str]:
        """The names of the key columns."""
        return [name for name in self.schema.names if name.startswith(KEY)]

    @property
    def columns(self) -> list[str]:
        """The names of the columns that are not keys."""
        return [name for name in self.schema.names if not name.startswith(KEY)]


def divided(
    rows: JoinRows, batches: Iterable[pa.RecordBatch], folder: Path, level: int
) -> list[JoinRows]:
    """The batches in pieces, on disk: equal keys are in one piece, NULL keys all in the last.

    Another level divides what one level has put together. Give the batches only: they need not
    be all that the rows would read.
    """
    paths = [folder / f"{next(_names)}.arrow" for _ in range(_PIECES + 1)]
    waiting: list[list[pa.RecordBatch]] = [[] for _ in paths]
    held = [0] * len(paths)
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
            held[piece] = 0

        for batch in batches:
            for piece, part in _parts(batch, rows.keys, level):
                waiting[piece].append(part)
                held[piece] += part.nbytes
                sizes[piece] += part.nbytes
                if held[piece] >= _BUFFER_BYTES:
                    flush(piece)
        for piece, parts in enumerate(waiting):
            if parts:
                flush(piece)
    return [
        JoinRows(rows.schema, _reader(path), size) for path, size in zip(paths, sizes, strict=True)
    ]


def _reader(path: Path) -> Callable[[], Iterator[pa.RecordBatch]]:
    def read() -> Iterator[pa.RecordBatch]:
        if path.exists():
            with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as reader:
                yield from reader

    return read


def _parts(
    batch: pa.RecordBatch, keys: Sequence[str], level: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of a batch by piece."""
    codes = _codes([batch.column(name) for name in keys], level)
    order = np.argsort(codes, kind="stable")
    counts = np.bincount(codes, minlength=_PIECES + 1)
    ends = np.cumsum(counts)
    for piece in np.flatnonzero(counts).tolist():
        # A slice would keep the whole batch in memory while it waits for more rows.
        yield piece, batch.take(pa.array(order[ends[piece] - counts[piece] : ends[piece]]))


def _codes(keys: Sequence[pa.Array], level: int) -> npt.NDArray[np.uint8]:
    """The piece of every row: from bits of a hash that neither a bucket nor a level above uses."""
    hashes = murmur3_multi(*keys).fill_null(0).to_numpy(zero_copy_only=False)
    mixed = hashes.astype(np.int64).view(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    for _ in range(level + 1):
        mixed = (mixed ^ (mixed >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    codes: npt.NDArray[np.uint8] = ((mixed >> np.uint64(48)) % np.uint64(_PIECES)).astype(np.uint8)
    is_null = np.zeros(len(codes), dtype=bool)
    for key in keys:
        if key.null_count:
            is_null |= pc.is_null(key).to_numpy(zero_copy_only=False)
    codes[is_null] = _NULLS
    return codes
