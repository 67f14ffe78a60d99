"""The result of a join: its columns, and the rows of one task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from phalanx.arguments import JoinHow
from phalanx.errors import SchemaMismatch
from phalanx.model.schema.rows import select_schema
from phalanx.model.schema.schema import Schema
from phalanx.planning.joins.execution import JoinTask, LeafPiece
from phalanx.planning.joins.keys import JoinKey, cast_values, to_comparable
from phalanx.storage.lance.failures import translate_errors
from phalanx.storage.lance.location import Location
from phalanx.storage.leaf.reading import LeafScan, read_in_order
from phalanx.storage.streams.hash_join import (
    JOIN_MEMORY,
    KEY_PREFIX,
    LEFT_PREFIX,
    RIGHT_PREFIX,
    JoinInput,
    hash_join,
)
from phalanx.table.read.scan import resolve_columns

# Small, because other tasks run on the same machine.
_LEAVES_AHEAD = 2


@dataclass(frozen=True, slots=True)
class JoinColumn:
    """A column of the result: from one side, or from both if it is a key with one name."""

    name: str
    type: pa.DataType
    left: str | None
    right: str | None

    def name_on(self, is_left: bool) -> str | None:
        """Return the column of one side that it comes from, if any."""
        return self.left if is_left else self.right


@dataclass(frozen=True, slots=True)
class SideReader:
    """The reader of one side: the columns of the result, and the keys that are compared."""

    schema: Schema
    columns: tuple[str, ...]
    keys: tuple[tuple[str, pa.DataType], ...]
    root: Location

    def read_rows(self, pieces: Sequence[LeafPiece], with_columns: bool) -> JoinInput:
        """Read the rows of some leaves: the result columns and keys, or only the keys."""
        wanted = self.columns if with_columns else ()
        chosen = select_schema(self.schema, tuple(wanted))
        fields = [pa.field(field.name, _decode_type(field.type)) for field in chosen]
        keys = [pa.field(f"{KEY_PREFIX}{place}", kind) for place, (_, kind) in enumerate(self.keys)]
        schema = pa.schema([*fields, *keys])

        def read() -> Iterator[pa.RecordBatch]:
            for batch in self.batches(pieces, wanted):
                arrays = [_decode(batch.column(name)) for name in wanted]
                arrays += [to_comparable(batch.column(name), kind) for name, kind in self.keys]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)

        return JoinInput(schema, read, sum(piece.bytes for piece in pieces))

    def batches(
        self, pieces: Sequence[LeafPiece], columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """Read some columns and the keys of some leaves, in the table's types."""
        names = tuple(dict.fromkeys([*columns, *(name for name, _ in self.keys)]))
        scans = [
            LeafScan(
                self.root.leaf(piece.leaf.location),
                piece.leaf.version,
                self.schema,
                names,
                piece.leaf.predicate,
                None,
                piece.fragments,
            )
            for piece in pieces
        ]
        with translate_errors("read a part of a join"):
            yield from read_in_order(scans, _LEAVES_AHEAD, LeafScan.read_batches)


@dataclass(frozen=True, slots=True)
class JoinReader:
    """Runs the tasks of a join; it is pickled and sent to the executors."""

    left: SideReader
    right: SideReader
    columns: tuple[JoinColumn, ...]
    memory: int = JOIN_MEMORY

    @property
    def schema(self) -> pa.Schema:
        """The columns of the result."""
        return pa.schema(
            [
                pa.field(each.name, each.type, metadata=self._shared_metadata(each))
                for each in self.columns
            ]
        )

    def _shared_metadata(self, column: JoinColumn) -> dict[bytes, bytes] | None:
        """Return the metadata of a source column; for a key only if both sides agree."""
        sides = ((self.left, column.left), (self.right, column.right))
        noted = [
            select_schema(side.schema, (name,)).field(0).metadata
            for side, name in sides
            if name is not None
        ]
        return noted[0] if all(each == noted[0] for each in noted) else None

    def select_columns(self, names: Sequence[str]) -> JoinReader:
        """Return the same join with only these columns, reading no others."""
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
        """Read the rows of a task."""
        left = self.left.read_rows(task.left, task.kind != "right_anti")
        right = self.right.read_rows(task.right, task.kind not in ("semi", "anti"))
        for batch in hash_join(task.kind, left, right, self.memory):
            arrays = [_build_column(batch, column) for column in self.columns]
            yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def resolve_join_columns(
    on: Sequence[JoinKey],
    left: Schema,
    right: Schema,
    how: JoinHow,
    left_columns: Sequence[str] | None = None,
    right_columns: Sequence[str] | None = None,
) -> tuple[JoinColumn, ...]:
    """Return the columns that Spark's `df.join(other, on, how)` has, of all columns or of some.

    Keys with the same name on both sides come first, once each. The other columns of the left
    table follow, then those of the right table, except for semi and anti joins.
    """
    shared = [key for key in on if key.left.lower() == key.right.lower()]
    first = [_make_key_column(key, left, right, how) for key in shared]
    keys = {key.left for key in shared}, {key.right for key in shared}
    rest = [
        JoinColumn(name, _type_of(left, name), name, None)
        for name in resolve_columns(left_columns, left)
        if name not in keys[0]
    ]
    others = [name for name in resolve_columns(right_columns, right) if name not in keys[1]]
    if how not in ("semi", "anti"):
        _check_distinct([column.name for column in (*first, *rest)], others)
        rest += [JoinColumn(name, _type_of(right, name), None, name) for name in others]
    return (*first, *rest)


def _make_key_column(key: JoinKey, left: Schema, right: Schema, how: JoinHow) -> JoinColumn:
    left_type, right_type = _type_of(left, key.left), _type_of(right, key.right)
    match how:
        case "right":
            return JoinColumn(key.left, right_type, None, key.right)
        case "full":
            wider = pa.duration("us") if pt.is_duration(left_type) else key.type
            kind = left_type if left_type == right_type else wider
            return JoinColumn(key.left, kind, key.left, key.right)
        case _:
            return JoinColumn(key.left, left_type, key.left, None)


def _check_distinct(ours: Sequence[str], others: Sequence[str]) -> None:
    known = {name.lower() for name in ours}
    if both := [name for name in others if name.lower() in known]:
        raise SchemaMismatch(
            f"Both tables have a column {both[0]!r}, and the join would have it twice. Choose the "
            "columns of each with left_columns and right_columns, or rename one."
        )


def _build_column(batch: pa.RecordBatch, column: JoinColumn) -> pa.Array:
    """Return a column of the result, from the columns of the sides that were read."""
    names = [
        prefix + name
        for prefix, name in ((LEFT_PREFIX, column.left), (RIGHT_PREFIX, column.right))
        if name is not None and prefix + name in batch.schema.names
    ]
    if not names:
        return pa.nulls(batch.num_rows, column.type)
    arrays = [cast_values(batch.column(name), column.type) for name in names]
    return arrays[0] if len(arrays) == 1 else pc.coalesce(*arrays)


def _type_of(schema: Schema, name: str) -> pa.DataType:
    return _decode_type(select_schema(schema, (name,)).field(0).type)


def _decode_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pt.is_dictionary(kind) else kind


def _decode(array: pa.Array) -> pa.Array:
    return array.dictionary_decode() if pt.is_dictionary(array.type) else array
