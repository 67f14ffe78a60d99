"""Joins of random tables with any partitioning equal Spark's own joins of the rows."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import Phase, given, note, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

import phalanx
import phalanx.spark
from phalanx.planning.joins.kinds import JOIN_HOWS
from phalanx.spark.runtime.types import spark_schema
from spark.joins import assert_same
from tables import SOAK

VALUES: dict[str, Sequence[Any]] = {
    "id": range(-6, 14),
    "name": ["", "a", "ab", "abc", "abcd", "b", "né", "nés", "日本", "日本語"],
    "day": [date(year, month, 28) for year in (1969, 1970, 2024) for month in (1, 2, 12)],
    "at": [
        datetime(year, 12, 31, hour, 30, tzinfo=UTC) for year in (1969, 2024) for hour in (0, 4, 23)
    ],
}
TYPES = {
    "id": (pa.int32(), pa.int64()),
    "name": (pa.string(), pa.string()),
    "day": (pa.date32(), pa.date32()),
    "at": (pa.timestamp("us", "UTC"), pa.timestamp("us", "UTC")),
}
Names = Mapping[str, str]
# Fields that come together: a month without its year says little.
Part = tuple[str, ...]
# Kinds of parts, by the columns that they are of: those of one kind often fit each other.
KINDS: list[tuple[set[str], list[Part]]] = [
    ({"id"}, [(f"bucket({count}, {{id}})",) for count in (2, 4, 3, 6)]),
    ({"id"}, [(f"truncate({width}, {{id}})",) for width in (3, 6, 4)] + [("{id}",)]),
    ({"name"}, [(f"truncate({width}, {{name}})",) for width in (1, 2, 3)] + [("{name}",)]),
    ({"name"}, [(f"bucket({count}, {{name}})",) for count in (2, 4, 5)]),
    ({"id", "name"}, [(f"multi_bucket({count}, {{id}}, {{name}})",) for count in (2, 4, 3)]),
    (
        {"day"},
        [
            *(("year({day})", "month({day})", "day({day})")[:length] for length in (1, 2, 3)),
            ("{day}",),
        ],
    ),
    (
        {"at"},
        [("year({at})", "month({at})", "day({at})", "hour({at})")[:length] for length in (1, 3, 4)],
    ),
]
ANYTHING = [(), *(part for _, parts in KINDS for part in parts)]


@dataclass(frozen=True)
class Side:
    """How a table is partitioned, version after version, and the rows that each version gets."""

    versions: list[Part]
    rows: list[int]
    seed: int
    mode: str

    def data(self, schema: pa.Schema) -> list[pa.Table]:
        """The rows of each version: of each column many have one value, and some have none."""
        random = np.random.default_rng(self.seed)
        found = []
        for count in self.rows:
            columns: list[Any] = [range(count)]
            for values in VALUES.values():
                chosen = random.integers(0, len(values), count)
                chosen[random.random(count) < random.choice([0, 0.5, 0.9])] = 1
                missing = random.random(count) < random.choice([0, 0.2])
                pairs = zip(chosen, missing, strict=True)
                columns.append([None if is_missing else values[n] for n, is_missing in pairs])
            found.append(pa.table(columns, schema=schema))
        return found

    def store(self, uri: str, data: Sequence[pa.Table], names: Names) -> phalanx.Table:
        """A table with the rows, those of each version in two fragments."""
        specs = [", ".join(version).format_map(names) for version in self.versions]
        table = phalanx.create(uri, data[0].schema, specs[0], transaction=self.mode)
        for number, (spec, rows) in enumerate(zip(specs, data, strict=True)):
            if number:
                table.evolve(spec)
            table.append(rows.slice(0, len(rows) // 2))
            table.append(rows.slice(len(rows) // 2))
        return table


@st.composite
def sides(draw: st.DrawFn) -> tuple[list[str], Side, Side]:
    """Columns to join on, and two tables that are often partitioned by them in fitting ways."""
    on = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=3, unique=True))
    kind = draw(st.sampled_from([parts for columns, parts in KINDS if columns <= set(on)]))
    is_wild = draw(st.booleans())
    return on, draw(side(kind, is_wild)), draw(side(kind, is_wild))


@st.composite
def side(draw: st.DrawFn, kind: list[Part], is_wild: bool) -> Side:
    spec = st.sampled_from(kind) | st.builds(
        _both, st.sampled_from(kind), st.sampled_from(ANYTHING)
    )
    if is_wild:
        spec |= st.sampled_from(ANYTHING)
    drawn = draw(st.lists(spec, min_size=1, max_size=3))
    # A spec that equals the previous one is no evolution.
    versions = [spec for place, spec in enumerate(drawn) if not place or spec != drawn[place - 1]]
    rows = [draw(st.sampled_from([20, 40, 4, 0])) for _ in versions]
    seed = draw(st.integers(0, 2**32 - 1))
    return Side(versions, rows, seed, draw(st.sampled_from(["weak", "strong"])))


def _both(one: Part, other: Part) -> Part:
    return tuple(dict.fromkeys(one + other))


def to_frame(spark: SparkSession, rows: pa.Table) -> DataFrame:
    # Of a table in several chunks Spark drops what comes after an empty one.
    return spark.createDataFrame(rows.combine_chunks(), spark_schema(rows.schema))


# A smaller example takes minutes to find: only the soak looks for one.
@settings(max_examples=60 if SOAK else 6, phases=set(Phase) - (set() if SOAK else {Phase.shrink}))
@given(both=sides(), pairs=st.booleans(), task_bytes=st.sampled_from([None, 10_000]))
def test_joins_of_random_tables_are_sparks_own(
    spark: SparkSession,
    both: tuple[list[str], Side, Side],
    pairs: bool,
    task_bytes: int | None,
) -> None:
    on, left, right = both
    # Only join columns with one name may be in both tables.
    names = {name: name if name in on and not pairs else f"right_{name}" for name in VALUES}
    mine = left.data(pa.schema([("l", pa.int32()), *((n, TYPES[n][0]) for n in VALUES)]))
    theirs = right.data(pa.schema([("r", pa.int32()), *((names[n], TYPES[n][1]) for n in VALUES)]))
    columns: Any = [(name, names[name]) for name in on] if pairs else on
    with tempfile.TemporaryDirectory() as folder:
        one = left.store(f"{folder}/left", mine, {name: name for name in VALUES})
        other = right.store(f"{folder}/right", theirs, names)
        note(str(phalanx.spark.plan_join(one, other, columns)))
        found = {
            how: phalanx.spark.join(spark, one, other, columns, how, task_bytes=task_bytes)
            for how in JOIN_HOWS
        }
        first, second = (to_frame(spark, pa.concat_tables(each)) for each in (mine, theirs))
        condition = [first[a] == second[b] for a, b in columns] if pairs else on
        assert_same(found, {how: first.join(second, condition, how) for how in JOIN_HOWS})
