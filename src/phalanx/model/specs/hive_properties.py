"""What makes a namespace a partitioned table in the Hive-style layout: three properties.

`lance.partitioning.partition_columns` is a JSON array of `{"name", "function", "properties"}`, and
the schema is Arrow's JSON. The layout knows no field ids: columns go by their names. Here those
that are stored in the leaves are numbered first, as Lance numbers them there.
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

from phalanx.errors import InvalidSpec, NotPartitioned, shown
from phalanx.model.schema.arrow_ipc_json import schema_from_any_json, schema_to_ipc_json
from phalanx.model.schema.rows import without_ids
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.evolution import derived
from phalanx.model.specs.hive_paths import check_text, is_in_path
from phalanx.model.specs.partition_by import PartitionBy, PartitionTerm, partition_terms
from phalanx.model.specs.spec import PartitionField, PartitionSpec
from phalanx.model.stored_json import parse
from phalanx.model.transforms.buckets import Bucket, MultiBucket
from phalanx.model.transforms.calendar_parts import DATE_CHAIN, CalendarPart
from phalanx.model.transforms.hive import HiveBucket, HiveHash, HiveTruncate
from phalanx.model.transforms.transform import IDENTITY, Transform
from phalanx.model.transforms.truncate import Truncate, is_text

PREFIX = "lance.partitioning."
IS_PARTITIONED = f"{PREFIX}is_partitioned"
PARTITION_COLUMNS = f"{PREFIX}partition_columns"
SCHEMA = f"{PREFIX}schema"
_PLAIN: dict[str, Transform] = {
    "identity": IDENTITY,
    **{part.name: part for part in DATE_CHAIN},
    "hash": HiveHash(),
}
_PARAMETERS = {"bucket": "num_buckets", "truncate": "width"}
_FUNCTION = re.compile(r"\s*(?P<name>\w+)\s*(?:\(\s*(?P<number>\d{1,10})\s*\))?\s*")


@dataclass(frozen=True, slots=True)
class HiveProperties:
    """The schema of a table in the Hive-style layout, and its one spec."""

    schema: Schema
    spec: PartitionSpec

    @classmethod
    def of(cls, schema: pa.Schema, partition_by: PartitionBy) -> HiveProperties:
        """A new table; `InvalidSpec` for what the layout cannot say."""
        return _properties(schema, partition_terms(partition_by))

    @classmethod
    def read(cls, properties: Mapping[str, str], root: str) -> HiveProperties:
        """The table that properties describe; says what is missing or wrong."""
        stated = properties.get(IS_PARTITIONED)
        if stated != "true":
            raise NotPartitioned(
                f"{root} is no partitioned table in the hive layout: its {IS_PARTITIONED} is "
                f"{stated!r}, expected 'true'."
            )
        for key in (PARTITION_COLUMNS, SCHEMA):
            if not isinstance(properties.get(key), str):
                raise NotPartitioned(
                    f"{root} has no {key} among its properties: expected JSON. Give it with "
                    "phalanx.open(uri, properties={…})."
                )
        return _read(properties[PARTITION_COLUMNS], properties[SCHEMA])

    def to_properties(self) -> dict[str, str]:
        """The properties that say the same."""
        schema = without_ids(self.schema.arrow)
        return {
            IS_PARTITIONED: "true",
            PARTITION_COLUMNS: json.dumps(
                [_column_to_json(field, self.schema) for field in self.spec.fields],
                ensure_ascii=False,
            ),
            SCHEMA: json.dumps(schema_to_ipc_json(schema), ensure_ascii=False),
        }

    @property
    def path_columns(self) -> dict[str, str]:
        """The columns that are not in the leaves, each with its partition field."""
        return {
            self._name(field): field.field_id for field in self.spec.fields if is_in_path(field)
        }

    @property
    def stored(self) -> Schema:
        """The schema of every leaf."""
        kept = [field for field in self.schema.arrow if field.name not in self.path_columns]
        return Schema.of(pa.schema(kept))

    def _name(self, field: PartitionField) -> str:
        path = self.schema.path_of(field.source_ids[0])
        assert path is not None
        return path[0]


@lru_cache(maxsize=64)
def _read(columns: str, schema: str) -> HiveProperties:
    listed, stated = (
        parse(columns, PARTITION_COLUMNS, InvalidSpec),
        parse(schema, SCHEMA, InvalidSpec),
    )
    if not isinstance(listed, list):
        raise InvalidSpec(f"Cannot read {PARTITION_COLUMNS} {shown(columns)}: expected a list.")
    return _properties(schema_from_any_json(stated), tuple(map(_column_from_json, listed)))


def _properties(given: pa.Schema, terms: tuple[PartitionTerm, ...]) -> HiveProperties:
    if not isinstance(given, pa.Schema):
        Schema.of(given)
    plain = without_ids(given)
    in_path = {term.columns[0] for term in terms if term.derivation == IDENTITY}
    stored = [field for field in plain if field.name not in in_path]
    if not terms:
        raise InvalidSpec("Cannot partition by nothing: the hive layout needs a column at least.")
    if not stored:
        raise InvalidSpec(
            f"Cannot partition by {', '.join(sorted(in_path))}: in the hive layout the values of "
            "identity columns are in the path only, and no column is left to store. Add one, or "
            "use bucket or hash."
        )
    numbered = Schema.of(pa.schema([*stored, *(f for f in plain if f.name in in_path)]))
    ordered = [numbered.arrow.field(name) for name in plain.names]
    schema = Schema.of(pa.schema(ordered, metadata=plain.metadata))
    fields = tuple(_field(term, schema) for term in terms)
    for place, field in enumerate(fields):
        if field.field_id in {other.field_id for other in fields[:place]}:
            raise InvalidSpec(
                f"Cannot partition twice under the name {field.field_id!r}: the hive layout names "
                "folders after the column and the function. Leave one out, or rename a column."
            )
    return HiveProperties(schema, PartitionSpec(1, fields))


def _field(term: PartitionTerm, schema: Schema) -> PartitionField:
    (column,) = term.columns if len(term.columns) == 1 else ("",)
    derivation = term.derivation
    if type(derivation) is Bucket:
        derivation = HiveBucket(derivation.num_buckets)
    if not column or not isinstance(derivation, Transform) or isinstance(derivation, MultiBucket):
        raise InvalidSpec(
            f"Cannot partition by {', '.join(term.columns)} in the hive layout: expected one of "
            f"{', '.join([*_PLAIN, *_PARAMETERS])} of one column."
        )
    if column not in schema.names:
        raise InvalidSpec(
            f"Cannot partition by {column!r}: the schema has no such column. Expected one of "
            f"{', '.join(schema.names)}; the hive layout takes no nested ones."
        )
    source = schema.id_of((column,))
    kind = schema.type_of(source)
    if isinstance(derivation, Truncate) and not (is_text(kind) or pt.is_integer(kind)):
        raise InvalidSpec(
            f"Cannot truncate column {column!r} ({kind}): in the hive layout truncate takes "
            "strings and integers."
        )
    if derivation == IDENTITY:
        try:
            check_text(kind)
        except InvalidSpec as error:
            raise InvalidSpec(
                str(error).replace(f"a column of type {kind}", f"column {column!r} ({kind})")
            ) from None
    if type(derivation) is Truncate and pt.is_signed_integer(kind):
        derivation = HiveTruncate(derivation.width)
    made, result = derived(PartitionTerm(derivation, (column,)), [column], [kind])
    field_id = _field_id(column, made)
    if term.field_id not in (None, field_id):
        raise InvalidSpec(
            f"Cannot name the partition field {term.field_id!r}: in the hive layout it is "
            f"{field_id!r}. Leave the name out."
        )
    return PartitionField(field_id, (source,), made, result)


def _field_id(column: str, derivation: Transform) -> str:
    """The key of a folder (draft: 4, Write Path)."""
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
            told: dict[str, Any] = {
                "function": "bucket",
                "properties": {"num_buckets": str(count)},
            }
        case Truncate(width=width):
            told = {"function": f"truncate({width})", "properties": {"width": str(width)}}
        case HiveHash():
            told = {"function": "hash"}
        case other:
            told = {"function": other.name}
    return {"name": path[0], **told}


def _column_from_json(obj: object) -> PartitionTerm:
    if not isinstance(obj, Mapping) or not isinstance(name := obj.get("name"), str):
        raise InvalidSpec(
            f"Cannot read the partition column {shown(obj)}: expected "
            '{"name": …, "function": …, "properties": {…}}.'
        )
    function, given = obj.get("function") or "identity", obj.get("properties") or {}
    match = _FUNCTION.fullmatch(function) if isinstance(function, str) else None
    kind = "" if match is None else match["name"].lower()
    if match is None or not isinstance(given, Mapping) or kind not in {*_PLAIN, *_PARAMETERS}:
        raise InvalidSpec(
            f"Cannot read the function {shown(function)} of partition column {name!r}: expected "
            f"one of {', '.join(_PLAIN)}, bucket with num_buckets, truncate(N)."
        )
    parameter = _PARAMETERS.get(kind)
    if unknown := [key for key in given if key != parameter]:
        raise InvalidSpec(
            f"Cannot read the property {unknown[0]!r} of partition column {name!r}: "
            f"{kind} has {parameter or 'no properties'}."
        )
    stated = {number for number in (match["number"], given.get(parameter)) if number is not None}
    numbers = {_number(each) for each in stated}
    if parameter is None and not numbers:
        return PartitionTerm(_PLAIN[kind], (name,))
    if parameter is None or len(numbers) != 1 or None in numbers:
        raise InvalidSpec(
            f"Cannot read the partition column {shown(dict(obj))}: {kind} takes "
            + (f"one positive whole number as {parameter}." if parameter else "no number.")
        )
    (number,) = numbers
    assert number is not None
    make = HiveBucket if kind == "bucket" else Truncate
    return PartitionTerm(make(number), (name,))


def _number(given: object) -> int | None:
    """A whole number, as such or as text; None for anything else."""
    if isinstance(given, str) and given.strip().isdecimal():
        return int(given) if len(given) < 20 else None
    if isinstance(given, int) and not isinstance(given, bool):
        return given
    return int(given) if isinstance(given, float) and given.is_integer() else None
