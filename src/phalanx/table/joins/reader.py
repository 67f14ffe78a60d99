"""What a join gives: its columns, and the rows of one task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from phalanx.errors import SchemaMismatch
from phalanx.model.schema.rows import chosen_schema
from phalanx.model.schema.schema import Schema
from phalanx.planning.join_cuts import JoinTask, Piece
from phalanx.planning.joins.keys import JoinKey, comparable, in_type
from phalanx.planning.joins.kinds import How
from phalanx.storage.joining import LEFT, MEMORY, RIGHT, joined
from phalanx.storage.lance.failures import told
from phalanx.storage.lance.location import Location
from phalanx.storage.leaf.reading import LeafScan, in_order
from phalanx.storage.streams.hash_join import KEY, JoinRows
from phalanx.table.read.scan import checked_columns

# Other tasks run beside this one.
_LEAVES_AHEAD = 2


@dataclass(frozen=True, slots=True)
class JoinColumn:
    """A column of the result: of one side, or of both where a key stands for two columns."""

    name: str
    type: pa.DataType
    left: str | None
    right: str | None

    def of(self, is_left: bool) -> str | None:
        """The column of one side that it is made of, if there is one."""
        return self.left if is_left else self.right


@dataclass(frozen=True, slots=True)
class SideReader:
    """How one side is read: which columns the result has of it, and which are compared."""

    schema: Schema
    columns: tuple[str, ...]
    keys: tuple[tuple[str, pa.DataType], ...]
    root: Location

    def rows(self, pieces: Sequence[Piece], with_columns: bool) -> JoinRows:
        """The rows of some leaves: all their columns, or only the keys."""
        wanted = self.columns if with_columns else ()
        chosen = chosen_schema(self.schema, tuple(wanted))
        fields = [pa.field(field.name, _decoded(field.type)) for field in chosen]
        keys = [pa.field(f"{KEY}{place}", kind) for place, (_, kind) in enumerate(self.keys)]
        schema = pa.schema([*fields, *keys])

        def read() -> Iterator[pa.RecordBatch]:
            for batch in self.batches(pieces, wanted):
                arrays = [_plain(batch.column(name)) for name in wanted]
                arrays += [comparable(batch.column(name), kind) for name, kind in self.keys]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)

        return JoinRows(schema, read, sum(piece.bytes for piece in pieces))

    def batches(self, pieces: Sequence[Piece], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Some columns and the keys of some leaves, as the table has them."""
        names = tuple(dict.fromkeys([*columns, *(name for name, _ in self.keys)]))
        scans = [
            LeafScan(
                self.root.child(piece.leaf.location),
                piece.leaf.version,
                self.schema,
                names,
                piece.leaf.predicate,
                None,
                piece.fragments,
            )
            for piece in pieces
        ]
        with told("read a part of a join"):
            yield from in_order(scans, _LEAVES_AHEAD, LeafScan.batches)


@dataclass(frozen=True, slots=True)
class JoinReader:
    """How the tasks of a join are run; travels to where they are."""

    left: SideReader
    right: SideReader
    columns: tuple[JoinColumn, ...]
    memory: int = MEMORY

    @property
    def schema(self) -> pa.Schema:
        """The columns of the result."""
        return pa.schema(
            [pa.field(each.name, each.type, metadata=self._metadata(each)) for each in self.columns]
        )

    def _metadata(self, column: JoinColumn) -> dict[bytes, bytes] | None:
        """What is noted of a column where it comes from; of a key only what both sides say."""
        sides = ((self.left, column.left), (self.right, column.right))
        noted = [
            chosen_schema(side.schema, (name,)).field(0).metadata
            for side, name in sides
            if name is not None
        ]
        return noted[0] if all(each == noted[0] for each in noted) else None

    def reading(self, names: Sequence[str]) -> JoinReader:
        """The same join, with these of its columns: of each side only what they are made of."""
        columns = tuple(column for column in self.columns if column.name in names)
        left, right = (
            replace(side, columns=tuple(name for name in side.columns if name in read))
            for side, read in (
                (self.left, {column.left for column in columns}),
                (self.right, {column.right for column in columns}),
            )
        )
        return replace(self, left=left, right=right, columns=columns)

    def batches(self, task: JoinTask) -> Iterator[pa.RecordBatch]:
        """The rows that a task gives."""
        left = self.left.rows(task.left, task.kind != "right_anti")
        right = self.right.rows(task.right, task.kind not in ("semi", "anti"))
        for batch in joined(task.kind, left, right, self.memory):
            arrays = [_column(batch, column) for column in self.columns]
            yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def join_columns(
    on: Sequence[JoinKey],
    left: Schema,
    right: Schema,
    how: How,
    left_columns: Sequence[str] | None = None,
    right_columns: Sequence[str] | None = None,
) -> tuple[JoinColumn, ...]:
    """The columns that Spark's `df.join(other, on, how)` has, of all columns or of some.

    A key of one name on both sides comes first, and once. Then come the other columns of the left
    table, and of the right one unless only left rows are asked for.
    """
    shared = [key for key in on if key.left.lower() == key.right.lower()]
    first = [_key_column(key, left, right, how) for key in shared]
    keys = {key.left for key in shared}, {key.right for key in shared}
    rest = [
        JoinColumn(name, _type(left, name), name, None)
        for name in checked_columns(left_columns, left)
        if name not in keys[0]
    ]
    others = [name for name in checked_columns(right_columns, right) if name not in keys[1]]
    if how not in ("semi", "anti"):
        _check_distinct([column.name for column in (*first, *rest)], others)
        rest += [JoinColumn(name, _type(right, name), None, name) for name in others]
    return (*first, *rest)


def _key_column(key: JoinKey, left: Schema, right: Schema, how: How) -> JoinColumn:
    mine, theirs = _type(left, key.left), _type(right, key.right)
    match how:
        case "right":
            return JoinColumn(key.left, theirs, None, key.right)
        case "full":
            wider = pa.duration("us") if pt.is_duration(mine) else key.type
            kind = mine if mine == theirs else wider
            return JoinColumn(key.left, kind, key.left, key.right)
        case _:
            return JoinColumn(key.left, mine, key.left, None)


def _check_distinct(ours: Sequence[str], others: Sequence[str]) -> None:
    known = {name.lower() for name in ours}
    if both := [name for name in others if name.lower() in known]:
        raise SchemaMismatch(
            f"Both tables have a column {both[0]!r}, and the join would have it twice. Choose the "
            "columns of each with left_columns and right_columns, or rename one."
        )


def _column(batch: pa.RecordBatch, column: JoinColumn) -> pa.Array:
    """A column of the result, from those of the two sides that are there."""
    names = [
        prefix + name
        for prefix, name in ((LEFT, column.left), (RIGHT, column.right))
        if name is not None and prefix + name in batch.schema.names
    ]
    if not names:
        return pa.nulls(batch.num_rows, column.type)
    arrays = [in_type(batch.column(name), column.type) for name in names]
    return arrays[0] if len(arrays) == 1 else pc.coalesce(*arrays)


def _type(schema: Schema, name: str) -> pa.DataType:
    return _decoded(chosen_schema(schema, (name,)).field(0).type)


def _decoded(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pt.is_dictionary(kind) else kind


def _plain(array: pa.Array) -> pa.Array:
    return array.dictionary_decode() if pt.is_dictionary(array.type) else array
