"""Plans of joins, run without Spark and without storage, against brute force.

Any specs, several versions of them, compatible or not; keys with NULL; leaves of several fragments;
tasks so small that groups are split.Every kind of join gives the rows that it should.
"""

from __future__ import annotations

import dataclasses
import json
import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pt
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.model.schema.schema import Schema
from phalanx.model.specs.evolution import build_next_spec
from phalanx.model.specs.partition_by import PartitionTerm, multi_bucket
from phalanx.model.specs.partition_key import PartitionKey, group_by_partition, read_keys
from phalanx.model.specs.spec import PartitionSpec
from phalanx.planning.joins.execution import LeafPiece
from phalanx.planning.joins.keys import JoinKey, resolve_join_keys, to_comparable
from phalanx.planning.joins.kinds import JOIN_HOWS
from phalanx.planning.joins.leaves import JoinedTable, JoinFragment, JoinLeaf, SpecLeaves
from phalanx.planning.joins.plan import JoinPlan, build_join_plan
from phalanx.storage.streams.hash_join import KEY_PREFIX, JoinInput, hash_join
from properties.join_oracle import brute_force, count_rows, same
from properties.strategies import KINDS, Kind, array_of, terms_for
from tables import SOAK

BY_TYPE = {str(kind.type): kind for kind in KINDS}
ALIKE = [
    ("int32", "int64"),
    ("int8", "uint64"),
    ("float", "double"),
    ("date32[day]", "date64[ms]"),
    ("timestamp[s]", "timestamp[us]"),
    ("timestamp[ns]", "timestamp[us]"),
    ("string", "large_string"),
    ("timestamp[us, tz=Europe/Paris]", "timestamp[ms, tz=America/New_York]"),
]
# The size of a row: some tasks hold one group, others a part of it.
ROW_BYTES = 10_000


@dataclasses.dataclass(frozen=True)
class Side:
    """A table in memory: its leaves by location, each as fragments of rows."""

    table: JoinedTable
    rows: pa.Table
    leaves: dict[str, dict[int, pa.RecordBatch]]


@st.composite
def key_kinds(draw: st.DrawFn) -> tuple[Kind, Kind]:
    if draw(st.booleans()):
        kind = draw(st.sampled_from(KINDS))
        return kind, kind
    one, other = draw(st.sampled_from(ALIKE))
    return BY_TYPE[one], BY_TYPE[other]


@st.composite
def sides(draw: st.DrawFn) -> tuple[Side, Side]:
    """Two tables with two columns to join on, whose values are often equal."""
    first, second = draw(key_kinds()), draw(key_kinds())
    pools: list[tuple[list[Any], list[Any]]] = []
    for mine, theirs in (first, second):
        values = draw(st.lists(mine.values, min_size=1, max_size=4))
        others = [_convert(value, theirs.type) for value in values]
        pools.append(([*values, None], [*others, None]))
    chosen = draw(st.lists(st.integers(0, 25), min_size=1, max_size=3))
    return (
        draw(side("left", (first[0], second[0]), [pool[0] for pool in pools], chosen)),
        draw(side("right", (first[1], second[1]), [pool[1] for pool in pools], chosen)),
    )


def _convert(value: pa.Scalar, kind: pa.DataType) -> pa.Scalar:
    """The same value in another type, or NULL where that does not hold it."""
    try:
        return value.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return pa.scalar(None, kind)


@st.composite
def side(
    draw: st.DrawFn,
    name: str,
    kinds: tuple[Kind, Kind],
    pools: Sequence[Sequence[Any]],
    chosen: Sequence[int],
) -> Side:
    arrow = pa.schema([("k", kinds[0].type), ("j", kinds[1].type), ("n", pa.int64())])
    schema = Schema.of(arrow)
    count = draw(st.integers(0, 14))
    columns = [
        array_of(draw(st.lists(st.sampled_from(pool), min_size=count, max_size=count)), kind.type)
        for pool, kind in zip(pools, kinds, strict=True)
    ]
    rows = pa.RecordBatch.from_arrays(
        [*columns, pa.array(range(count), pa.int64())], schema=schema.arrow
    )
    specs: dict[int, PartitionSpec] = {}
    for _ in range(draw(st.integers(1, 2))):
        spec = build_next_spec(draw(terms(kinds, chosen)), schema, specs)
        specs[spec.id] = spec
    where = draw(st.lists(st.sampled_from(sorted(specs)), min_size=count, max_size=count))
    leaves: dict[str, dict[int, pa.RecordBatch]] = {}
    found = []
    for number, spec in specs.items():
        mine = rows.filter(pa.array([each == number for each in where], pa.bool_()))
        found.append(store_rows(spec, mine, schema, name, leaves, draw))
    order = draw(st.permutations(found))
    return Side(JoinedTable(name, schema, tuple(order)), pa.Table.from_batches([rows]), leaves)


@st.composite
def terms(draw: st.DrawFn, kinds: tuple[Kind, Kind], chosen: Sequence[int]) -> list[PartitionTerm]:
    """One or two fields; both sides choose among the same few, so that they often fit."""
    possible = [
        make(name)
        for name, kind in zip(("k", "j"), kinds, strict=True)
        for make in terms_for(kind.type)
    ]
    possible.append(multi_bucket(["k", "j"], 4))
    some = [possible[number % len(possible)] for number in chosen]
    return draw(st.lists(st.sampled_from(some), min_size=1, max_size=2, unique_by=repr))


def store_rows(
    spec: PartitionSpec,
    rows: pa.RecordBatch,
    schema: Schema,
    name: str,
    leaves: dict[str, dict[int, pa.RecordBatch]],
    draw: st.DrawFn,
) -> SpecLeaves:
    """The rows in leaves, each of one or two fragments; the leaves in any order."""
    groups = group_by_partition(spec, rows, schema)
    made = []
    for place, key in enumerate(read_keys(groups.keys)):
        mine = rows.filter(pa.array(groups.codes == place))
        cut = draw(st.integers(0, mine.num_rows - 1))
        parts = [part for part in (mine.slice(0, cut), mine.slice(cut)) if part.num_rows]
        location = f"{name}/v{spec.id}/{place}"
        leaves[location] = dict(enumerate(parts))
        fragments = tuple(
            JoinFragment(number, part.num_rows, part.num_rows * ROW_BYTES)
            for number, part in enumerate(parts)
        )
        made.append(JoinLeaf(PartitionKey(spec.id, key.values), location, None, fragments))
    order = draw(st.permutations(range(len(made))))
    values = groups.keys.select(groups.keys.column_names[1:]).take(pa.array(order, pa.int64()))
    return SpecLeaves(spec, tuple(made[place] for place in order), values)


def rows_of(
    side: Side, pieces: Sequence[LeafPiece], keys: Sequence[JoinKey], is_left: bool
) -> JoinInput:
    names = [key.left if is_left else key.right for key in keys]
    schema = pa.schema(
        [("n", pa.int64()), *((f"{KEY_PREFIX}{n}", key.type) for n, key in enumerate(keys))]
    )

    def read() -> Iterator[pa.RecordBatch]:
        for piece in pieces:
            for number, batch in side.leaves[piece.leaf.location].items():
                if piece.fragments is None or number in piece.fragments:
                    arrays = [batch.column("n")]
                    arrays += [
                        to_comparable(batch.column(name), key.type)
                        for name, key in zip(names, keys, strict=True)
                    ]
                    yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    return JoinInput(schema, read, sum(piece.bytes for piece in pieces))


def number_rows(rows: JoinInput) -> list[tuple[Any, ...]]:
    """The number and the keys of every row; moments as numbers, because some are far away."""
    found: list[tuple[Any, ...]] = []
    for batch in rows.read():
        columns = [
            column.cast(pa.int32() if pt.is_date32(column.type) else pa.int64())
            if pt.is_temporal(column.type)
            else column
            for column in batch.columns
        ]
        found += zip(*(column.to_pylist() for column in columns), strict=True)
    return found


def run(plan: JoinPlan, how: str, left: Side, right: Side, task_bytes: int | None) -> Any:
    """The numbers of the rows of a join: tasks by the local join, shuffles by brute force."""
    execution = plan.plan_execution(how, task_bytes)
    rows: list[tuple[Any, ...]] = []
    for task in execution.tasks:
        mine, theirs = (
            rows_of(left, task.left, plan.on, True),
            rows_of(right, task.right, plan.on, False),
        )
        for batch in hash_join(task.kind, mine, theirs, memory=200):
            rows += [pad_row(task.kind, tuple(row.values())) for row in batch.to_pylist()]
    for each in execution.shuffles:
        pieces = [[LeafPiece(leaf) for leaf in leaves] for leaves in (each.left, each.right)]
        rows += compute_expected(
            each.kind,
            rows_of(left, pieces[0], plan.on, True),
            rows_of(right, pieces[1], plan.on, False),
        ).elements()
    return count_rows(rows)


def pad_row(kind: str, row: tuple[Any, ...]) -> tuple[Any, ...]:
    return (None, *row) if kind == "right_anti" else row


def compute_expected(kind: str, left: JoinInput, right: JoinInput) -> Any:
    mine, theirs = number_rows(left), number_rows(right)
    width = len(left.keys) + 1

    def meet(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
        return all(same(a, b) for a, b in zip(one[1:], other[1:], strict=True))

    found = brute_force(kind, mine, theirs, meet, (width, width))
    rows = []
    for row in found.elements():
        if kind in ("semi", "anti"):
            rows.append(row[:1])
        elif kind == "right_anti":
            rows.append((None, row[0]))
        else:
            rows.append((row[0], row[width]))
    return count_rows(rows)


@settings(max_examples=500 if SOAK else 150)
@given(
    both=sides(),
    on=st.sampled_from([["k"], ["j"], ["k", "j"], [("k", "k"), ("k", "k")]]),
    task_bytes=st.sampled_from([None, 1, 3 * ROW_BYTES, 20 * ROW_BYTES]),
)
def test_every_kind_of_join_gives_the_rows_of_brute_force(
    both: tuple[Side, Side], on: Any, task_bytes: int | None
) -> None:
    left, right = both
    keys = resolve_join_keys(on, left.table.schema, right.table.schema)
    plan = build_join_plan(left.table, right.table, keys)
    everything = [
        rows_of(side, [LeafPiece(leaf) for leaf in side.table.leaves], keys, is_left)
        for side, is_left in ((left, True), (right, False))
    ]
    for how in JOIN_HOWS:
        assert run(plan, how, left, right, task_bytes) == compute_expected(how, *everything), how


@settings(max_examples=300 if SOAK else 60)
@given(both=sides(), data=st.data())
def test_a_plan_depends_on_no_order_and_travels(both: tuple[Side, Side], data: Any) -> None:
    left, right = (each.table for each in both)
    keys = resolve_join_keys(["k", "j"], left.schema, right.schema)
    plan = build_join_plan(left, right, keys)
    text = json.dumps(plan.to_dict())
    turned = [
        dataclasses.replace(side, specs=tuple(_reverse(each) for each in side.specs[::-1]))
        for side in (left, right)
    ]
    again = build_join_plan(*turned, keys)
    assert json.dumps(again.to_dict()) == text
    assert str(again) == str(plan)
    copied = pickle.loads(pickle.dumps(plan))
    assert json.dumps(copied.to_dict()) == text
    # Every leaf with rows is in exactly one group, alone, or shuffled.
    named = [leaf.location for group in plan.groups for leaf in (*group.left, *group.right)]
    named += [leaf.location for leaf in (*plan.left_only, *plan.right_only)]
    every = [leaf.location for leaf in (*left.leaves, *right.leaves)]
    assert len(set(named)) == len(named)
    assert set(named) <= set(every)
    if plan.compatible:
        assert sorted(named) == sorted(every)
        assert not any(plan.plan_execution(how).shuffles for how in JOIN_HOWS)


def _reverse(each: SpecLeaves) -> SpecLeaves:
    order = list(range(len(each.leaves)))[::-1]
    return SpecLeaves(
        each.spec,
        tuple(each.leaves[place] for place in order),
        each.values.take(pa.array(order, pa.int64())),
    )
