"""Chunks of a source that are each committed exactly once.

A chunk has a marker for each of its parts. A repeated call after a crash reads from the table which
parts are done, and continues with the others. Of two concurrent calls only one commits a part.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from phalanx.planning.splits import pack_in_tasks
from phalanx.storage.streams.shuffle import BUFFER_BYTES
from phalanx.table.table import Table

CHUNK_BYTES = "2GB"
NAME_DIGITS = 16
_WITHOUT_ID = "files"
# Each part has a marker, which is a row of the manifest.
_MAX_PARTS = 1000


class Part(Protocol):
    """A part of a source that is imported as a whole."""

    @property
    def size(self) -> int:
        """Its size in bytes."""

    @property
    def digest(self) -> str:
        """A digest of its name (first) and of its state (last)."""


P = TypeVar("P", bound=Part)


def digest_of(name: str, state: str) -> str:
    """Return a digest of the name of a part, followed by one of its state."""
    place = hashlib.blake2b(name.encode(), digest_size=NAME_DIGITS // 2).hexdigest()
    return place + hashlib.blake2b(state.encode(), digest_size=4).hexdigest()


@dataclass(frozen=True, slots=True)
class Chunk(Generic[P]):
    """Parts that are committed together, with their markers; None means the whole source."""

    parts: tuple[P, ...] | None
    markers: tuple[str, ...]

    @property
    def size(self) -> int:
        """The bytes of its parts."""
        return sum(part.size for part in self.parts or ())

    @property
    def count(self) -> int:
        """The number of its parts."""
        return len(self.parts or ())


@dataclass(frozen=True, slots=True)
class WrittenChunk:
    """The result of a chunk: the location and row count of each fragment, and the snapshot."""

    fragments: tuple[tuple[str, int], ...]
    snapshot: int | None

    @property
    def rows(self) -> int:
        """The number of rows added."""
        return sum(rows for _, rows in self.fragments)


def make_marker_prefix(doing: str, id: str | None) -> str:
    """Return the prefix of the markers of an operation, with its id or without one."""
    name = _WITHOUT_ID if id is None else hashlib.blake2b(id.encode(), digest_size=8).hexdigest()
    return f"{doing} {name} "


def find_markers(table: Table, prefix: str) -> dict[str, int]:
    """Return the committed markers with a prefix, each with its snapshot; none in weak mode."""
    return table.markers(prefix) if table.mode == "strong" else {}


def index_digests(done: Mapping[str, int], prefix: str) -> dict[str, str]:
    """Return the digests of committed parts, by the digest of the part's name."""
    digests = (marker.removeprefix(prefix) for marker in done)
    return {digest[:NAME_DIGITS]: digest for digest in digests}


def split_chunks(parts: Iterable[P], prefix: str, chunk_bytes: int) -> list[Chunk[P]]:
    """Split the parts into chunks of about `chunk_bytes`, with a marker for each part."""
    return [
        Chunk(some, tuple(prefix + part.digest for part in some))
        for together in pack_in_tasks(list(parts), lambda part: part.size, chunk_bytes)
        for some in _split(together, _MAX_PARTS)
    ]


def find_own_snapshot(table: Table, chunk: Chunk[P], prefix: str) -> int | None:
    """Return the snapshot of exactly this chunk; None if another call committed some of it."""
    done = table.markers(prefix)
    snapshot = done.get(chunk.markers[0])
    together = {marker for marker, each in done.items() if each == snapshot}
    return snapshot if together == set(chunk.markers) else None


def write_chunks(
    chunks: list[Chunk[P]],
    write: Callable[[Chunk[P]], WrittenChunk | None],
    plan_rest: Callable[[Chunk[P]], list[Chunk[P]]],
) -> Iterator[tuple[Chunk[P], WrittenChunk]]:
    """Write chunk by chunk; if another call was first, continue with what `plan_rest` returns."""
    left = list(chunks)
    while left:
        chunk = left.pop(0)
        written = write(chunk)
        if written is None:
            left[:0] = plan_rest(chunk)
        else:
            yield chunk, written


def choose_task_count(cores: int, size: int) -> int:
    """Return the number of tasks to write `size` bytes, if each writes a file per partition.

    Enough to keep the cores busy, and more only if a task would spill much of its rows to disk.
    """
    return max(cores, -(-size // BUFFER_BYTES))


def _split(parts: Sequence[P], most: int) -> list[tuple[P, ...]]:
    return [tuple(parts[start : start + most]) for start in range(0, len(parts), most)]
