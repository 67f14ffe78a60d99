"""The laws of the expression draft: sound pruning through its hashes, JSON that reads back."""

from __future__ import annotations

import hashlib

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st

from phalanx.errors import InvalidSpec
from phalanx.model.predicates.predicate import FALSE, TRUE
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.evolution import build_next_spec
from phalanx.model.specs.expression_draft import spec_from_draft_json, spec_to_draft_json
from phalanx.model.specs.partition_by import bucket, identity, multi_bucket, truncate, year
from phalanx.model.specs.spec import PartitionSpec
from phalanx.model.transforms.expression import build_expression
from properties.oracle import find_matches
from properties.strategies import Rows, predicates, rows
from properties.test_pruning import prune_rows


@st.composite
def drafted_specs(draw: st.DrawFn, data: Rows) -> PartitionSpec:
    """Buckets of one and of several columns, and perhaps another field."""
    names = list(data.kinds)
    several = draw(st.permutations(names))[: draw(st.integers(1, len(names)))]
    count = draw(st.sampled_from([1, 3, 16, 1000]))
    terms = [
        bucket(draw(st.sampled_from(names)), count),
        multi_bucket(several, count),
        identity(names[0]),
        truncate(names[0], 3),
        year(names[0]),
    ]
    chosen = draw(st.lists(st.sampled_from(terms), min_size=1, max_size=3, unique_by=repr))
    try:
        return build_next_spec(chosen, data.schema, {}, is_draft=True)
    except InvalidSpec:
        # A column that has no year, or cannot be cut.
        assume(False)
        raise


@given(st.data())
def test_no_matching_row_is_lost(data: st.DataObject) -> None:
    """Sound, as the spec is and as it reads back."""
    given_rows = data.draw(rows())
    drawn = data.draw(drafted_specs(given_rows))
    spec = spec_from_draft_json(drawn.id, spec_to_draft_json(drawn))
    assert (spec, spec_to_draft_json(spec)) == (drawn, spec_to_draft_json(drawn))
    where = data.draw(predicates(given_rows))
    matches = find_matches(given_rows.table, where)
    assume(matches is not None)
    pruning, kept = prune_rows(where, spec, given_rows)
    event(f"prunes: {pruning.specs[0].filter not in (TRUE, FALSE)}")
    lost = pc.and_(matches, pc.invert(kept))
    assert not pc.any(lost).as_py(), (where, str(pruning), given_rows.table.filter(lost))


@given(st.lists(st.tuples(st.none() | st.text(), st.none() | st.integers(-9, 9)), max_size=8))
def test_buckets_are_what_hashlib_says(values: list[tuple[str | None, int | None]]) -> None:
    """Equality on all sources finds the one partition: the same arithmetic, row by row."""
    texts = pa.array([text for text, _ in values], pa.string())
    numbers = pa.array([number for _, number in values], pa.int32())
    made = build_expression(
        "abs(md5_int(concat(col0, col1))) % 16", [pa.string(), pa.int32()], pa.int64()
    )

    def compute_expected(text: str | None, number: int | None) -> int | None:
        if text is None and number is None:
            return None
        joined = (text or "") + ("" if number is None else str(number))
        digest = hashlib.md5(joined.encode()).digest()
        return abs(int.from_bytes(digest[:8], "big", signed=True)) % 16

    assert made.apply(texts, numbers).to_pylist() == [compute_expected(*each) for each in values]


@pytest.mark.parametrize("a", [0, 7, 49, 50])
@pytest.mark.parametrize("b", ["x", "y"])
def test_equality_on_all_sources_reads_one_bucket(a: int, b: str) -> None:
    """Tight: the partition of one combination of values, and no other."""
    schema = Schema.of(pa.schema([("a", pa.int64()), ("b", pa.string())]))
    spec = build_next_spec([multi_bucket(["a", "b"], 1000)], schema, {}, is_draft=True)
    table = pa.table({"a": list(range(50)) * 2, "b": ["x"] * 50 + ["y"] * 50}, schema=schema.arrow)
    given_rows = Rows(schema, {}, table)
    _, kept = prune_rows(f"a = {a} AND b = '{b}'", spec, given_rows)
    [number] = (
        spec.compute_partition_values(pa.table({"a": [a], "b": [b]}, schema=schema.arrow), schema)
        .column(0)
        .to_pylist()
    )
    values = spec.compute_partition_values(table, schema).column(0).to_pylist()
    assert kept.to_pylist() == [each == number for each in values]
