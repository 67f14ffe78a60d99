"""Tight pruning: every remaining partition could hold a matching row."""

from __future__ import annotations

import dataclasses
import itertools
from decimal import Decimal

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from phalanx.model.predicates.binding import bind_predicate
from phalanx.model.predicates.rendering import to_datafusion
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.evolution import build_next_spec
from phalanx.model.specs.partition_by import (
    PartitionTerm,
    day,
    hour,
    identity,
    month,
    truncate,
    year,
)
from phalanx.model.specs.spec import PartitionSpec
from phalanx.model.sql import engine
from phalanx.model.sql.literals import render_typed, to_ordinal
from phalanx.planning.pruning.prune import prune
from properties.oracle import find_matches
from properties.strategies import Rows, array_of, quote, rows, specs

Key = tuple[str, ...]


def keys_of(spec: PartitionSpec, table: pa.Table, schema: Schema, names: list[str]) -> list[Key]:
    """The partition of every row, as text, by the named fields only."""
    values = spec.compute_partition_values(table, schema).select(names)
    columns = [[_text(value) for value in values.column(name)] for name in names]
    return list(zip(*columns, strict=True)) if columns else [()] * table.num_rows


def _text(value: pa.Scalar) -> str:
    return repr(to_ordinal(value)) if value.is_valid else "NULL"


def survivors(spec: PartitionSpec, data: Rows, where: str) -> list[bool]:
    """Whether the partition of each row survives the predicate."""
    projection = prune(bind_predicate(where, data.schema), {1: spec}, data.schema).specs[0]
    values = spec.compute_partition_values(data.table, data.schema)
    columns = {
        field.column: values.column(field.field_id).combine_chunks() for field in spec.fields
    }
    kept = engine.evaluate_sql(to_datafusion(projection.filter), columns, data.table.num_rows)
    return [bool(value) for value in kept.to_pylist()]


@given(st.data())
def test_points_keep_only_their_own_partitions(data: st.DataObject) -> None:
    """(2) equality, IN and IS NULL on all sources of some fields."""
    given_rows = data.draw(rows())
    spec = data.draw(specs(given_rows))
    names = data.draw(st.lists(st.sampled_from(list(given_rows.kinds)), min_size=1, unique=True))
    conditions, candidates = [], {}
    for name in names:
        kind = given_rows.kinds[name]
        there = [value for value in given_rows.table.column(name) if value.is_valid]
        drawn = st.one_of(st.sampled_from(there), kind.values) if there else kind.values
        wanted = data.draw(st.lists(drawn, max_size=5))
        if wanted:
            conditions.append(f"{quote(name)} IN ({', '.join(map(render_typed, wanted))})")
            candidates[name] = array_of(wanted, kind.type)
        else:
            conditions.append(f"{quote(name)} IS NULL")
            candidates[name] = pa.nulls(1, kind.type)
    schema = given_rows.schema
    sources = {schema.id_of(name) for name in names}
    determined = [field.field_id for field in spec.fields if sources >= {*field.source_ids}]
    product = [
        array_of([row[place] for row in itertools.product(*candidates.values())], array.type)
        for place, array in enumerate(candidates.values())
    ]
    rest = {n: pa.nulls(len(product[0]), k.type) for n, k in given_rows.kinds.items()}
    possible = pa.table({**rest, **dict(zip(candidates, product, strict=True))})
    allowed = set(keys_of(spec, possible, schema, determined))
    kept = survivors(spec, given_rows, " AND ".join(conditions))
    keys = keys_of(spec, given_rows.table, schema, determined)
    for key, survives in zip(keys, kept, strict=True):
        assert key in allowed or not survives, (conditions, key, allowed)


@dataclasses.dataclass(frozen=True)
class Domain:
    """Values to compare with, and enough others that every range that can hold a value does."""

    ends: pa.Array
    values: pa.Array


def _whole(values: range, ends: range, storage: pa.DataType, data_type: pa.DataType) -> Domain:
    """A type of which all values around the ends are listed."""
    return Domain(*(pa.array(each, storage).cast(data_type) for each in (ends, values)))


def _moments(values: range, ends: slice, storage: pa.DataType, data_type: pa.DataType) -> Domain:
    """First, middle and last moment of every step; a middle is never the end of a range."""
    step = values.step
    outer = [moment for first in values[ends] for moment in (first, first + step - 1)]
    listed = [first + offset for first in values for offset in (0, step // 2, step - 1)]
    return Domain(*(pa.array(each, storage).cast(data_type) for each in (outer, listed)))


def _texts(length: int) -> list[str]:
    return ["".join(chars) for n in range(length) for chars in itertools.product("\0bé", repeat=n)]


NEW_YEAR_2023 = 1_672_531_200
HOURS = range(NEW_YEAR_2023 - 400 * 86_400, NEW_YEAR_2023 + 1200 * 86_400, 3600)
INNER_HOURS = slice(390 * 24, 1190 * 24)
DAYS = range(18_900 * 86_400_000, 20_600 * 86_400_000, 86_400_000)
DOMAINS: dict[str, Domain] = {
    "int16": _whole(range(-600, 601), range(-400, 401), pa.int16(), pa.int16()),
    "uint8": _whole(range(256), range(256), pa.uint8(), pa.uint8()),
    "int8": _whole(range(-128, 128), range(-128, 128), pa.int8(), pa.int8()),
    "decimal": Domain(
        *(
            pa.array([Decimal(n) / 10 for n in range(-end, end)], pa.decimal128(5, 1))
            for end in (400, 3000)
        )
    ),
    "date32": _whole(range(18_900, 20_600), range(19_300, 20_200), pa.int32(), pa.date32()),
    "date64": _moments(DAYS, slice(400, 1300), pa.int64(), pa.date64()),
    "timestamp": _moments(HOURS, INNER_HOURS, pa.int64(), pa.timestamp("s")),
    "zoned": _moments(HOURS, INNER_HOURS, pa.int64(), pa.timestamp("s", "America/New_York")),
    "time": _moments(range(0, 86_400, 900), slice(None), pa.int32(), pa.time32("s")),
    # No text lies between one and the same with a zero byte behind it.
    "text": Domain(pa.array(_texts(4)), pa.array(_texts(6))),
    "bool": Domain(*[pa.array([False, True])] * 2),
}


def _keeping_order(kind: str) -> list[list[PartitionTerm]]:
    chain = [year("c"), month("c"), day("c"), hour("c")]
    by_number = [[identity("c")], *([truncate("c", width)] for width in (1, 3, 10, 100))]
    match kind:
        case "int16" | "uint8" | "int8" | "decimal" | "text":
            return by_number
        case "date32" | "date64":
            return [[identity("c")], *(chain[:n] for n in range(1, 4))]
        case "timestamp" | "zoned":
            return [[identity("c")], *(chain[:n] for n in range(1, 5))]
        case "time":
            return [[identity("c")], [hour("c")]]
    return [[identity("c")]]


@given(st.data())
def test_ranges_keep_only_their_image(data: st.DataObject) -> None:
    """(2) ranges on identity, year, truncate and the date chain."""
    kind = data.draw(st.sampled_from(sorted(DOMAINS)))
    ends, domain = DOMAINS[kind].ends, DOMAINS[kind].values
    schema = Schema.of(pa.schema([("c", domain.type)]))
    spec = build_next_spec(data.draw(st.sampled_from(_keeping_order(kind))), schema, {})
    picks = data.draw(st.lists(st.integers(0, len(ends) - 1), min_size=2, max_size=20))
    low, high = ends[picks[0]], ends[picks[1]]
    above = data.draw(st.sampled_from([">", ">=", ""]))
    below = data.draw(st.sampled_from(["<", "<="] if not above else ["<", "<=", ""]))
    bounds = [f"c {above} {render_typed(low)}"] if above else []
    bounds += [f"c {below} {render_typed(high)}"] if below else []
    where = " AND ".join(bounds)
    inside = find_matches(pa.table({"c": domain}), where)
    assert inside is not None
    image = set(keys_of(spec, pa.table({"c": domain.filter(inside)}), schema, ids_of(spec)))
    there = pa.concat_arrays([ends.take(pa.array(picks)), pa.nulls(1, ends.type)])
    table = pa.table({"c": there})
    data_rows = Rows(schema, {}, table)
    for key, survives in zip(
        keys_of(spec, table, schema, ids_of(spec)), survivors(spec, data_rows, where), strict=True
    ):
        assert (key in image) == survives, (where, key)


def ids_of(spec: PartitionSpec) -> list[str]:
    return [field.field_id for field in spec.fields]
