"""Rows of any number, split by partition within a bounded buffer.

Rows come in any order. They are cut into runs; each run is sorted by partition, so that what
belongs together lies together. Runs beyond the buffer go to a temporary file. Only when the
last row is in, and all rows have proved valid, are partitions handed out to be written.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from phalanx.model.grouping import Groups, group, positions
from phalanx.model.rows import unsliced

BUFFER_BYTES = 512 << 20
_RUN_ROWS = 1 << 20
_RUN_BYTES = 64 << 20


class _Run(Protocol):
    """Rows of several partitions."""

    def rows_of(self, place: int) -> pa.RecordBatch: ...


@dataclass(frozen=True, slots=True)
class _RunInMemory:
    rows: pa.RecordBatch
    starts: npt.NDArray[np.int64]

    def rows_of(self, place: int) -> pa.RecordBatch:
        start, end = self.starts[place], self.starts[place + 1]
        return unsliced(self.rows.slice(start, end - start))


@dataclass(frozen=True, slots=True)
class _RunOnDisk:
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

    def reader(self, place: int) -> pa.RecordBatchReader:
        """The rows of one partition, in the order in which they came."""
        parts = self._parts[place]
        return pa.RecordBatchReader.from_batches(
            self.schema, (run.rows_of(within) for run, within in parts)
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
    partition_values: Callable[[pa.RecordBatch], pa.Table],
    buffer_bytes: int | None = None,
) -> Shuffled:
    """Split the rows by their partition values."""
    budget = BUFFER_BYTES if buffer_bytes is None else buffer_bytes
    shuffled = Shuffled(schema, partition_values(_no_rows(schema)))
    held = 0
    try:
        with ThreadPoolExecutor(2) as pool:
            for rows, groups, starts in _sorted_ahead(
                _runs_of(batches, schema, min(_RUN_BYTES, budget)), partition_values, pool
            ):
                run: _RunInMemory | _RunOnDisk = _RunInMemory(rows, starts)
                if held + rows.nbytes > budget:
                    run = _put_aside(_RunInMemory(rows, starts), len(groups), shuffled)
                else:
                    held += rows.nbytes
                _add(shuffled, run, groups, np.diff(starts))
    except BaseException:
        shuffled.close()
        raise
    return shuffled


def _sorted_ahead(
    runs: Iterator[pa.RecordBatch],
    partition_values: Callable[[pa.RecordBatch], pa.Table],
    pool: ThreadPoolExecutor,
) -> Iterator[tuple[pa.RecordBatch, Groups, npt.NDArray[np.int64]]]:
    """Each run sorted by partition; the next ones are sorted meanwhile."""
    ahead: list[Future[tuple[pa.RecordBatch, Groups, npt.NDArray[np.int64]]]] = []
    for run in runs:
        ahead.append(pool.submit(_sorted, run, partition_values))
        if len(ahead) > 2:
            yield ahead.pop(0).result()
    for future in ahead:
        yield future.result()


def _sorted(
    run: pa.RecordBatch, partition_values: Callable[[pa.RecordBatch], pa.Table]
) -> tuple[pa.RecordBatch, Groups, npt.NDArray[np.int64]]:
    groups = group(partition_values(run))
    counts = np.bincount(groups.codes, minlength=len(groups))
    starts = np.concatenate([[0], np.cumsum(counts)])
    if len(groups) > 1:
        # NumPy sorts 16-bit numbers by radix.
        narrow = groups.codes.astype(np.uint16 if len(groups) < 1 << 16 else np.uint32)
        run = run.take(pa.array(np.argsort(narrow, kind="stable")))
    return run, groups, starts


def _runs_of(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, most_bytes: int
) -> Iterator[pa.RecordBatch]:
    """Batches of about a million rows, made of smaller ones or cut from larger ones."""
    gathered: list[pa.RecordBatch] = []
    rows = size = 0
    for whole in batches:
        for start in range(0, whole.num_rows, _RUN_ROWS):
            batch = whole.slice(start, _RUN_ROWS)
            if gathered and (rows + batch.num_rows > _RUN_ROWS or size + batch.nbytes > most_bytes):
                yield _one(gathered, schema)
                gathered, rows, size = [], 0, 0
            gathered.append(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes
    if rows:
        yield _one(gathered, schema)


def _one(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return pa.concat_batches(batches)


def _put_aside(run: _RunInMemory, partitions: int, shuffled: Shuffled) -> _RunOnDisk:
    if shuffled._folder is None:
        shuffled._folder = tempfile.TemporaryDirectory(prefix="phalanx-")
    path = Path(shuffled._folder.name) / f"{shuffled.rows}.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, run.rows.schema) as writer:
        for place in range(partitions):
            writer.write_batch(run.rows_of(place))
    return _RunOnDisk(path)


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
