"""Partition specs and their fields, and their stored JSON (format: Partition Spec)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from phalanx.errors import InvalidSchema, InvalidSpec, SchemaMismatch, format_value
from phalanx.model.schema.arrow_json import type_from_json, type_to_json
from phalanx.model.schema.schema import Schema
from phalanx.model.sql.syntax import Node
from phalanx.model.stored_json import parse_json
from phalanx.model.transforms.expression import Expression, build_expression, read_expression
from phalanx.model.transforms.registry import transform_from_ducklake, transform_from_json
from phalanx.model.transforms.transform import COLUMN_PLACEHOLDER, Transform

_COLUMN_PREFIX = "partition_field_"
_DUCKLAKE_COLUMNS = (
    "partition_id",
    "table_id",
    "partition_key_index",
    "column_id",
    "transform",
)
_FIELD_ID = re.compile(r"[^.`\x00-\x1f]+")


@dataclass(frozen=True, slots=True)
class PartitionField:
    """One level of partitioning: how to compute a partition value from source columns.

    Internal: `derivation`, which is `transform` or the form of `expression` that can be evaluated.

    Attributes:
        field_id: The name of the field, which is unique in its spec.
        source_ids: The field ids of the source columns.
        result_type: The type of the partition value.
    """

    field_id: str
    source_ids: tuple[int, ...]
    derivation: Transform
    result_type: pa.DataType

    def __post_init__(self) -> None:
        if not isinstance(self.field_id, str) or not _is_column_name(self.field_id):
            raise InvalidSpec(
                f"Cannot use the field id {self.field_id!r}: it names a manifest column, so it "
                "must be text without dots, backticks and control characters."
            )

    @property
    def transform(self) -> Transform | None:
        """The well-known transform; None for a custom expression."""
        return None if isinstance(self.derivation, Expression) else self.derivation

    @property
    def expression(self) -> str | None:
        """The custom expression; None for a well-known transform."""
        return self.derivation.text if isinstance(self.derivation, Expression) else None

    @property
    def column(self) -> str:
        """The manifest column that holds the partition value."""
        return _COLUMN_PREFIX + self.field_id

    @property
    def meaning(self) -> tuple[tuple[int, ...], Transform | Node]:
        """Internal: the identity of the field, equal for equal fields (format: Field ID Reuse)."""
        derivation = self.derivation
        return (
            self.source_ids,
            derivation.node if isinstance(derivation, Expression) else derivation,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the format's JSON object, keys in the order of Appendix E."""
        derived: dict[str, Any] = (
            {"transform": self.derivation.to_json()}
            if self.expression is None
            else {"expression": self.expression}
        )
        return {
            "field_id": self.field_id,
            "source_ids": list(self.source_ids),
            **derived,
            "result_type": type_to_json(self.result_type),
        }

    @classmethod
    def from_json(cls, obj: object) -> PartitionField:
        """Read a JSON object; raise `InvalidSpec` if it is invalid."""
        if not isinstance(obj, dict):
            raise InvalidSpec(f"Cannot read the partition field {obj!r}: expected an object.")
        field_id, source_ids = obj.get("field_id"), obj.get("source_ids")
        if not isinstance(field_id, str):
            raise InvalidSpec(f"Cannot read the partition field {obj!r}: field_id must be text.")
        if not isinstance(source_ids, list) or not all(map(_is_id, source_ids)):
            raise InvalidSpec(
                f"Cannot read the partition field {field_id!r}: source_ids is {source_ids!r}, "
                "expected a list of field ids."
            )
        given = {key for key in ("transform", "expression") if obj.get(key) is not None}
        if len(given) != 1:
            raise InvalidSpec(
                f"Cannot read the partition field {field_id!r}: expected exactly one of "
                "transform and expression."
            )
        try:
            result_type = type_from_json(obj.get("result_type"))
        except InvalidSchema as error:
            raise InvalidSpec(
                f"Cannot read the result_type of partition field {field_id!r}: {error}"
            ) from None
        if "transform" in given:
            derivation = transform_from_json(obj["transform"])
        else:
            derivation = read_expression(obj["expression"], len(source_ids), result_type)
        return cls(field_id, tuple(source_ids), derivation, result_type)

    def check(self, schema: Schema) -> None:
        """Raise `InvalidSpec` for missing or unsuitable sources, or a wrong result type."""
        paths = [schema.path_of(source) for source in self.source_ids]
        for source, path in zip(self.source_ids, paths, strict=True):
            if path is None:
                raise InvalidSpec(
                    f"Partition field {self.field_id!r} has source id {source}, which the schema "
                    f"does not have. Its columns are {', '.join(schema.names)}."
                )
        check_source_count(self.derivation, len(self.source_ids))
        types = [schema.type_of(source) for source in self.source_ids]
        if self.expression is not None:
            build_expression(self.expression, types, self.result_type)
        expected = self.derivation.result_type(*types)
        if expected != self.result_type:
            raise InvalidSpec(
                f"Partition field {self.field_id!r} declares the result type {self.result_type}, "
                f"but {self.label(schema)} gives {expected}."
            )

    def label(self, schema: Schema) -> str:
        """Return the field as users write it: `bucket(16, id)`."""
        paths = (schema.path_of(source) for source in self.source_ids)
        names = ("NULL" if path is None else ".".join(path) for path in paths)
        return self.derivation.label(*names)

    def apply(self, rows: pa.RecordBatch | pa.Table, schema: Schema) -> pa.Array:
        """Compute the partition value of every row; a dropped source counts as NULL."""
        paths = [schema.path_of(source) for source in self.source_ids]
        if paths and all(path is None for path in paths) and self.expression is None:
            return pa.nulls(rows.num_rows, self.result_type)
        columns = [
            pa.nulls(rows.num_rows)
            if path is None
            else _read_source(rows, path, schema.type_of(source))
            for source, path in zip(self.source_ids, paths, strict=True)
        ]
        values = self.derivation.apply(*columns)
        if values.type != self.result_type:
            raise SchemaMismatch(
                f"Partition field {self.field_id!r} holds {self.result_type}, but "
                f"{self.label(schema)} gives {values.type}. Check the spec against the schema."
            )
        return values


@dataclass(frozen=True, slots=True)
class PartitionSpec:
    """A version of the table's partitioning.

    Attributes:
        id: The id of the spec: 1, 2, 3, …
        fields: The fields, the outermost level first.
    """

    id: int
    fields: tuple[PartitionField, ...]

    def __post_init__(self) -> None:
        # Spec ids of other systems may start at 0.
        if not _is_id(self.id) or self.id < 0:
            raise InvalidSpec(f"Cannot use the spec id {self.id!r}: ids are whole numbers.")
        for position, field in enumerate(self.fields):
            for other in self.fields[:position]:
                if other.field_id == field.field_id:
                    raise InvalidSpec(f"Spec {self.id} has {field.field_id!r} twice. Remove one.")
                if other.meaning == field.meaning:
                    raise InvalidSpec(
                        f"Spec {self.id} has {other.field_id!r} and {field.field_id!r}, which have "
                        "the same meaning. Remove one."
                    )

    def to_json(self) -> str:
        """Return the value of `partition_spec_v<N>`: compact, keys in the order of Appendix E."""
        obj = {"id": self.id, "fields": [field.to_json() for field in self.fields]}
        return json.dumps(obj, separators=(",", ":"), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> PartitionSpec:
        """Read the value of `partition_spec_v<N>`; raise `InvalidSpec` if it is invalid."""
        obj = parse_json(text, "the partition spec", InvalidSpec)
        if not isinstance(obj, dict) or not isinstance(obj.get("fields"), list):
            raise InvalidSpec(
                f"Cannot read the partition spec {format_value(text)}: expected an object with id "
                "and fields."
            )
        number = obj.get("id", 0)
        if not _is_id(number) or number < 1:
            raise InvalidSpec(f"Cannot use the spec id {number!r}: ids are 1, 2, 3, …")
        return cls(number, tuple(PartitionField.from_json(item) for item in obj["fields"]))

    def to_ducklake_rows(
        self, schema: Schema | pa.Schema, table_id: int = 0
    ) -> list[dict[str, Any]]:
        """Return the equivalent rows of `ducklake_partition_column`, with columns by their ids.

        Raise `InvalidSpec` for a field without an equivalent in DuckLake.
        """
        schema = schema if isinstance(schema, Schema) else Schema.of(schema)
        rows = []
        for index, field in enumerate(self.fields):
            if len(field.source_ids) != 1:
                raise InvalidSpec(
                    f"Cannot write {field.label(schema)} to a DuckLake catalog: a transform there "
                    f"takes one column, not {len(field.source_ids)}."
                )
            (source,) = field.source_ids
            try:
                name = field.derivation.ducklake_name(schema.type_of(source))
            except InvalidSpec as error:
                path = ".".join(schema.path_of(source) or ())
                raise InvalidSpec(str(error).replace(COLUMN_PLACEHOLDER, path)) from None
            row = (self.id, table_id, index, source, name)
            rows.append(dict(zip(_DUCKLAKE_COLUMNS, row, strict=True)))
        return rows

    @classmethod
    def from_ducklake_rows(
        cls,
        rows: Sequence[Mapping[str, Any]],
        schema: Schema | pa.Schema,
        *,
        time_parts: str = "calendar",
    ) -> PartitionSpec:
        """Convert the rows of one partitioning in `ducklake_partition_column` to a spec.

        Raise `InvalidSpec` for transforms that the format does not have: buckets, parts since 1970
        (`time_parts="epoch"` for catalogs that use them) and calendar parts of zoned timestamps.
        """
        schema = schema if isinstance(schema, Schema) else Schema.of(schema)
        for row in rows:
            _check_ducklake_row(row)
        ids = {int(row["partition_id"]) for row in rows}
        if len(ids) != 1:
            raise InvalidSpec(
                f"Cannot read the partitioning of {sorted(map(str, ids))}: expected the rows of "
                "exactly one partition_id."
            )
        indexes = sorted(int(row["partition_key_index"]) for row in rows)
        if indexes != list(range(len(rows))):
            raise InvalidSpec(
                f"Cannot read partitioning {min(ids)}: its keys have the indexes {indexes}, "
                "expected 0, 1, 2, …"
            )
        if time_parts not in ("calendar", "epoch"):
            raise InvalidSpec(
                f"Cannot read time parts as {time_parts!r}: expected 'calendar' or 'epoch'."
            )
        fields = []
        for row in sorted(rows, key=lambda row: row["partition_key_index"]):
            source, text = row["column_id"], row["transform"]
            path = schema.path_of(source)
            if path is None:
                raise InvalidSpec(
                    f"Cannot partition by column {source!r} of the DuckLake catalog: the schema "
                    f"has no such id. Its columns are {', '.join(schema.names)}."
                )
            if time_parts == "epoch" and text in ("year", "month", "day", "hour"):
                text = f"epoch_{text}"
            transform = transform_from_ducklake(text, schema.type_of(source))
            name = path[-1] if text == "identity" else f"{path[-1]}_{text}"
            result_type = transform.result_type(schema.type_of(source))
            fields.append(PartitionField(name, (source,), transform, result_type))
        return cls(ids.pop(), tuple(fields))

    def check(self, schema: Schema) -> None:
        """Raise `InvalidSpec` for a field that does not fit the schema."""
        for field in self.fields:
            field.check(schema)

    def label(self, schema: Schema) -> str:
        """Return the spec as users write it: `year(ts), bucket(16, id), country`."""
        return ", ".join(field.label(schema) for field in self.fields)

    def compute_partition_values(self, rows: pa.RecordBatch | pa.Table, schema: Schema) -> pa.Table:
        """Compute the partition values of every row, in one column for each field id."""
        arrays = [field.apply(rows, schema) for field in self.fields]
        columns = pa.schema([(field.field_id, field.result_type) for field in self.fields])
        return pa.Table.from_arrays(arrays, schema=columns)


def check_source_count(derivation: Transform, count: int) -> None:
    """Raise `InvalidSpec` for too many or too few sources."""
    if isinstance(derivation, Expression) or derivation.name == "multi_bucket":
        if count < 1:
            raise InvalidSpec(f"{derivation.name} needs at least one source column.")
    elif count != 1:
        raise InvalidSpec(f"{derivation.name} takes one source column, not {count}.")


def _check_ducklake_row(row: Mapping[str, Any]) -> None:
    numbers = ("partition_id", "partition_key_index", "column_id")
    if not isinstance(row, Mapping) or not (
        all(_is_id(row.get(name)) for name in numbers) and isinstance(row.get("transform"), str)
    ):
        raise InvalidSpec(
            f"Cannot read {format_value(row)} as a row of ducklake_partition_column: expected "
            f"whole numbers as {', '.join(numbers)}, and text as transform."
        )


def _is_column_name(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return _FIELD_ID.fullmatch(text) is not None


def _is_id(source: object) -> bool:
    return isinstance(source, int) and not isinstance(source, bool)


def _read_source(
    rows: pa.RecordBatch | pa.Table, path: Sequence[str], expected: pa.DataType
) -> pa.Array:
    """Return the source column. Its type must match, or values get other partitions."""
    name = ".".join(path)
    if path[0] not in rows.schema.names:
        raise SchemaMismatch(f"The rows have no column {name!r}, which the partition spec reads.")
    column = rows.column(path[0])
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    for child in path[1:]:
        if not pt.is_struct(column.type) or column.type.get_field_index(child) < 0:
            raise SchemaMismatch(f"The rows have no column {name!r}: {path[0]!r} is {column.type}.")
        column = pc.struct_field(column, child)
    if _decode_type(column.type) != _decode_type(expected):
        raise SchemaMismatch(
            f"The rows have column {name!r} as {column.type}, but the schema has {expected}. "
            "Cast it first."
        )
    return column


def _decode_type(data_type: pa.DataType) -> pa.DataType:
    return data_type.value_type if pt.is_dictionary(data_type) else data_type
