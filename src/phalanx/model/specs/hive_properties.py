"""The three properties that define a partitioned table in the Hive-style layout.

`lance.partitioning.partition_columns` is a JSON array of `{"name", "function", "properties"}`, and
the schema is Arrow's JSON. The layout has no field ids and identifies columns by name. Phalanx
assigns ids to the columns in the leaves first, as Lance numbers them there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from phalanx.errors import InvalidSpec, NotPartitioned, format_value
from phalanx.model.schema.arrow_ipc_json import schema_from_any_json, schema_to_ipc_json
from phalanx.model.schema.rows import remove_ids
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.evolution import resolve_derivation
from phalanx.model.specs.hive_paths import check_path_type, is_in_path
from phalanx.model.specs.partition_by import PartitionBy, PartitionTerm, parse_partition_by
from phalanx.model.specs.spec import PartitionField, PartitionSpec
from phalanx.model.stored_json import parse_json
from phalanx.model.transforms.buckets import Bucket, MultiBucket
from phalanx.model.transforms.calendar_parts import DATE_CHAIN, CalendarPart
from phalanx.model.transforms.hive import HiveBucket, HiveHash, HiveTruncate
from phalanx.model.transforms.transform import IDENTITY, Transform
from phalanx.model.transforms.truncate import Truncate, is_string_type

HIVE_PREFIX = "lance.partitioning."
HIVE_IS_PARTITIONED = f"{HIVE_PREFIX}is_partitioned"
HIVE_PARTITION_COLUMNS = f"{HIVE_PREFIX}partition_columns"
HIVE_SCHEMA = f"{HIVE_PREFIX}schema"
_WITHOUT_PARAMETER: dict[str, Transform] = {
    "identity": IDENTITY,
    **{part.name: part for part in DATE_CHAIN},
    "hash": HiveHash(),
}
_PARAMETER_NAMES = {"bucket": "num_buckets", "truncate": "width"}
_FUNCTION = re.compile(r"\s*(?P<name>\w+)\s*(?:\(\s*(?P<number>\d{1,10})\s*\))?\s*")


@dataclass(frozen=True, slots=True)
class HiveProperties:
    """The schema and the only spec of a table in the Hive-style layout."""

    schema: Schema
    spec: PartitionSpec

    @classmethod
    def of(cls, schema: pa.Schema, partition_by: PartitionBy) -> HiveProperties:
        """Define a new table; raise `InvalidSpec` for what the layout does not support."""
        return _build_properties(schema, parse_partition_by(partition_by))

    @classmethod
    def from_properties(cls, properties: Mapping[str, str], root: str) -> HiveProperties:
        """Read the properties of a table; raise an error if one is missing or invalid."""
        stated = properties.get(HIVE_IS_PARTITIONED)
        if stated != "true":
            raise NotPartitioned(
                f"{root} is not a partitioned table in the hive layout: its "
                f"{HIVE_IS_PARTITIONED} is {stated!r}, expected 'true'."
            )
        for key in (HIVE_PARTITION_COLUMNS, HIVE_SCHEMA):
            if not isinstance(properties.get(key), str):
                raise NotPartitioned(
                    f"{root} has no {key} among its properties: expected JSON. Give it with "
                    "phalanx.open(uri, properties={…})."
                )
        return _parse_properties(properties[HIVE_PARTITION_COLUMNS], properties[HIVE_SCHEMA])

    def to_properties(self) -> dict[str, str]:
        """Return the properties to store."""
        schema = remove_ids(self.schema.arrow)
        return {
            HIVE_IS_PARTITIONED: "true",
            HIVE_PARTITION_COLUMNS: json.dumps(
                [_column_to_json(field, self.schema) for field in self.spec.fields],
                ensure_ascii=False,
            ),
            HIVE_SCHEMA: json.dumps(schema_to_ipc_json(schema), ensure_ascii=False),
        }

    @property
    def path_columns(self) -> dict[str, str]:
        """The columns that are stored in the path only, each with the id of its partition field."""
        return {
            self._column_name(field): field.field_id
            for field in self.spec.fields
            if is_in_path(field)
        }

    @property
    def leaf_schema(self) -> Schema:
        """The schema of every leaf."""
        kept = [field for field in self.schema.arrow if field.name not in self.path_columns]
        return Schema.of(pa.schema(kept))

    def _column_name(self, field: PartitionField) -> str:
        path = self.schema.path_of(field.source_ids[0])
        assert path is not None
        return path[0]


@lru_cache(maxsize=64)
def _parse_properties(columns: str, schema: str) -> HiveProperties:
    listed, stated = (
        parse_json(columns, HIVE_PARTITION_COLUMNS, InvalidSpec),
        parse_json(schema, HIVE_SCHEMA, InvalidSpec),
    )
    if not isinstance(listed, list):
        raise InvalidSpec(
            f"Cannot read {HIVE_PARTITION_COLUMNS} {format_value(columns)}: expected a list."
        )
    return _build_properties(schema_from_any_json(stated), tuple(map(_column_from_json, listed)))


def _build_properties(given: pa.Schema, terms: tuple[PartitionTerm, ...]) -> HiveProperties:
    if not isinstance(given, pa.Schema):
        Schema.of(given)
    plain = remove_ids(given)
    in_path = {term.columns[0] for term in terms if term.derivation == IDENTITY}
    stored = [field for field in plain if field.name not in in_path]
    if not terms:
        raise InvalidSpec("Cannot partition by nothing: the hive layout needs at least one column.")
    if not stored:
        raise InvalidSpec(
            f"Cannot partition by {', '.join(sorted(in_path))}: in the hive layout the values of "
            "identity columns are stored only in the path, and no column is left for the leaves. "
            "Add one, or use bucket or hash."
        )
    numbered = Schema.of(pa.schema([*stored, *(f for f in plain if f.name in in_path)]))
    ordered = [numbered.arrow.field(name) for name in plain.names]
    schema = Schema.of(pa.schema(ordered, metadata=plain.metadata))
    fields = tuple(_build_field(term, schema) for term in terms)
    for position, field in enumerate(fields):
        if field.field_id in {other.field_id for other in fields[:position]}:
            raise InvalidSpec(
                f"Cannot partition twice under the name {field.field_id!r}: the hive layout names "
                "folders after the column and the function. Leave one out, or rename a column."
            )
    return HiveProperties(schema, PartitionSpec(1, fields))


def _build_field(term: PartitionTerm, schema: Schema) -> PartitionField:
    (column,) = term.columns if len(term.columns) == 1 else ("",)
    derivation = term.derivation
    if type(derivation) is Bucket:
        derivation = HiveBucket(derivation.num_buckets)
    if not column or not isinstance(derivation, Transform) or isinstance(derivation, MultiBucket):
        raise InvalidSpec(
            f"Cannot partition by {', '.join(term.columns)} in the hive layout: expected one of "
            f"{', '.join([*_WITHOUT_PARAMETER, *_PARAMETER_NAMES])} of one column."
        )
    if column not in schema.names:
        raise InvalidSpec(
            f"Cannot partition by {column!r}: the schema has no such column. Expected one of "
            f"{', '.join(schema.names)}; the hive layout does not support nested columns."
        )
    source = schema.id_of((column,))
    kind = schema.type_of(source)
    if isinstance(derivation, Truncate) and not (is_string_type(kind) or pt.is_integer(kind)):
        raise InvalidSpec(
            f"Cannot truncate column {column!r} ({kind}): in the hive layout truncate takes "
            "strings and integers."
        )
    if derivation == IDENTITY:
        try:
            check_path_type(kind)
        except InvalidSpec as error:
            raise InvalidSpec(
                str(error).replace(f"a column of type {kind}", f"column {column!r} ({kind})")
            ) from None
    if type(derivation) is Truncate and pt.is_signed_integer(kind):
        derivation = HiveTruncate(derivation.width)
    made, result = resolve_derivation(PartitionTerm(derivation, (column,)), [column], [kind])
    field_id = _folder_key(column, made)
    if term.field_id not in (None, field_id):
        raise InvalidSpec(
            f"Cannot name the partition field {term.field_id!r}: in the hive layout it is "
            f"{field_id!r}. Leave the name out."
        )
    return PartitionField(field_id, (source,), made, result)


def _folder_key(column: str, derivation: Transform) -> str:
    """Return the key of the folder names (draft: 4, Write Path)."""
    match derivation:
        case CalendarPart():
            return f"{column}_{derivation.name}"
        case HiveBucket():
            return f"{column}_bucket"
        case Truncate():
            return f"{column}_trunc"
        case HiveHash():
            return f"{column}_hash"
    return column


def _column_to_json(field: PartitionField, schema: Schema) -> dict[str, Any]:
    path = schema.path_of(field.source_ids[0])
    assert path is not None
    match field.derivation:
        case HiveBucket(num_buckets=count):
            function: dict[str, Any] = {
                "function": "bucket",
                "properties": {"num_buckets": str(count)},
            }
        case Truncate(width=width):
            function = {"function": f"truncate({width})", "properties": {"width": str(width)}}
        case HiveHash():
            function = {"function": "hash"}
        case other:
            function = {"function": other.name}
    return {"name": path[0], **function}


def _column_from_json(obj: object) -> PartitionTerm:
    if not isinstance(obj, Mapping) or not isinstance(name := obj.get("name"), str):
        raise InvalidSpec(
            f"Cannot read the partition column {format_value(obj)}: expected "
            '{"name": …, "function": …, "properties": {…}}.'
        )
    function, given = obj.get("function") or "identity", obj.get("properties") or {}
    match = _FUNCTION.fullmatch(function) if isinstance(function, str) else None
    kind = "" if match is None else match["name"].lower()
    if (
        match is None
        or not isinstance(given, Mapping)
        or kind not in {*_WITHOUT_PARAMETER, *_PARAMETER_NAMES}
    ):
        raise InvalidSpec(
            f"Cannot read the function {format_value(function)} of partition column {name!r}: "
            f"expected one of {', '.join(_WITHOUT_PARAMETER)}, bucket with num_buckets, "
            "truncate(N)."
        )
    parameter = _PARAMETER_NAMES.get(kind)
    if unknown := [key for key in given if key != parameter]:
        raise InvalidSpec(
            f"Cannot read the property {unknown[0]!r} of partition column {name!r}: "
            f"{kind} has {parameter or 'no properties'}."
        )
    stated = {number for number in (match["number"], given.get(parameter)) if number is not None}
    numbers = {_to_whole_number(each) for each in stated}
    if parameter is None and not numbers:
        return PartitionTerm(_WITHOUT_PARAMETER[kind], (name,))
    if parameter is None or len(numbers) != 1 or None in numbers:
        raise InvalidSpec(
            f"Cannot read the partition column {format_value(dict(obj))}: {kind} takes "
            + (f"one positive whole number as {parameter}." if parameter else "no number.")
        )
    (number,) = numbers
    assert number is not None
    make = HiveBucket if kind == "bucket" else Truncate
    return PartitionTerm(make(number), (name,))


def _to_whole_number(given: object) -> int | None:
    """Return a whole number given as a number or text; None for anything else."""
    if isinstance(given, str) and given.strip().isdecimal():
        return int(given) if len(given) < 20 else None
    if isinstance(given, int) and not isinstance(given, bool):
        return given
    return int(given) if isinstance(given, float) and given.is_integer() else None
