"""Rows of any number, split by partition within a bounded buffer.

Rows come in any order. They are cut into runs; each run is sorted by partition, so that what
belongs together lies together. Runs beyond the buffer go to a temporary file, unless they are
in memory anyway. Only when the last row is in, and all rows have proved valid, are partitions
handed out to be written.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from phalanx.errors import SchemaMismatch
from phalanx.model.schema.grouping import Groups, positions
from phalanx.model.schema.rows import readable

BUFFER_BYTES = 512 << 20
# Rows are taken most quickly while a run stays near the processor's caches; but a run should
# not have so few rows of each partition that the work is all in the slicing.
_RUN_ROWS = 1 << 18
_MOST_RUN_ROWS = 1 << 22
_ROWS_OF_A_PARTITION = 256
_RUN_BYTES = 32 << 20
# Lance writes a few long batches faster than many short ones; but many leaves are written at once.
_WRITTEN_ROWS = 1 << 18
_WRITTEN_BYTES = 8 << 20


class _Run(Protocol):
    """Rows of several partitions."""

    def rows_of(self, place: int) -> pa.RecordBatch:
        """The rows of one of them."""


@dataclass(frozen=True, slots=True)
class _Ordered:
    """Rows as they came, the order that sorts them by partition, and how many each has."""

    rows: pa.RecordBatch
    order: pa.Array
    counts: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]

    def rows_of(self, place: int) -> pa.RecordBatch:
        return self.rows.take(self.order.slice(self.starts[place], self.counts[place]))

    def sorted(self) -> _Sorted:
        """The same run with its rows in that order."""
        rows = self.rows
        if len(self.counts) > 1:
            # Arrow's own allocator is slow with memory that it has not had before.
            rows = pc.take(rows, self.order, memory_pool=pa.system_memory_pool())
        return _Sorted(rows, self.counts, self.starts)


@dataclass(frozen=True, slots=True)
class _Sorted:
    rows: pa.RecordBatch
    counts: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]

    def rows_of(self, place: int) -> pa.RecordBatch:
        return readable(self.rows.slice(self.starts[place], self.counts[place]))


@dataclass(frozen=True, slots=True)
class _OnDisk:
    path: Path

    def rows_of(self, place: int) -> pa.RecordBatch:
        with pa.OSFile(str(self.path)) as file:
            return pa.ipc.open_file(file).get_batch(place)


@dataclass(slots=True)
class Shuffled:
    """Rows by partition: the distinct partition values, and for each of them its rows."""

    schema: pa.Schema
    keys: pa.Table
    _parts: list[list[tuple[_Run, int]]] = field(default_factory=list)
    _counts: list[int] = field(default_factory=list)
    rows: int = 0
    _folder: tempfile.TemporaryDirectory[str] | None = None

    def reader(self, place: int, columns: Sequence[str]) -> pa.RecordBatchReader:
        """The rows of one partition, in the order in which they came: some of their columns."""
        parts, names = self._parts[place], list(columns)
        batches = (run.rows_of(within).select(names) for run, within in parts)
        return pa.RecordBatchReader.from_batches(
            pa.schema([self.schema.field(name) for name in names]),
            for_writing(batches),
        )

    def count(self, place: int) -> int:
        """How many rows the partition has."""
        return self._counts[place]

    def close(self) -> None:
        """Remove what was put aside on disk."""
        self._parts.clear()
        if self._folder is not None:
            self._folder.cleanup()

    def __enter__(self) -> Shuffled:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def shuffle(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    keyed: Callable[[pa.RecordBatch], Groups],
    *,
    in_memory: bool,
) -> Shuffled:
    """Split the rows by partition; `in_memory` says that they are held by someone anyway."""
    shuffled = Shuffled(schema, keyed(_no_rows(schema)).keys)
    left = BUFFER_BYTES

    def run_rows() -> int:
        partitions: int = shuffled.keys.num_rows
        return max(_RUN_ROWS, min(partitions * _ROWS_OF_A_PARTITION, _MOST_RUN_ROWS))

    def ordered(rows: pa.RecordBatch) -> tuple[Groups, _Ordered | _Sorted]:
        groups, run = _ordered(rows, keyed)
        return groups, run.sorted() if left > 0 or not in_memory else run

    try:
        with ThreadPoolExecutor(2) as pool:
            runs = joined(batches, run_rows, min(_RUN_BYTES, BUFFER_BYTES))
            for groups, run in _ahead(ordered, runs, pool):
                left -= run.rows.nbytes
                keep = left >= 0 or in_memory
                _add(shuffled, run if keep else _put_aside(run, shuffled), groups, run.counts)
    except BaseException:
        shuffled.close()
        raise
    return shuffled


def _ahead(
    function: Callable[[pa.RecordBatch], tuple[Groups, _Ordered | _Sorted]],
    runs: Iterator[pa.RecordBatch],
    pool: ThreadPoolExecutor,
) -> Iterator[tuple[Groups, _Ordered | _Sorted]]:
    """The function's results in order; the next runs are being worked on meanwhile."""
    ahead: list[Future[tuple[Groups, _Ordered | _Sorted]]] = []
    for run in runs:
        ahead.append(pool.submit(function, run))
        if len(ahead) > 2:
            yield ahead.pop(0).result()
    for future in ahead:
        yield future.result()


def _ordered(
    rows: pa.RecordBatch, keyed: Callable[[pa.RecordBatch], Groups]
) -> tuple[Groups, _Ordered]:
    groups = keyed(rows)
    counts = np.bincount(groups.codes, minlength=groups.count)
    # NumPy sorts 16-bit numbers by radix.
    narrow = groups.codes.astype(np.uint16 if groups.count < 1 << 16 else np.uint32)
    order = pa.array(np.argsort(narrow, kind="stable").astype(np.int32))
    return groups, _Ordered(rows, order, counts, np.concatenate([[0], np.cumsum(counts)]))


def for_writing(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows in batches that Lance writes well."""
    return joined(batches, lambda: _WRITTEN_ROWS, _WRITTEN_BYTES)


def joined(
    batches: Iterable[pa.RecordBatch], rows_wanted: Callable[[], int], most_bytes: int
) -> Iterator[pa.RecordBatch]:
    """The rows in batches of about the given size, made of smaller ones or cut from larger."""
    gathered: list[pa.RecordBatch] = []
    rows = size = 0
    for whole in batches:
        most_rows = rows_wanted()
        for start in range(0, whole.num_rows, most_rows):
            batch = readable(whole.slice(start, most_rows))
            if gathered and (rows + batch.num_rows > most_rows or size + batch.nbytes > most_bytes):
                yield _one(gathered)
                gathered, rows, size = [], 0, 0
            gathered.append(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes
    if rows:
        yield _one(gathered)


def _one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    try:
        return pa.concat_batches(batches)
    except pa.ArrowInvalid as error:
        # Dictionaries with more values than their index type can number.
        raise SchemaMismatch(f"Cannot put the rows together: {error}") from None


def _put_aside(run: _Ordered | _Sorted, shuffled: Shuffled) -> _OnDisk:
    if shuffled._folder is None:
        shuffled._folder = tempfile.TemporaryDirectory(prefix="phalanx-")
    path = Path(shuffled._folder.name) / f"{shuffled.rows}.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, run.rows.schema) as writer:
        for place in range(len(run.counts)):
            writer.write_batch(run.rows_of(place))
    return _OnDisk(path)


def _add(shuffled: Shuffled, run: _Run, groups: Groups, counts: npt.NDArray[np.int64]) -> None:
    places = positions(groups.keys, shuffled.keys)
    fresh = np.flatnonzero(places < 0)
    places[fresh] = np.arange(len(fresh)) + shuffled.keys.num_rows
    if len(fresh):
        shuffled.keys = pa.concat_tables([shuffled.keys, groups.keys.take(pa.array(fresh))])
        shuffled._parts.extend([] for _ in fresh)
        shuffled._counts.extend(0 for _ in fresh)
    for within, (place, count) in enumerate(zip(places.tolist(), counts.tolist(), strict=True)):
        shuffled._parts[place].append((run, within))
        shuffled._counts[place] += count
    shuffled.rows += int(counts.sum())


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)
