"""Other ways to partition, for partitions that are too small or too large: a spec as text.

What comes back is a suggestion. It fits the schema; whether it fits the queries, the owner knows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.types as pt

from phalanx.errors import PhalanxError
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.evolution import next_spec
from phalanx.model.specs.spec import PartitionField, PartitionSpec
from phalanx.model.sql.literals import quote
from phalanx.model.transforms.buckets import Bucket
from phalanx.model.transforms.calendar_parts import DATE_CHAIN
from phalanx.model.transforms.transform import IDENTITY

_PLAIN_NAME = re.compile(r"[^\W\d]\w*")
# A partition is cut in so many at once, and not in more.
_MOST_PARTS = 64


def coarser(specs: Mapping[int, PartitionSpec], schema: Schema, fewer: int) -> str | None:
    """The newest spec with about so many times fewer partitions, by its innermost field."""
    spec = specs[max(specs)]
    if not spec.fields:
        return None
    *outer, inner = spec.fields
    before = _texts(outer, schema)
    return _first(_coarser_fields(inner, schema, fewer), before, (), specs, schema)


def finer(specs: Mapping[int, PartitionSpec], schema: Schema, parts: int) -> str | None:
    """The newest spec with its partitions cut in about so many parts."""
    parts = min(_MOST_PARTS, 1 << max(1, (parts - 1).bit_length()))
    spec = specs[max(specs)]
    for place, field in enumerate(spec.fields):
        before, after = spec.fields[:place], spec.fields[place + 1 :]
        found = _first(
            _finer_fields(field, spec, schema, parts),
            _texts(before, schema),
            _texts(after, schema),
            specs,
            schema,
        )
        if found is not None:
            return found
    return _first(_more_fields(spec, schema, parts), _texts(spec.fields, schema), (), specs, schema)


def _first(
    candidates: Iterator[Sequence[str]],
    before: Sequence[str] | None,
    after: Sequence[str] | None,
    specs: Mapping[int, PartitionSpec],
    schema: Schema,
) -> str | None:
    """The first of the candidates that makes a spec of its own."""
    if before is None or after is None:
        return None
    for fields in candidates:
        text = ", ".join([*before, *fields, *after])
        try:
            made = next_spec(text, schema, specs)
        except PhalanxError:
            continue
        if made.fields != specs[max(specs)].fields:
            return text
    return None


def _coarser_fields(field: PartitionField, schema: Schema, fewer: int) -> Iterator[Sequence[str]]:
    names = _names(field, schema)
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


def _finer_fields(
    field: PartitionField, spec: PartitionSpec, schema: Schema, parts: int
) -> Iterator[Sequence[str]]:
    names = _names(field, schema)
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


def _more_fields(spec: PartitionSpec, schema: Schema, parts: int) -> Iterator[Sequence[str]]:
    """A bucket of each column that is not partitioned by yet, whole numbers and text first."""
    taken = {source for field in spec.fields for source in field.source_ids}
    columns = [schema.arrow.field(name) for name in schema.names if schema.id_of(name) not in taken]
    for column in sorted(columns, key=lambda column: not _tells_rows_apart(column.type)):
        yield [f"bucket({parts}, {_quoted(column.name)})"]


def _tells_rows_apart(kind: pa.DataType) -> bool:
    return bool(pt.is_integer(kind) or pt.is_string(kind) or pt.is_large_string(kind))


def _texts(fields: Sequence[PartitionField], schema: Schema) -> list[str] | None:
    """The fields as text; None if one of them has none: an expression, or a source that is gone."""
    texts = []
    for field in fields:
        names = _names(field, schema)
        if names is None:
            return None
        texts.append(field.derivation.label(*names))
    return texts


def _names(field: PartitionField, schema: Schema) -> list[str] | None:
    paths = [schema.path_of(source) for source in field.source_ids]
    if field.expression is not None or None in paths:
        return None
    return [_quoted(".".join(path)) for path in paths if path is not None]


def _quoted(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else quote(name, '"')
