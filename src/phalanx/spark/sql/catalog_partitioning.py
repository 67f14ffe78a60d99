"""Translation between PARTITIONED BY and partition fields.

Spark's `years`, `months`, `days` and `hours` count from 1970; the format has calendar parts.
`months(ts)` becomes year and month, which puts the same rows into one partition.

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
from phalanx.spark.pushdown.partitioning import fields_by_column, is_computable_in_java
from phalanx.spark.runtime.types import is_collated
from phalanx.storage.state.table_state import TableState

_CHAINS = {f"{part.name}s": DATE_CHAIN[: n + 1] for n, part in enumerate(DATE_CHAIN)}
_PARTS = {part.name: (part,) for part in DATE_CHAIN}
_KNOWN = ("identity", *_CHAINS, *_PARTS, "bucket", "multi_bucket", "truncate")


def terms_of(transforms: Sequence[Mapping[str, Any]]) -> list[PartitionTerm]:
    """Return the terms of PARTITIONED BY. Terms that occur twice, such as years, are kept once."""
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
    """Build a term. For a nested column, name its field as for a top-level one."""
    field_id = None
    if any(len(path) > 1 for path in columns):
        names = ["_".join(path) for path in columns]
        suffix = [] if transform == IDENTITY else [transform.name]
        field_id = "_".join([*names, *suffix])
    return PartitionTerm(transform, tuple(".".join(path) for path in columns), field_id)


def describe_fields(spec: PartitionSpec, schema: Schema) -> list[dict[str, Any]]:
    """Describe the fields of a spec as transforms that Spark shows."""
    found = [_describe_field(field, schema) for field in spec.fields]
    return [each for each in found if each is not None]


def clustering_fields(spec: PartitionSpec, schema: Schema) -> list[dict[str, Any]]:
    """Describe the fields that Spark can compute, to cluster rows by partition."""
    return [
        described
        for field in spec.fields
        if _is_computable(field, schema)
        and (described := _describe_field(field, schema)) is not None
    ]


def ordering_fields(spec: PartitionSpec, schema: Schema) -> list[dict[str, Any]]:
    """Describe what Spark sorts rows by, so that the rows of a partition are adjacent.

    For a truncated column, which Spark cannot compute, sort by the column itself.
    """
    found = clustering_fields(spec, schema)
    for field in spec.fields:
        if isinstance(field.derivation, Truncate):
            described = _describe_field(field, schema)
            if described is not None and not is_collated(schema.field(field.source_ids[0])):
                found.append({**described, "name": Identity.name, "parameters": []})
    return found


def pruning_fields(state: TableState) -> dict[str, list[dict[str, Any]]]:
    """Describe, for each column that can prune a change of rows, the fields that group its values.

    Values with equal fields are in the same partitions, so Spark collects one of them. The list is
    empty if Spark cannot compute a field of the column: then it collects every value.
    """
    schema = state.properties.schema
    found = {}
    for name, fields in fields_by_column(state).items():
        described = {
            field.meaning: _describe_field(field, schema)
            for field in fields
            if _is_computable(field, schema)
        }
        known = all(field.meaning in described for field in fields)
        found[name] = [each for each in described.values() if each is not None] if known else []
    return found


def _describe_field(field: PartitionField, schema: Schema) -> dict[str, Any] | None:
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
        and is_computable_in_java(field, schema.field(field.source_ids[0]))
    )
