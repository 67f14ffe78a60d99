"""Rows out of leaves: filtered and projected inside Lance, the rest by DataFusion."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Generic, TypeVar, cast

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from phalanx.model.predicates.evaluation import matches
from phalanx.model.predicates.predicate import TRUE, Predicate, columns_of
from phalanx.model.predicates.rendering import to_lance
from phalanx.model.schema.rows import chosen_column, chosen_schema, readable
from phalanx.model.schema.schema import Schema
from phalanx.storage.lance.failures import reading
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.scanning import batches_of, count_of
from phalanx.storage.lance.schema import is_aligned
from phalanx.storage.leaf.fields import check_nulls, fields_of
from phalanx.storage.leaf.path_values import PathValues, check_stored, for_leaf
from phalanx.storage.leaf.reconcile import reconciled

_BATCHES_AHEAD = 4
_BATCH_BYTES = 4 << 20
_LIKELY_COMPRESSION = 2
_FEWEST_ROWS, _MOST_ROWS = 64, 1 << 15
# A leaf is decoded by several threads of Lance, and the next ones should be under way by then.
SCAN_THREADS = min(16, 2 * (os.cpu_count() or 1))
# By what a change finds a row again: which leaf, and where in that version of it.
ROW_LEAF, ROW_ADDRESS = "_phalanx_leaf", "_phalanx_address"
ROW_ID = pa.schema(
    [
        pa.field(ROW_LEAF, pa.int64(), nullable=False),
        pa.field(ROW_ADDRESS, pa.int64(), nullable=False),
    ]
)
_END = object()
_ADDRESS = "_rowaddr"
# What is read piece by piece: scans of leaves, or parts of them; and what comes of them.
Scanned = TypeVar("Scanned")
Batch = TypeVar("Batch")


@dataclass(frozen=True, slots=True)
class LeafScan:
    """What to read of one leaf."""

    location: Location
    version: int | None
    schema: Schema
    columns: tuple[str, ...]
    predicate: Predicate = TRUE
    limit: int | None = None
    # Only these of its fragments; None stands for all.
    fragments: tuple[int, ...] | None = None
    # What the path holds, in a layout whose leaves do not hold all columns.
    path: PathValues | None = None
    # What rows have as their leaf where they come with their ids, as two more columns.
    leaf: int | None = None

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The matching rows, in the leaf's order."""
        with reading(f"read the partition at {self.location}"):
            dataset = self.location.open_leaf(self.version)
            if self._is_plain(dataset):
                found = self._aligned_batches(dataset)
            else:
                found = self._reconciled_batches(dataset)
            yield from _limited(found, self.limit)

    def count_rows(self) -> int:
        """How many rows match, whatever the limit; from metadata alone where all do."""
        with reading(f"read the partition at {self.location}"):
            return self._count_rows()

    def _count_rows(self) -> int:
        dataset = self.location.open_leaf(self.version)
        if self.predicate == TRUE and self.fragments is None:
            return count_of(dataset)
        inner, rest = for_leaf(self.predicate, self.path)
        if rest == TRUE and self.fragments is None and self._is_plain(dataset):
            return count_of(dataset, to_lance(inner))
        whole = replace(self, limit=None)
        return sum(batch.num_rows for batch in whole.batches())

    def _is_plain(self, dataset: lance.LanceDataset) -> bool:
        """Whether the columns that are not in the path can be read by their names."""
        if self.path is None:
            return is_aligned(dataset, self.schema)
        check_stored(dataset, self.schema, self.path.values, self.location)
        return True

    def _aligned_batches(self, dataset: lance.LanceDataset) -> Iterator[pa.RecordBatch]:
        inner, rest = for_leaf(self.predicate, self.path)
        extra = [name for name in columns_read(rest, self.schema) if name not in self.columns]
        read = [*self.columns, *extra]
        stored = read if self.path is None else [n for n in read if n not in self.path.values]
        batches = batches_of(
            dataset,
            columns=stored,
            filter=None if inner == TRUE else to_lance(inner),
            limit=self.limit if rest == TRUE else None,
            fragments=self._chosen(dataset),
            scan_in_order=True,
            batch_size=batch_rows(dataset, self.schema),
            batch_readahead=_BATCHES_AHEAD,
            # Rows without columns are counted by something.
            with_row_address=not stored or self.leaf is not None,
        )
        if self.leaf is not None:
            read.append(_ADDRESS)
        for found in batches:
            batch = found if self.path is None else self.path.restored(found, read)
            kept = batch if rest == TRUE else readable(batch).filter(matches(rest, batch))
            if kept.num_rows:
                yield self._given(kept, kept)

    def _chosen(self, dataset: lance.LanceDataset) -> list[lance.LanceFragment] | None:
        if self.fragments is None:
            return None
        wanted = set(self.fragments)
        return [each for each in dataset.get_fragments() if each.fragment_id in wanted]

    def _reconciled_batches(self, dataset: lance.LanceDataset) -> Iterator[pa.RecordBatch]:
        leaf = fields_of(dataset, self.schema, self.location)
        batches = batches_of(
            dataset,
            fragments=self._chosen(dataset),
            scan_in_order=True,
            batch_size=batch_rows(dataset, self.schema),
            with_row_address=self.leaf is not None,
        )
        for batch in batches:
            rows = reconciled(batch, leaf, self.schema)
            check_nulls(rows, self.schema, self.location)
            wanted = matches(self.predicate, rows)
            kept = readable(rows).filter(wanted)
            if kept.num_rows:
                yield self._given(kept, batch if self.leaf is None else batch.filter(wanted))

    def _given(self, rows: pa.RecordBatch, addressed: pa.RecordBatch) -> pa.RecordBatch:
        """The columns that are wanted, and the ids of the rows if they are."""
        arrays = [chosen_column(rows, name) for name in self.columns]
        schema = chosen_schema(self.schema, self.columns)
        if self.leaf is None:
            return pa.RecordBatch.from_arrays(arrays, schema=schema)
        leaves = pa.array(np.full(rows.num_rows, self.leaf, np.int64))
        addresses = addressed.column(_ADDRESS).cast(pa.int64())
        return pa.RecordBatch.from_arrays(
            [*arrays, leaves, addresses], schema=pa.schema([*schema, *ROW_ID])
        )


def batch_rows(dataset: lance.LanceDataset, schema: Schema) -> int:
    """How many rows make a batch of a few megabytes: many short ones cost more than a few long."""
    rows, size = 0, 0
    for fragment in dataset.get_fragments():
        rows += fragment.physical_rows
        size += sum(file.file_size_bytes or 0 for file in fragment.data_files())
    # Files are compressed; a vector is as wide as it is.
    width = max(_LIKELY_COMPRESSION * size // max(rows, 1), _fixed_width(schema), 1)
    return max(_FEWEST_ROWS, min(_BATCH_BYTES // width, _MOST_ROWS))


@lru_cache(maxsize=64)
def _fixed_width(schema: Schema) -> int:
    """The bytes of a row as far as the types tell."""

    def width(kind: pa.DataType) -> int:
        if pt.is_fixed_size_list(kind):
            return int(kind.list_size) * width(kind.value_type)
        if pt.is_struct(kind):
            return sum(width(child.type) for child in kind)
        try:
            return (int(kind.bit_width) + 7) // 8
        except ValueError:
            return 0

    return sum(width(column.type) for column in schema.arrow)


def _limited(batches: Iterator[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    if limit is None:
        yield from batches
        return
    for batch in batches:
        if limit <= 0:
            return
        yield batch.slice(0, limit)
        limit -= batch.num_rows


def columns_read(predicate: Predicate, schema: Schema) -> list[str]:
    """The columns that a predicate reads, in the schema's order."""
    read = {path[0] for path in columns_of(predicate)}
    return [name for name in schema.names if name in read]


def addressed(
    dataset: lance.LanceDataset,
    predicate: Predicate,
    schema: Schema,
    columns: Sequence[str],
    path: PathValues | None = None,
    fragments: list[lance.LanceFragment] | None = None,
) -> Iterator[tuple[npt.NDArray[np.uint64], pa.RecordBatch]]:
    """The matching rows of a leaf that has the schema: where they are, and some of their columns.

    In the leaf's order; of some fragments, or of all.
    """
    inner, rest = for_leaf(predicate, path)
    read = list(dict.fromkeys([*columns, *columns_read(rest, schema)]))
    stored = read if path is None else [name for name in read if name not in path.values]
    batches = batches_of(
        dataset,
        columns=stored,
        filter=None if inner == TRUE else to_lance(inner),
        fragments=fragments,
        with_row_address=True,
        scan_in_order=True,
        batch_size=batch_rows(dataset, schema) if columns else None,
    )
    wanted = chosen_schema(schema, tuple(columns))
    for batch in batches:
        rows = batch if path is None else path.restored(batch, [*read, _ADDRESS])
        if rest != TRUE:
            rows = readable(rows).filter(matches(rest, rows))
        if rows.num_rows:
            arrays = [chosen_column(rows, name) for name in columns]
            kept = pa.RecordBatch.from_arrays(arrays, schema=wanted)
            yield rows.column(_ADDRESS).to_numpy(), kept


def in_order(
    scans: Iterable[Scanned], threads: int, read: Callable[[Scanned], Iterator[Batch]]
) -> Iterator[Batch]:
    """The batches of all scans, scan by scan, while the next scans are already being read.

    Each scan being read holds a few batches at most, so memory does not grow with the data.
    """
    waiting = iter(scans)
    running: list[_Ahead[Scanned, Batch]] = []
    try:
        while True:
            while len(running) < threads and (scan := next(waiting, None)) is not None:
                running.append(_Ahead(scan, read))
            if not running:
                return
            yield from running[0]
            running.pop(0)
    finally:
        for ahead in running:
            ahead.stop()


class _Ahead(Generic[Scanned, Batch]):
    """A scan that is read by its own thread, a few batches ahead."""

    def __init__(self, scan: Scanned, read: Callable[[Scanned], Iterator[Batch]]) -> None:
        self._queue: queue.Queue[object] = queue.Queue(_BATCHES_AHEAD)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(scan, read), daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Batch]:
        while (item := self._queue.get()) is not _END:
            if isinstance(item, BaseException):
                raise item
            yield cast(Batch, item)
        self._thread.join()

    def stop(self) -> None:
        """End the thread; nobody wants its batches any more."""
        self._stopped.set()
        while self._thread.is_alive():
            try:
                self._queue.get(timeout=0.05)
            except queue.Empty:
                continue

    def _run(self, scan: Scanned, read: Callable[[Scanned], Iterator[Batch]]) -> None:
        try:
            for batch in read(scan):
                self._queue.put(batch)
                if self._stopped.is_set():
                    return
        except BaseException as error:
            self._queue.put(error)
        else:
            self._queue.put(_END)
