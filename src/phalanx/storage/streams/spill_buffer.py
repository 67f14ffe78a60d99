"""Batches that are put aside: in memory, and on disk where they are too many."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa

from phalanx.storage.streams.shuffle import BUFFER_BYTES


class Shelf:
    """Room for batches that several threads put aside, so many bytes of it in memory."""

    def __init__(self, room: int = BUFFER_BYTES) -> None:
        self._room = room
        self._lock = threading.Lock()
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._files = 0

    def __enter__(self) -> Shelf:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove what is on disk."""
        if self._folder is not None:
            self._folder.cleanup()

    def take(self, size: int) -> bool:
        """Whether so many bytes fit in memory, which they do from now on."""
        with self._lock:
            self._room -= size
            return self._room >= 0

    def file(self) -> Path:
        """A new file."""
        with self._lock:
            if self._folder is None:
                self._folder = tempfile.TemporaryDirectory(prefix="phalanx-")
            self._files += 1
            return Path(self._folder.name) / f"{self._files}.arrow"


class Parked:
    """Batches of one schema, in the order in which they came."""

    def __init__(self, shelf: Shelf, schema: pa.Schema) -> None:
        self.schema = schema
        self.rows = 0
        self._shelf = shelf
        self._held: list[pa.RecordBatch] = []
        self._path: Path | None = None
        self._file: pa.NativeFile | None = None
        self._writer: pa.RecordBatchWriter | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        """Put a batch aside."""
        self.rows += batch.num_rows
        if self._writer is None and self._shelf.take(batch.nbytes):
            self._held.append(batch)
            return
        if self._writer is None:
            self._path = self._shelf.file()
            self._file = pa.OSFile(str(self._path), "wb")
            # A stream, unlike a file, may change its dictionaries.
            self._writer = pa.ipc.new_stream(self._file, self.schema)
        self._writer.write_batch(batch)

    @property
    def is_in_memory(self) -> bool:
        """Whether nothing of it is on disk."""
        return self._path is None

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All batches; what is on disk is read as it is needed."""
        if self._writer is not None and self._file is not None:
            self._writer.close()
            self._file.close()
            self._writer = None
        yield from self._held
        if self._path is not None:
            # Batches stay valid when the file is closed here: they hold the memory that is mapped.
            with pa.ipc.open_stream(pa.memory_map(str(self._path))) as reader:
                yield from reader


def parked(shelf: Shelf, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Parked:
    """All these batches, put aside."""
    found = Parked(shelf, schema)
    for batch in batches:
        found.add(batch)
    return found
