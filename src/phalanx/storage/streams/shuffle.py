"""A shuffle: rows in any number and order, split by partition within a bounded buffer.

Rows are cut into runs, and each run is sorted by partition. Runs beyond the buffer go to a
temporary file, unless the rows are in memory anyway. Partitions can be read only after the last row
has arrived and all rows are known to be valid.
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
from phalanx.model.schema.grouping import Groups, find_positions
from phalanx.model.schema.rows import make_readable

BUFFER_BYTES = 512 << 20
# Small runs stay in the processor's caches. But with too few rows of each partition, slicing
# takes most of the time.
_RUN_ROWS = 1 << 18
_MAX_RUN_ROWS = 1 << 22
_ROWS_PER_PARTITION = 256
_RUN_BYTES = 32 << 20
# Lance writes few long batches faster than many short ones, but many leaves are written at once.
_WRITTEN_ROWS = 1 << 18
_WRITTEN_BYTES = 8 << 20


class _Run(Protocol):
    """Rows of several partitions."""

    def rows_of(self, position: int) -> pa.RecordBatch:
        """Return the rows of the partition at this position in the run."""


@dataclass(frozen=True, slots=True)
class _UnsortedRun:
    """Rows in their original order, the order that sorts them by partition, and counts."""

    rows: pa.RecordBatch
    order: pa.Array
    counts: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]

    def rows_of(self, position: int) -> pa.RecordBatch:
        return self.rows.take(self.order.slice(self.starts[position], self.counts[position]))

    def sort(self) -> _SortedRun:
        """Return the run with its rows sorted."""
        rows = self.rows
        if len(self.counts) > 1:
            # Arrow's default allocator is slow with fresh memory.
            rows = pc.take(rows, self.order, memory_pool=pa.system_memory_pool())
        return _SortedRun(rows, self.counts, self.starts)


@dataclass(frozen=True, slots=True)
class _SortedRun:
    """Rows sorted by partition."""

    rows: pa.RecordBatch
    counts: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]

    def rows_of(self, position: int) -> pa.RecordBatch:
        return make_readable(self.rows.slice(self.starts[position], self.counts[position]))


@dataclass(frozen=True, slots=True)
class _SpilledRun:
    """Rows in a temporary file, one batch for each partition."""

    path: Path

    def rows_of(self, position: int) -> pa.RecordBatch:
        with pa.OSFile(str(self.path)) as file:
            return pa.ipc.open_file(file).get_batch(position)


@dataclass(slots=True)
class ShuffledRows:
    """Rows by partition: the distinct partition keys, and the rows of each."""

    schema: pa.Schema
    keys: pa.Table
    _parts: list[list[tuple[_Run, int]]] = field(default_factory=list)
    _counts: list[int] = field(default_factory=list)
    rows: int = 0
    _folder: tempfile.TemporaryDirectory[str] | None = None

    def read_partition(self, position: int, columns: Sequence[str]) -> pa.RecordBatchReader:
        """Read some columns of the rows of one partition, in their original order."""
        parts, names = self._parts[position], list(columns)
        batches = (run.rows_of(within).select(names) for run, within in parts)
        return pa.RecordBatchReader.from_batches(
            pa.schema([self.schema.field(name) for name in names]),
            resize_for_writing(batches),
        )

    def count_rows(self, position: int) -> int:
        """Return the number of rows of a partition."""
        return self._counts[position]

    def close(self) -> None:
        """Remove the temporary files."""
        self._parts.clear()
        if self._folder is not None:
            self._folder.cleanup()

    def __enter__(self) -> ShuffledRows:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def shuffle(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    group: Callable[[pa.RecordBatch], Groups],
    *,
    in_memory: bool,
) -> ShuffledRows:
    """Split the rows by partition.

    `group` returns the partition keys of a batch. With `in_memory` the caller keeps all rows in
    memory anyway, so that nothing is spilled.
    """
    shuffled = ShuffledRows(schema, group(_empty_batch(schema)).keys)
    left = BUFFER_BYTES

    def run_rows() -> int:
        partitions: int = shuffled.keys.num_rows
        return max(_RUN_ROWS, min(partitions * _ROWS_PER_PARTITION, _MAX_RUN_ROWS))

    def sort_run(rows: pa.RecordBatch) -> tuple[Groups, _UnsortedRun | _SortedRun]:
        groups, run = _order_run(rows, group)
        return groups, run.sort() if left > 0 or not in_memory else run

    try:
        with ThreadPoolExecutor(2) as pool:
            runs = resize_batches(batches, run_rows, min(_RUN_BYTES, BUFFER_BYTES))
            for groups, run in _run_ahead(sort_run, runs, pool):
                left -= run.rows.nbytes
                keep = left >= 0 or in_memory
                _add_run(shuffled, run if keep else _spill(run, shuffled), groups, run.counts)
    except BaseException:
        shuffled.close()
        raise
    return shuffled


def _run_ahead(
    function: Callable[[pa.RecordBatch], tuple[Groups, _UnsortedRun | _SortedRun]],
    runs: Iterator[pa.RecordBatch],
    pool: ThreadPoolExecutor,
) -> Iterator[tuple[Groups, _UnsortedRun | _SortedRun]]:
    """Yield the function's results in order, while the next runs are processed."""
    ahead: list[Future[tuple[Groups, _UnsortedRun | _SortedRun]]] = []
    for run in runs:
        ahead.append(pool.submit(function, run))
        if len(ahead) > 2:
            yield ahead.pop(0).result()
    for future in ahead:
        yield future.result()


def _order_run(
    rows: pa.RecordBatch, group: Callable[[pa.RecordBatch], Groups]
) -> tuple[Groups, _UnsortedRun]:
    groups = group(rows)
    counts = np.bincount(groups.codes, minlength=groups.count)
    # NumPy sorts 16-bit numbers by radix.
    narrow = groups.codes.astype(np.uint16 if groups.count < 1 << 16 else np.uint32)
    order = pa.array(np.argsort(narrow, kind="stable").astype(np.int32))
    return groups, _UnsortedRun(rows, order, counts, np.concatenate([[0], np.cumsum(counts)]))


def resize_for_writing(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows in batches of a size that Lance writes well."""
    return resize_batches(batches, lambda: _WRITTEN_ROWS, _WRITTEN_BYTES)


def resize_batches(
    batches: Iterable[pa.RecordBatch], target_rows: Callable[[], int], max_bytes: int
) -> Iterator[pa.RecordBatch]:
    """Yield the rows in batches of about this size, combining small and cutting large ones."""
    gathered: list[pa.RecordBatch] = []
    rows = size = 0
    for whole in batches:
        max_rows = target_rows()
        for start in range(0, whole.num_rows, max_rows):
            batch = make_readable(whole.slice(start, max_rows))
            if gathered and (rows + batch.num_rows > max_rows or size + batch.nbytes > max_bytes):
                yield _concat(gathered)
                gathered, rows, size = [], 0, 0
            gathered.append(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes
    if rows:
        yield _concat(gathered)


def _concat(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    try:
        return pa.concat_batches(batches)
    except pa.ArrowInvalid as error:
        # Dictionaries with more values than their index type can number.
        raise SchemaMismatch(f"Cannot combine the rows: {error}") from None


def _spill(run: _UnsortedRun | _SortedRun, shuffled: ShuffledRows) -> _SpilledRun:
    if shuffled._folder is None:
        shuffled._folder = tempfile.TemporaryDirectory(prefix="phalanx-")
    path = Path(shuffled._folder.name) / f"{shuffled.rows}.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, run.rows.schema) as writer:
        for position in range(len(run.counts)):
            writer.write_batch(run.rows_of(position))
    return _SpilledRun(path)


def _add_run(
    shuffled: ShuffledRows, run: _Run, groups: Groups, counts: npt.NDArray[np.int64]
) -> None:
    positions = find_positions(groups.keys, shuffled.keys)
    new = np.flatnonzero(positions < 0)
    positions[new] = np.arange(len(new)) + shuffled.keys.num_rows
    if len(new):
        shuffled.keys = pa.concat_tables([shuffled.keys, groups.keys.take(pa.array(new))])
        shuffled._parts.extend([] for _ in new)
        shuffled._counts.extend(0 for _ in new)
    for within, (position, count) in enumerate(
        zip(positions.tolist(), counts.tolist(), strict=True)
    ):
        shuffled._parts[position].append((run, within))
        shuffled._counts[position] += count
    shuffled.rows += int(counts.sum())


def _empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)
