"""Partitioning as Spark writes it, and the partition fields that it means.

Spark's `years`, `months`, `days` and `hours` count since 1970; the format has the parts of a
calendar. `months(ts)` becomes year and month, so that the same rows are in one partition.

    PARTITIONED BY              partition fields
    country, identity(country)  country
    years(ts)                   year(ts)
    months(ts)                  year(ts), month(ts)
    days(ts)                    year(ts), month(ts), day(ts)
    hours(ts)                   year(ts), month(ts), day(ts), hour(ts)
    year(ts), month(ts), …      the one part
    bucket(16, id)              bucket(16, id)
    bucket(16, a, b)            multi_bucket([a, b], 16)
    truncate(4, name)           truncate(4, name)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from phalanx.errors import InvalidSpec
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.partition_by import PartitionTerm
from phalanx.model.specs.spec import PartitionField, PartitionSpec
from phalanx.model.transforms.buckets import Bucket, MultiBucket
from phalanx.model.transforms.calendar_parts import DATE_CHAIN
from phalanx.model.transforms.transform import IDENTITY, Identity, Transform
from phalanx.model.transforms.truncate import Truncate
from phalanx.spark.pushdown.partitioning import is_known_to_java, source_columns
from phalanx.spark.runtime.types import is_collated
from phalanx.storage.state.table_state import LeafListing

_CHAINS = {f"{part.name}s": DATE_CHAIN[: n + 1] for n, part in enumerate(DATE_CHAIN)}
_PARTS = {part.name: (part,) for part in DATE_CHAIN}
_KNOWN = ("identity", *_CHAINS, *_PARTS, "bucket", "multi_bucket", "truncate")


def terms_of(transforms: Sequence[Mapping[str, Any]]) -> list[PartitionTerm]:
    """What PARTITIONED BY means; what is in it twice, as the year of months, is there once."""
    return list(dict.fromkeys(term for each in transforms for term in _terms(each)))


def _terms(transform: Mapping[str, Any]) -> Iterator[PartitionTerm]:
    name = transform["call"]
    columns = [arg["column"] for arg in transform["args"] if "column" in arg]
    numbers = [int(arg["value"]) for arg in transform["args"] if "value" in arg]
    match name, columns, numbers:
        case "identity", [_], []:
            yield _term(IDENTITY, columns)
        case _, [_], [] if name in _CHAINS or name in _PARTS:
            for part in (_CHAINS | _PARTS)[name]:
                yield _term(part, columns)
        case "bucket", [_], [number]:
            yield _term(Bucket(number), columns)
        case "bucket" | "multi_bucket", [_, *_], [number]:
            yield _term(MultiBucket(number), columns)
        case "truncate", [_], [number]:
            yield _term(Truncate(number), columns)
        case _:
            shown = ", ".join([*map(str, numbers), *(".".join(path) for path in columns)])
            raise InvalidSpec(
                f"Cannot partition by {name}({shown}): expected one of {', '.join(_KNOWN)}, as "
                "years(ts), bucket(16, id), truncate(4, name), country. Other fields can be "
                "written as TBLPROPERTIES (partition_by='…')."
            )


def _term(transform: Transform, columns: Sequence[Sequence[str]]) -> PartitionTerm:
    """The term; one of a nested column gets the name that a plain column would give it."""
    field_id = None
    if any(len(path) > 1 for path in columns):
        names = ["_".join(path) for path in columns]
        suffix = [] if transform == IDENTITY else [transform.name]
        field_id = "_".join([*names, *suffix])
    return PartitionTerm(transform, tuple(".".join(path) for path in columns), field_id)


def described(spec: PartitionSpec, schema: Schema) -> list[dict[str, Any]]:
    """The fields of a spec as transforms that Spark shows."""
    found = [_described(field, schema) for field in spec.fields]
    return [each for each in found if each is not None]


def clusters(spec: PartitionSpec, schema: Schema) -> list[dict[str, Any]]:
    """The fields that Spark can compute, so as to bring the rows of a partition together."""
    return [
        told
        for field in spec.fields
        if _is_computable(field, schema) and (told := _described(field, schema)) is not None
    ]


def orders(spec: PartitionSpec, schema: Schema) -> list[dict[str, Any]]:
    """What Spark sorts rows by, so that those of a partition follow each other.

    Where the value itself cannot be computed but follows the order of the column, that.
    """
    found = clusters(spec, schema)
    for field in spec.fields:
        if isinstance(field.derivation, Truncate):
            told = _described(field, schema)
            if told is not None and not is_collated(schema.field(field.source_ids[0])):
                found.append({**told, "name": Identity.name, "parameters": []})
    return found


def pruning(manifest: LeafListing) -> dict[str, list[dict[str, Any]]]:
    """By which columns a change of rows can leave partitions out, and what tells values apart.

    Values of which all fields are the same are in the same partitions: one of them does for all.
    Where Spark cannot compute a field of a column, each value stands for itself.
    """
    schema = manifest.properties.schema
    found = {}
    for name, fields in source_columns(manifest).items():
        told = {
            field.meaning: _described(field, schema)
            for field in fields
            if _is_computable(field, schema)
        }
        known = all(field.meaning in told for field in fields)
        found[name] = [each for each in told.values() if each is not None] if known else []
    return found


def _described(field: PartitionField, schema: Schema) -> dict[str, Any] | None:
    paths = [schema.path_of(source) for source in field.source_ids]
    if any(path is None for path in paths):
        return None
    if field.expression is not None:
        return {"name": "expression", "columns": paths, "parameters": [field.expression]}
    assert isinstance(field.derivation, Transform)
    parameters = list(field.derivation.parameters.values())
    return {"name": field.derivation.name, "columns": paths, "parameters": parameters}


def _is_computable(field: PartitionField, schema: Schema) -> bool:
    paths = [schema.path_of(source) for source in field.source_ids]
    return (
        len(paths) == 1
        and paths[0] is not None
        and len(paths[0]) == 1
        and is_known_to_java(field, schema.field(field.source_ids[0]))
    )
