"""Suggest coarser or finer specs, as text, for partitions that are too small or too large.

A suggestion is valid for the schema. Whether it suits the queries is for the user to decide.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.types as pt

from phalanx.errors import PhalanxError
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.evolution import build_next_spec
from phalanx.model.specs.spec import PartitionField, PartitionSpec
from phalanx.model.sql.literals import quote_identifier
from phalanx.model.transforms.buckets import Bucket
from phalanx.model.transforms.calendar_parts import DATE_CHAIN
from phalanx.model.transforms.transform import IDENTITY

_PLAIN_NAME = re.compile(r"[^\W\d]\w*")
# Split a partition into at most this many parts.
_MAX_PARTS = 64


def suggest_coarser_spec(
    specs: Mapping[int, PartitionSpec], schema: Schema, fewer: int
) -> str | None:
    """Suggest a spec with about `fewer` times fewer partitions, by changing the innermost field."""
    spec = specs[max(specs)]
    if not spec.fields:
        return None
    *outer, inner = spec.fields
    before = _format_fields(outer, schema)
    return _find_first_valid(_list_coarser_fields(inner, schema, fewer), before, (), specs, schema)


def suggest_finer_spec(
    specs: Mapping[int, PartitionSpec], schema: Schema, parts: int
) -> str | None:
    """Suggest a spec that splits each partition into about `parts` parts."""
    parts = min(_MAX_PARTS, 1 << max(1, (parts - 1).bit_length()))
    spec = specs[max(specs)]
    for position, field in enumerate(spec.fields):
        before, after = spec.fields[:position], spec.fields[position + 1 :]
        found = _find_first_valid(
            _list_finer_fields(field, spec, schema, parts),
            _format_fields(before, schema),
            _format_fields(after, schema),
            specs,
            schema,
        )
        if found is not None:
            return found
    return _find_first_valid(
        _list_bucket_fields(spec, schema, parts),
        _format_fields(spec.fields, schema),
        (),
        specs,
        schema,
    )


def _find_first_valid(
    candidates: Iterator[Sequence[str]],
    before: Sequence[str] | None,
    after: Sequence[str] | None,
    specs: Mapping[int, PartitionSpec],
    schema: Schema,
) -> str | None:
    """Return the first candidate that is a valid new spec."""
    if before is None or after is None:
        return None
    for fields in candidates:
        text = ", ".join([*before, *fields, *after])
        try:
            made = build_next_spec(text, schema, specs)
        except PhalanxError:
            continue
        if made.fields != specs[max(specs)].fields:
            return text
    return None


def _list_coarser_fields(
    field: PartitionField, schema: Schema, fewer: int
) -> Iterator[Sequence[str]]:
    names = _list_source_names(field, schema)
    match field.derivation:
        case Bucket(num_buckets=count) if names is not None:
            fitting = [n for n in range(2, count // max(fewer, 2) + 1) if count % n == 0]
            if fitting:
                yield [type(field.derivation)(fitting[-1]).label(*names)]
        case derivation if derivation == IDENTITY and names is not None:
            kind = schema.type_of(field.source_ids[0])
            if pt.is_date(kind) or pt.is_timestamp(kind):
                yield [f"year({names[0]})", f"month({names[0]})"]
            elif not pt.is_boolean(kind):
                yield [f"bucket(16, {names[0]})"]
    yield []


def _list_finer_fields(
    field: PartitionField, spec: PartitionSpec, schema: Schema, parts: int
) -> Iterator[Sequence[str]]:
    names = _list_source_names(field, schema)
    if names is None:
        return
    match field.derivation:
        case Bucket(num_buckets=count):
            yield [type(field.derivation)(count * parts).label(*names)]
        case derivation if derivation in DATE_CHAIN:
            last = DATE_CHAIN.index(derivation) + 1
            taken = {each.derivation for each in spec.fields if each.source_ids == field.source_ids}
            if last < len(DATE_CHAIN) and DATE_CHAIN[last] not in taken:
                yield [derivation.label(*names), DATE_CHAIN[last].label(*names)]


def _list_bucket_fields(spec: PartitionSpec, schema: Schema, parts: int) -> Iterator[Sequence[str]]:
    """Yield a bucket of each column without a partition field, integers and text first."""
    taken = {source for field in spec.fields for source in field.source_ids}
    columns = [schema.arrow.field(name) for name in schema.names if schema.id_of(name) not in taken]
    for column in sorted(columns, key=lambda column: not _has_many_values(column.type)):
        yield [f"bucket({parts}, {_quote_name(column.name)})"]


def _has_many_values(kind: pa.DataType) -> bool:
    return bool(pt.is_integer(kind) or pt.is_string(kind) or pt.is_large_string(kind))


def _format_fields(fields: Sequence[PartitionField], schema: Schema) -> list[str] | None:
    """Return the fields as text; None if one is an expression or has a dropped source."""
    texts = []
    for field in fields:
        names = _list_source_names(field, schema)
        if names is None:
            return None
        texts.append(field.derivation.label(*names))
    return texts


def _list_source_names(field: PartitionField, schema: Schema) -> list[str] | None:
    paths = [schema.path_of(source) for source in field.source_ids]
    if field.expression is not None or None in paths:
        return None
    return [_quote_name(".".join(path)) for path in paths if path is not None]


def _quote_name(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else quote_identifier(name, '"')
