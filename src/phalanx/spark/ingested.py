"""What an ingest or an import has done."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from phalanx.planning.pruning.scan_plan import counted
from phalanx.table.imports.chunks import Brought, Chunk


@dataclass(frozen=True, slots=True)
class Ingested:
    """What an ingest has done, and what was done before it."""

    source: str
    uri: str
    rows: int
    partitions: int
    fragments: int
    files: int
    chunks: int
    skipped_files: int
    skipped_chunks: int
    snapshot: int | None
    seconds: float

    def __str__(self) -> str:
        return self.told("ingest")

    def told(self, doing: str) -> str:
        """What was done, in a sentence, by the name that it has."""
        if not self.chunks:
            return f"Nothing to {doing}: {self.uri} has all rows of {self.source} already."
        before = f"; {counted(self.skipped_files, 'file')} were there" if self.skipped_files else ""
        return (
            f"{doing.capitalize()}ed {self.rows:,} rows into "
            f"{counted(self.partitions, 'partition')} of "
            f"{self.uri}, in {counted(self.fragments, 'fragment')} and "
            f"{counted(self.chunks, 'chunk')}, in {self.seconds:.1f} s{before}."
        )

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON has it."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True)
class Outcome:
    """What came so far, chunk by chunk."""

    files: int = 0
    chunks: int = 0
    snapshot: int | None = None
    fragments: list[tuple[str, int]] = field(default_factory=list)

    def add(self, chunk: Chunk[Any], brought: Brought) -> None:
        """Another chunk came."""
        self.files += chunk.count
        self.chunks += 1
        self.snapshot = brought.snapshot
        self.fragments += brought.fragments

    def told(
        self, source: str, uri: str, all_files: int, skipped_chunks: int, seconds: float
    ) -> Ingested:
        """What was done, of so many files."""
        return Ingested(
            source,
            uri,
            rows=sum(rows for _, rows in self.fragments),
            partitions=len({place for place, _ in self.fragments}),
            fragments=len(self.fragments),
            files=self.files,
            chunks=self.chunks,
            skipped_files=all_files - self.files,
            skipped_chunks=skipped_chunks,
            snapshot=self.snapshot,
            seconds=round(seconds, 3),
        )
