"""What the tasks of a join do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from phalanx.model.schema.rows import plain_schema
from phalanx.planning.join_cuts import JoinTask, Piece
from phalanx.table.joins.reader import JoinReader, SideReader


@dataclass(frozen=True, slots=True)
class GroupedWork:
    """Leaves that meet, joined where they are read."""

    reader: JoinReader
    tasks: tuple[JoinTask, ...]

    @property
    def schema(self) -> pa.Schema:
        """The columns of the join."""
        return self.reader.schema

    def reading(self, names: Sequence[str]) -> GroupedWork:
        """The same join, of fewer columns."""
        return replace(self, reader=self.reader.reading(names))

    def without_tasks(self) -> GroupedWork:
        """The same work, as one task sees it."""
        return replace(self, tasks=())

    def batches(self, task: JoinTask) -> Iterator[pa.RecordBatch]:
        """The joined rows of a task."""
        return self.reader.batches(task)


@dataclass(frozen=True, slots=True)
class SideWork:
    """Leaves of one side that meet nothing, read for a join by Spark; columns by other names."""

    side: SideReader
    names: tuple[tuple[str, str], ...]
    tasks: tuple[tuple[Piece, ...], ...]

    @property
    def schema(self) -> pa.Schema:
        """The columns of the side, renamed."""
        stored = plain_schema(self.side.schema)
        return pa.schema([stored.field(name).with_name(new) for name, new in self.names])

    def reading(self, names: Sequence[str]) -> SideWork:
        """The same leaves, with fewer of their columns."""
        return replace(self, names=tuple(each for each in self.names if each[1] in names))

    def without_tasks(self) -> SideWork:
        """The same work, as one task sees it."""
        return replace(self, tasks=())

    def batches(self, task: tuple[Piece, ...]) -> Iterator[pa.RecordBatch]:
        """The rows of some leaves."""
        schema = self.schema
        for batch in self.side.batches(task, [name for name, _ in self.names]):
            arrays = [batch.column(name) for name, _ in self.names]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)
