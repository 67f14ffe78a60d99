"""Scans of leaves: filtered and projected by Lance, the rest by DataFusion."""

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

from phalanx.model.predicates.evaluation import match_rows
from phalanx.model.predicates.predicate import TRUE, Predicate, find_predicate_columns
from phalanx.model.predicates.rendering import to_lance
from phalanx.model.schema.rows import make_readable, select_column, select_schema
from phalanx.model.schema.schema import Schema
from phalanx.storage.lance.failures import translate_read_errors
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.scanning import count_rows, scan_batches
from phalanx.storage.lance.schema import is_aligned
from phalanx.storage.leaf.fields import check_nulls, resolve_fields
from phalanx.storage.leaf.path_values import PathValues, check_stored_columns, split_for_leaf
from phalanx.storage.leaf.reconcile import reconcile_batch

_BATCHES_AHEAD = 4
_BATCH_BYTES = 4 << 20
_LIKELY_COMPRESSION = 2
_MIN_ROWS, _MAX_ROWS = 64, 1 << 15
# Lance decodes a leaf in several threads; the next leaves are read ahead meanwhile.
SCAN_THREADS = min(16, 2 * (os.cpu_count() or 1))
# The columns that identify a row: the number of its leaf, and its address in that version of it.
ROW_ID_LEAF, ROW_ID_ADDRESS = "_phalanx_leaf", "_phalanx_address"
ROW_ID_FIELDS = pa.schema(
    [
        pa.field(ROW_ID_LEAF, pa.int64(), nullable=False),
        pa.field(ROW_ID_ADDRESS, pa.int64(), nullable=False),
    ]
)
_END = object()
_ADDRESS = "_rowaddr"
# A scan of a leaf or of a part of it, and what it yields.
_Scan = TypeVar("_Scan")
_Batch = TypeVar("_Batch")


@dataclass(frozen=True, slots=True)
class LeafScan:
    """The columns and rows to read of one leaf."""

    location: Location
    version: int | None
    schema: Schema
    columns: tuple[str, ...]
    predicate: Predicate = TRUE
    limit: int | None = None
    # The fragments to read; None for all.
    fragments: tuple[int, ...] | None = None
    # The values in the path, in a layout whose leaves do not contain all columns.
    path: PathValues | None = None
    # If set, rows get the two columns `ROW_ID_FIELDS`, with this number as their leaf.
    leaf_number: int | None = None

    def read_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the matching rows, in the leaf's order."""
        with translate_read_errors(f"read the partition at {self.location}"):
            dataset = self.location.open_leaf(self.version)
            if self._is_plain(dataset):
                found = self._read_aligned(dataset)
            else:
                found = self._read_reconciled(dataset)
            yield from _limit_rows(found, self.limit)

    def count_rows(self) -> int:
        """Count the matching rows, ignoring the limit; from metadata alone if all match."""
        with translate_read_errors(f"read the partition at {self.location}"):
            return self._count_rows()

    def _count_rows(self) -> int:
        dataset = self.location.open_leaf(self.version)
        if self.predicate == TRUE and self.fragments is None:
            return count_rows(dataset)
        inner, rest = split_for_leaf(self.predicate, self.path)
        if rest == TRUE and self.fragments is None and self._is_plain(dataset):
            return count_rows(dataset, to_lance(inner))
        whole = replace(self, limit=None)
        return sum(batch.num_rows for batch in whole.read_batches())

    def _is_plain(self, dataset: lance.LanceDataset) -> bool:
        """Whether the stored columns can be read by name."""
        if self.path is None:
            return is_aligned(dataset, self.schema)
        check_stored_columns(dataset, self.schema, self.path.values, self.location)
        return True

    def _read_aligned(self, dataset: lance.LanceDataset) -> Iterator[pa.RecordBatch]:
        inner, rest = split_for_leaf(self.predicate, self.path)
        extra = [name for name in list_read_columns(rest, self.schema) if name not in self.columns]
        read = [*self.columns, *extra]
        stored = read if self.path is None else [n for n in read if n not in self.path.values]
        batches = scan_batches(
            dataset,
            columns=stored,
            filter=None if inner == TRUE else to_lance(inner),
            limit=self.limit if rest == TRUE else None,
            fragments=self._select_fragments(dataset),
            scan_in_order=True,
            batch_size=choose_batch_rows(dataset, self.schema),
            batch_readahead=_BATCHES_AHEAD,
            # A scan needs at least one column to count rows.
            with_row_address=not stored or self.leaf_number is not None,
        )
        if self.leaf_number is not None:
            read.append(_ADDRESS)
        for found in batches:
            batch = found if self.path is None else self.path.restore_columns(found, read)
            kept = batch if rest == TRUE else make_readable(batch).filter(match_rows(rest, batch))
            if kept.num_rows:
                yield self._select_output(kept, kept)

    def _select_fragments(self, dataset: lance.LanceDataset) -> list[lance.LanceFragment] | None:
        if self.fragments is None:
            return None
        wanted = set(self.fragments)
        return [each for each in dataset.get_fragments() if each.fragment_id in wanted]

    def _read_reconciled(self, dataset: lance.LanceDataset) -> Iterator[pa.RecordBatch]:
        leaf = resolve_fields(dataset, self.schema, self.location)
        batches = scan_batches(
            dataset,
            fragments=self._select_fragments(dataset),
            scan_in_order=True,
            batch_size=choose_batch_rows(dataset, self.schema),
            with_row_address=self.leaf_number is not None,
        )
        for batch in batches:
            rows = reconcile_batch(batch, leaf, self.schema)
            check_nulls(rows, self.schema, self.location)
            wanted = match_rows(self.predicate, rows)
            kept = make_readable(rows).filter(wanted)
            if kept.num_rows:
                yield self._select_output(
                    kept, batch if self.leaf_number is None else batch.filter(wanted)
                )

    def _select_output(self, rows: pa.RecordBatch, addressed: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns of the scan, and the row ids if `leaf_number` is set."""
        arrays = [select_column(rows, name) for name in self.columns]
        schema = select_schema(self.schema, self.columns)
        if self.leaf_number is None:
            return pa.RecordBatch.from_arrays(arrays, schema=schema)
        leaves = pa.array(np.full(rows.num_rows, self.leaf_number, np.int64))
        addresses = addressed.column(_ADDRESS).cast(pa.int64())
        return pa.RecordBatch.from_arrays(
            [*arrays, leaves, addresses], schema=pa.schema([*schema, *ROW_ID_FIELDS])
        )


def choose_batch_rows(dataset: lance.LanceDataset, schema: Schema) -> int:
    """Return how many rows make a batch of a few megabytes: many small ones cost more."""
    rows, size = 0, 0
    for fragment in dataset.get_fragments():
        rows += fragment.physical_rows
        size += sum(file.file_size_bytes or 0 for file in fragment.data_files())
    # Files are compressed, but vectors hardly are.
    width = max(_LIKELY_COMPRESSION * size // max(rows, 1), _fixed_width(schema), 1)
    return max(_MIN_ROWS, min(_BATCH_BYTES // width, _MAX_ROWS))


@lru_cache(maxsize=64)
def _fixed_width(schema: Schema) -> int:
    """Return the bytes of a row's fixed-size columns."""

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


def _limit_rows(batches: Iterator[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    if limit is None:
        yield from batches
        return
    for batch in batches:
        if limit <= 0:
            return
        yield batch.slice(0, limit)
        limit -= batch.num_rows


def list_read_columns(predicate: Predicate, schema: Schema) -> list[str]:
    """Return the columns that a predicate reads, in the schema's order."""
    read = {path[0] for path in find_predicate_columns(predicate)}
    return [name for name in schema.names if name in read]


def read_with_addresses(
    dataset: lance.LanceDataset,
    predicate: Predicate,
    schema: Schema,
    columns: Sequence[str],
    path: PathValues | None = None,
    fragments: list[lance.LanceFragment] | None = None,
) -> Iterator[tuple[npt.NDArray[np.uint64], pa.RecordBatch]]:
    """Yield the row addresses and some columns of the matching rows, in the leaf's order.

    The leaf must be aligned with the schema. Reads some fragments, or all.
    """
    inner, rest = split_for_leaf(predicate, path)
    read = list(dict.fromkeys([*columns, *list_read_columns(rest, schema)]))
    stored = read if path is None else [name for name in read if name not in path.values]
    batches = scan_batches(
        dataset,
        columns=stored,
        filter=None if inner == TRUE else to_lance(inner),
        fragments=fragments,
        with_row_address=True,
        scan_in_order=True,
        batch_size=choose_batch_rows(dataset, schema) if columns else None,
    )
    wanted = select_schema(schema, tuple(columns))
    for batch in batches:
        rows = batch if path is None else path.restore_columns(batch, [*read, _ADDRESS])
        if rest != TRUE:
            rows = make_readable(rows).filter(match_rows(rest, rows))
        if rows.num_rows:
            arrays = [select_column(rows, name) for name in columns]
            kept = pa.RecordBatch.from_arrays(arrays, schema=wanted)
            yield rows.column(_ADDRESS).to_numpy(), kept


def read_in_order(
    scans: Iterable[_Scan], threads: int, read: Callable[[_Scan], Iterator[_Batch]]
) -> Iterator[_Batch]:
    """Yield the batches of all scans, scan by scan, while threads read the next scans.

    Each running scan buffers only a few batches, so memory does not grow with the data.
    """
    waiting = iter(scans)
    running: list[_Prefetcher[_Scan, _Batch]] = []
    try:
        while True:
            while len(running) < threads and (scan := next(waiting, None)) is not None:
                running.append(_Prefetcher(scan, read))
            if not running:
                return
            yield from running[0]
            running.pop(0)
    finally:
        for ahead in running:
            ahead.stop()


class _Prefetcher(Generic[_Scan, _Batch]):
    """A scan that its own thread reads a few batches ahead."""

    def __init__(self, scan: _Scan, read: Callable[[_Scan], Iterator[_Batch]]) -> None:
        self._queue: queue.Queue[object] = queue.Queue(_BATCHES_AHEAD)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(scan, read), daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[_Batch]:
        while (item := self._queue.get()) is not _END:
            if isinstance(item, BaseException):
                raise item
            yield cast(_Batch, item)
        self._thread.join()

    def stop(self) -> None:
        """End the thread and discard its batches."""
        self._stopped.set()
        while self._thread.is_alive():
            try:
                self._queue.get(timeout=0.05)
            except queue.Empty:
                continue

    def _run(self, scan: _Scan, read: Callable[[_Scan], Iterator[_Batch]]) -> None:
        try:
            for batch in read(scan):
                self._queue.put(batch)
                if self._stopped.is_set():
                    return
        except BaseException as error:
            self._queue.put(error)
        else:
            self._queue.put(_END)
