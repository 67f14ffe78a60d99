"""Iceberg's transforms, projections and summaries, against pyiceberg and against brute force."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg import expressions as ice
from pyiceberg.expressions.visitors import expression_evaluator, inclusive_projection
from pyiceberg.manifest import construct_partition_summaries
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform, VoidTransform
from pyiceberg.typedef import Record
from pyiceberg.types import FloatType, NestedField, UUIDType

from phalanx.foreign.iceberg.manifests import _read_ranges, to_iceberg_values
from phalanx.foreign.iceberg.schema import schema_of, specs_of
from phalanx.model.predicates.binding import bind_predicate
from phalanx.model.predicates.evaluation import match_arrays
from phalanx.model.predicates.predicate import Predicate
from phalanx.model.schema.schema import Schema as OurSchema
from phalanx.model.specs.spec import PartitionSpec as OurSpec
from phalanx.model.transforms.buckets import Bucket
from phalanx.model.transforms.masked_buckets import MaskedBucket
from phalanx.planning.pruning.projection import project_inclusive
from phalanx.planning.pruning.residual import find_possible_partitions
from phalanx.planning.pruning.value_ranges import can_match_ranges
from properties.iceberg_values import KINDS, Condition, IcebergKind, conditions
from properties.oracle import by_duckdb
from tables import SOAK


class Case:
    """Two columns, each with a partition field, on both sides."""

    def __init__(self, kinds: list[IcebergKind], transforms: list[Any]) -> None:
        self.kinds = kinds
        self.schema = Schema(
            *(
                NestedField(number, f"c{number}", kind.iceberg)
                for number, kind in enumerate(kinds, 1)
            )
        )
        self.spec = PartitionSpec(
            *(
                PartitionField(number, 999 + number, transform, f"p{number}")
                for number, transform in enumerate(transforms, 1)
            )
        )

    @property
    def ours(self) -> tuple[OurSchema, OurSpec]:
        metadata = _Metadata(self.schema, self.spec)
        return schema_of(self.schema, 10), specs_of(metadata, self.schema)[0]  # type: ignore[arg-type]


class _Metadata:
    """The part of a table's metadata that specs are read from."""

    def __init__(self, schema: Schema, spec: PartitionSpec) -> None:
        self.schemas = [schema]
        self.partition_specs = [spec]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=2))
    return Case(kinds, [draw(st.sampled_from(kind.transforms)) for kind in kinds])


@st.composite
def filtered_cases(draw: st.DrawFn) -> tuple[Case, Condition, pa.Table]:
    """A case, a condition on its columns, and rows."""
    case = draw(cases())
    parts = [
        draw(conditions(f"c{number}", kind)) for number, kind in enumerate(case.kinds, start=1)
    ]
    condition = parts[0]
    for other in parts[1:]:
        joint, make = draw(st.sampled_from([("AND", ice.And), ("OR", ice.Or)]))
        sql = f"({condition.sql}) {joint} ({other.sql})"
        condition = Condition(sql, make(condition.iceberg, other.iceberg))
    count = draw(st.integers(1, 8))
    columns = {
        f"c{number}": kind.array(
            draw(st.lists(st.none() | kind.values, min_size=count, max_size=count))
        )
        for number, kind in enumerate(case.kinds, start=1)
    }
    return case, condition, pa.table(columns)


@given(st.data())
def test_a_transform_gives_what_pyiceberg_gives(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(KINDS))
    transform = data.draw(st.sampled_from(kind.transforms))
    values = data.draw(st.lists(st.none() | kind.values, min_size=1, max_size=8))
    _, spec = Case([kind], [transform]).ours
    (field,) = spec.fields
    found = field.derivation.apply(kind.array(values))
    assert found.type == field.result_type
    apply = transform.transform(kind.iceberg)
    expected = [apply(kind.internal(value)) for value in values]
    is_uuid = kind.iceberg == UUIDType() and transform == IdentityTransform()
    assert to_iceberg_values(found, is_uuid) == expected


def _is_plain_uuid(kind: IcebergKind, field: PartitionField) -> bool:
    return kind.iceberg == UUIDType() and isinstance(field.transform, IdentityTransform)


def _records(case: Case, values: pa.Table) -> list[Record]:
    """The partitions as pyiceberg has them."""
    uuids = map(_is_plain_uuid, case.kinds, case.spec.fields)
    columns = [
        to_iceberg_values(column, is_uuid)
        for column, is_uuid in zip(values.columns, uuids, strict=True)
    ]
    return [Record(*each) for each in zip(*columns, strict=True)]


def _match(predicate: Predicate, rows: pa.Table, sql: str) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return which rows match, and check that DuckDB agrees."""
    columns = {name: rows.column(name).combine_chunks() for name in rows.column_names}
    held = match_arrays(predicate, columns, rows.num_rows)
    found: np.ndarray[Any, np.dtype[np.bool_]] = held.to_numpy(zero_copy_only=False)
    judged = by_duckdb(rows, sql)
    assert judged is not None, sql
    assert judged.fill_null(False).to_pylist() == found.tolist(), sql
    return found


@settings(max_examples=2000 if SOAK else 150)
@given(filtered_cases())
def test_a_projection_keeps_what_pyiceberg_keeps_or_less_and_every_match(
    drawn: tuple[Case, Condition, pa.Table],
) -> None:
    case, condition, rows = drawn
    schema, spec = case.ours
    rows = rows.cast(schema.arrow)
    predicate = bind_predicate(condition.sql, schema)
    values = spec.compute_partition_values(rows, schema)
    kept = find_possible_partitions(
        project_inclusive(predicate, spec, schema), spec, values, rows.num_rows
    )
    matching = _match(predicate, rows, condition.sql)
    assert not (matching & ~kept).any()

    # pyiceberg 0.12 compares UUIDs in partitions with the bytes of a constant: it finds none.
    if any(map(_is_plain_uuid, case.kinds, case.spec.fields)):
        return
    projected = inclusive_projection(case.schema, case.spec)(condition.iceberg)
    partition_schema = Schema(*case.spec.partition_type(case.schema).fields)
    evaluate = expression_evaluator(partition_schema, projected, case_sensitive=True)
    theirs = np.array([evaluate(record) for record in _records(case, values)])
    assert not (kept & ~theirs).any()


@settings(max_examples=2000 if SOAK else 150)
@given(filtered_cases())
def test_a_manifest_is_skipped_only_if_no_partition_of_it_matches(
    drawn: tuple[Case, Condition, pa.Table],
) -> None:
    case, condition, rows = drawn
    schema, spec = case.ours
    projected = project_inclusive(bind_predicate(condition.sql, schema), spec, schema)
    values = spec.compute_partition_values(rows.cast(schema.arrow), schema)
    kept = find_possible_partitions(projected, spec, values, rows.num_rows)
    records = _records(case, values)
    assert _may_hold(case, projected, records) or not kept.any()
    # One partition has only its own values; void has empty ranges.
    if not any(isinstance(field.transform, VoidTransform) for field in case.spec.fields):
        assert [_may_hold(case, projected, [record]) for record in records] == kept.tolist()


def _may_hold(case: Case, projected: Predicate, records: list[Record]) -> bool:
    """The verdict on a manifest with these partitions, by the summaries pyiceberg makes of them."""
    _, spec = case.ours
    summaries = construct_partition_summaries(case.spec, case.schema, records)
    return can_match_ranges(projected, dict(_read_ranges(spec, summaries)))


FLOATS = IcebergKind(
    FloatType(),
    pa.float32(),
    st.sampled_from([0.0, -0.0, 1.5, -1.5, float("nan"), float("inf"), float("-inf")]),
    (IdentityTransform(),),
)


@settings(max_examples=2000 if SOAK else 150)
@given(
    st.lists(st.none() | FLOATS.values, min_size=1, max_size=5),
    st.sampled_from(["<", "<=", ">", ">=", "=", "!="]),
    FLOATS.values,
)
def test_summaries_of_floats_hide_no_nan(
    floats: list[float | None], operator: str, constant: float
) -> None:
    case = Case([FLOATS], [IdentityTransform()])
    schema, spec = case.ours
    rows = pa.table({"c1": FLOATS.array(floats)}).cast(schema.arrow)
    sql = f"c1 {operator} {FLOATS.sql(constant)}"
    predicate = bind_predicate(sql, schema)
    projected = project_inclusive(predicate, spec, schema)
    values = spec.compute_partition_values(rows, schema)
    kept = find_possible_partitions(projected, spec, values, rows.num_rows)
    assert not (_match(predicate, rows, sql) & ~kept).any()
    assert _may_hold(case, projected, _records(case, values)) or not kept.any()


@given(st.integers(1, 64), st.integers(1, 64))
def test_buckets_of_iceberg_are_never_ours(one: int, other: int) -> None:
    ours, theirs = Bucket(one), MaskedBucket(other)
    assert ours != theirs
    assert ours.find_reduction(theirs, pa.int64()) is None
    assert theirs.find_reduction(ours, pa.int64()) is None
