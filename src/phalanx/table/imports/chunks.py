"""A source in chunks that are each committed once.

A chunk has a marker for each of its parts. So the same call again after a crash knows by the table
itself which parts it has, and goes on with the others; and of two calls at the same time only one
brings a part.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from phalanx.planning.splits import packed
from phalanx.storage.streams.shuffle import BUFFER_BYTES
from phalanx.table.table import Table

CHUNK_BYTES = "2GB"
PLACE_DIGITS = 16
_ANY = "files"
# Each of them has a marker, which is a row of the manifest.
_MOST_PARTS = 1000


class Part(Protocol):
    """A piece of a source that comes as a whole."""

    @property
    def size(self) -> int:
        """How many bytes it has."""

    @property
    def digest(self) -> str:
        """What tells it from others (the first half), and from what it is later."""


P = TypeVar("P", bound=Part)


def digest_of(name: str, state: str) -> str:
    """What tells a part by its name (the first half), and what it holds (the second)."""
    place = hashlib.blake2b(name.encode(), digest_size=PLACE_DIGITS // 2).hexdigest()
    return place + hashlib.blake2b(state.encode(), digest_size=4).hexdigest()


@dataclass(frozen=True, slots=True)
class Chunk(Generic[P]):
    """What is committed at once, by which markers; None for the parts means everything."""

    parts: tuple[P, ...] | None
    markers: tuple[str, ...]

    @property
    def size(self) -> int:
        """The bytes of its parts."""
        return sum(part.size for part in self.parts or ())

    @property
    def count(self) -> int:
        """How many parts it has."""
        return len(self.parts or ())


@dataclass(frozen=True, slots=True)
class Brought:
    """What a chunk has brought: the place and the rows of each fragment, and its snapshot."""

    fragments: tuple[tuple[str, int], ...]
    snapshot: int | None

    @property
    def rows(self) -> int:
        """How many rows came."""
        return sum(rows for _, rows in self.fragments)


def marker_prefix(doing: str, id: str | None) -> str:
    """How the markers begin of what is done under an id, or without one."""
    name = _ANY if id is None else hashlib.blake2b(id.encode(), digest_size=8).hexdigest()
    return f"{doing} {name} "


def markers_of(table: Table, prefix: str) -> dict[str, int]:
    """The markers of what came before, each with its snapshot; none in weak mode."""
    return table.markers(prefix) if table.mode == "strong" else {}


def known_digests(done: Mapping[str, int], prefix: str) -> dict[str, str]:
    """What came before, by the half of its digest that tells parts from each other."""
    digests = (marker.removeprefix(prefix) for marker in done)
    return {digest[:PLACE_DIGITS]: digest for digest in digests}


def chunks_of(parts: Iterable[P], prefix: str, chunk_bytes: int) -> list[Chunk[P]]:
    """The parts in chunks of about so many bytes, with a marker for each."""
    return [
        Chunk(some, tuple(prefix + part.digest for part in some))
        for together in packed(list(parts), lambda part: part.size, chunk_bytes)
        for some in _cut(together, _MOST_PARTS)
    ]


def is_ours(table: Table, chunk: Chunk[P], prefix: str) -> int | None:
    """The snapshot that brought exactly this chunk; None if another call brought some of it."""
    done = table.markers(prefix)
    snapshot = done.get(chunk.markers[0])
    together = {marker for marker, each in done.items() if each == snapshot}
    return snapshot if together == set(chunk.markers) else None


def bring_all(
    chunks: list[Chunk[P]],
    write: Callable[[Chunk[P]], Brought | None],
    again: Callable[[Chunk[P]], list[Chunk[P]]],
) -> Iterator[tuple[Chunk[P], Brought]]:
    """Write chunk by chunk; where another call was first, what `again` says is left of it."""
    left = list(chunks)
    while left:
        chunk = left.pop(0)
        brought = write(chunk)
        if brought is None:
            left[:0] = again(chunk)
        else:
            yield chunk, brought


def few_tasks(cores: int, size: int) -> int:
    """How many tasks write so many bytes, if each writes a file for every partition it meets.

    As many as keep the cores busy, unless one would have to put much of its rows on disk.
    """
    return max(cores, -(-size // BUFFER_BYTES))


def _cut(parts: Sequence[P], most: int) -> list[tuple[P, ...]]:
    return [tuple(parts[start : start + most]) for start in range(0, len(parts), most)]
