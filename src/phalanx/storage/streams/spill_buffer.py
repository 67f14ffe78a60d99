"""Buffers of batches that spill to disk when they exceed a memory budget."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa

from phalanx.storage.streams.shuffle import BUFFER_BYTES


class SpillBudget:
    """The memory that several buffers, filled by several threads, share before they spill."""

    def __init__(self, bytes: int = BUFFER_BYTES) -> None:
        self._left = bytes
        self._lock = threading.Lock()
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._files = 0

    def __enter__(self) -> SpillBudget:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the temporary files."""
        if self._folder is not None:
            self._folder.cleanup()

    def reserve(self, size: int) -> bool:
        """Reserve this many bytes. Return whether they fit in memory."""
        with self._lock:
            self._left -= size
            return self._left >= 0

    def create_file(self) -> Path:
        """Return the path of a new temporary file."""
        with self._lock:
            if self._folder is None:
                self._folder = tempfile.TemporaryDirectory(prefix="phalanx-")
            self._files += 1
            return Path(self._folder.name) / f"{self._files}.arrow"


class SpillBuffer:
    """Batches of one schema in the order in which they were added."""

    def __init__(self, budget: SpillBudget, schema: pa.Schema) -> None:
        self.schema = schema
        self.rows = 0
        self._budget = budget
        self._in_memory: list[pa.RecordBatch] = []
        self._path: Path | None = None
        self._file: pa.NativeFile | None = None
        self._writer: pa.RecordBatchWriter | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        """Add a batch."""
        self.rows += batch.num_rows
        if self._writer is None and self._budget.reserve(batch.nbytes):
            self._in_memory.append(batch)
            return
        if self._writer is None:
            self._path = self._budget.create_file()
            self._file = pa.OSFile(str(self._path), "wb")
            # A stream, unlike a file, may change its dictionaries.
            self._writer = pa.ipc.new_stream(self._file, self.schema)
        self._writer.write_batch(batch)

    @property
    def is_in_memory(self) -> bool:
        """Whether nothing is on disk."""
        return self._path is None

    def read_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all batches; those on disk are read as needed."""
        if self._writer is not None and self._file is not None:
            self._writer.close()
            self._file.close()
            self._writer = None
        yield from self._in_memory
        if self._path is not None:
            # Batches stay valid after the file is closed: they keep the mapped memory alive.
            with pa.ipc.open_stream(pa.memory_map(str(self._path))) as reader:
                yield from reader


def buffer_batches(
    budget: SpillBudget, schema: pa.Schema, batches: Iterable[pa.RecordBatch]
) -> SpillBuffer:
    """Add all batches to a new buffer."""
    found = SpillBuffer(budget, schema)
    for batch in batches:
        found.add(batch)
    return found
