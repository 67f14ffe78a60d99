"""Search equals brute force over the concatenated rows: every metric and kind of vector, NULL and
NaN, ties, any `where`, three spec versions; words by the statistics of all partitions together.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import phalanx
from phalanx.model.search.vectors import metrics_of
from properties.oracle import by_duckdb
from tables import SOAK

SIZE = 3
KINDS = {
    "half": pa.float16(),
    "single": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.uint8(),
}
SCHEMA = pa.schema(
    [
        ("tenant", pa.string()),
        ("id", pa.int32()),
        ("day", pa.date32()),
        ("body", pa.string()),
        *((name, pa.list_(kind, SIZE)) for name, kind in KINDS.items()),
    ]
)
WORDS = ["fox", "foxes", "dog", "the", "run", "running", "spear"]
WHERES = [
    None,
    "tenant = 'a'",
    "tenant <> 'a' OR tenant IS NULL",
    "id % 3 = 0",
    "id BETWEEN 20 AND 50 AND day < '2025-06-01'",
    "upper(tenant) = 'B' OR id = 7",
    "tenant = 'nobody'",
    "NOT (tenant IN ('a', 'b') AND id IN (1, 2, 3))",
    "tenant NOT IN ('a', NULL) OR id < 20.5",
    "(tenant = 'a') IS NOT TRUE AND date_part('month', day) > 6",
]
CASES = [(name, metric) for name, kind in KINDS.items() for metric in metrics_of(pa.list_(kind, 1))]


def draw_rows(random: np.random.Generator, rows: int, start: int) -> pa.Table:
    """Small whole numbers, so that distances are exact and often the same."""

    def vectors(kind: pa.DataType) -> list[Any]:
        found: list[Any] = random.integers(0, 4, (rows, SIZE)).astype(float).tolist()
        for place in random.integers(0, rows, rows // 8):
            found[place] = None
        if kind != pa.uint8():
            for place in random.integers(0, rows, rows // 8):
                if found[place] is not None:
                    found[place][1] = [math.nan, math.inf, -1.0][place % 3]
        return found

    texts = [" ".join(random.choice(WORDS, random.integers(0, 9))) for _ in range(rows)]
    return pa.table(
        {
            "tenant": [[None, "a", "b", "c"][n] for n in random.integers(0, 4, rows)],
            "id": range(start, start + rows),
            "day": pa.array(random.integers(20089, 20453, rows), pa.int32()).cast(pa.date32()),
            "body": [None if n % 9 == 4 else text for n, text in enumerate(texts)],
            **{name: pa.array(vectors(k), pa.list_(k, SIZE)) for name, k in KINDS.items()},
        },
        schema=SCHEMA,
    )


@pytest.fixture(scope="module", params=["strong", "weak"])
def table(request: pytest.FixtureRequest) -> Iterator[phalanx.Table]:
    """Three specs, several files in a partition, and deleted rows."""
    random = np.random.default_rng(3)
    with tempfile.TemporaryDirectory() as folder:
        made = phalanx.create(str(Path(folder) / "t"), SCHEMA, "tenant", transaction=request.param)
        start = 0
        for spec in ("tenant, bucket(2, id)", "month(day)", None):
            for rows in (25, 15):
                made.append(draw_rows(random, rows, start))
                start += rows
            if spec is not None:
                made.evolve(spec)
        made.delete("id % 10 = 3")
        yield made


def order_of(table: phalanx.Table) -> dict[int, int]:
    """Return the position of each row in a scan by its id: equal rows keep this order."""
    ids = table.scan(columns=["id"]).to_arrow().column("id").to_pylist()
    return {each: place for place, each in enumerate(ids)}


def matching_ids(table: phalanx.Table, where: str | None) -> set[int]:
    """Return the ids of the rows that match by DuckDB."""
    rows = table.scan(columns=["tenant", "id", "day"]).to_arrow()
    judged = by_duckdb(rows, where or "true")
    assert judged is not None, where
    return set(rows.filter(judged).column("id").to_pylist())


def distance(metric: str, one: list[float], other: list[float]) -> float:
    product = sum(a * b for a, b in zip(one, other, strict=True))
    if metric == "l2":
        return sum((a - b) ** 2 for a, b in zip(one, other, strict=True))
    if metric == "dot":
        return 1 - product
    if metric == "hamming":
        return sum((int(a) ^ int(b)).bit_count() for a, b in zip(one, other, strict=True))
    lengths = math.hypot(*one) * math.hypot(*other)
    return 1 - product / lengths if lengths else math.nan


@settings(max_examples=200 if SOAK else 30)
@given(
    case=st.sampled_from(CASES),
    query=st.lists(st.integers(0, 3), min_size=SIZE, max_size=SIZE),
    where=st.sampled_from(WHERES),
    k=st.sampled_from([1, 3, 10, 1000]),
)
@example(("single", "cosine"), [1, 1, 1], None, 1000)
def test_vectors(
    table: phalanx.Table, case: tuple[str, str], query: list[int], where: str | None, k: int
) -> None:
    column, metric = case
    if metric == "cosine" and not any(query):
        return
    places = order_of(table)
    wanted = []
    kept = matching_ids(table, where)
    for row in table.scan(columns=["id", column]).to_arrow().to_pylist():
        if row["id"] in kept and row[column] is not None:
            with np.errstate(all="ignore"):
                found = distance(metric, row[column], [float(each) for each in query])
            if not math.isnan(found):
                wanted.append((np.float32(found), places[row["id"]], row["id"]))
    rows = table.search(column, query, k, where, ["id"], metric=metric)
    got = list(zip(rows["_distance"].to_pylist(), rows["id"].to_pylist(), strict=True))
    wanted.sort()
    if metric == "cosine":
        # Rounding decides between equal directions, so distances are compared.
        assert len(got) == min(k, len(wanted))
        np.testing.assert_allclose([d for d, _ in got], [w[0] for w in wanted[:k]], atol=1e-6)
        by_id = {number: found for found, _, number in wanted}
        np.testing.assert_allclose([d for d, _ in got], [by_id[n] for _, n in got], atol=1e-6)
    else:
        assert got == [(found, number) for found, _, number in wanted[:k]]


def tokens(text: str | None) -> list[str]:
    return [token.text for token in lance.tokenize(text or "")]


@settings(max_examples=60 if SOAK else 8)
@given(
    words=st.lists(st.sampled_from([*WORDS, "nothing"]), min_size=1, max_size=3).map(" ".join),
    where=st.sampled_from(WHERES),
    k=st.sampled_from([1, 5, 1000]),
    operator=st.sampled_from(["or", "and"]),
)
def test_words(table: phalanx.Table, words: str, where: str | None, k: int, operator: str) -> None:
    places = order_of(table)
    kept = matching_ids(table, where)
    # Statistics are those of the partitions that are planned, with all their rows.
    planned = [each.location for each in table.plan(where).partitions]
    versions = [each.version for each in table.plan(where).partitions]
    documents = {
        row["id"]: tokens(row["body"])
        for place, version in zip(planned, versions, strict=True)
        for row in lance.dataset(place, version=version).to_table(["id", "body"]).to_pylist()
    }
    lengths = [len(each) for each in documents.values() if each]
    terms = list(dict.fromkeys(tokens(words)))
    wanted = []
    for number, found in documents.items():
        counts = [found.count(term) for term in terms]
        if number not in kept or not (all if operator == "and" else any)(counts) or not terms:
            continue
        score = 0.0
        for term, count in zip(terms, counts, strict=True):
            containing = sum(term in each for each in documents.values())
            weight = math.log(1 + (len(lengths) - containing + 0.5) / (containing + 0.5))
            mean = sum(lengths) / len(lengths)
            score += weight * count * 2.2 / (count + 1.2 * (0.25 + 0.75 * len(found) / mean))
        wanted.append((-score, places[number], number))
    rows = table.search("body", words, k, where, ["id"], operator=operator)
    scores = rows["_score"].to_pylist()
    wanted.sort()
    np.testing.assert_allclose(scores, [-score for score, _, _ in wanted[:k]], rtol=1e-5)
    by_id = {number: -score for score, _, number in wanted}
    np.testing.assert_allclose(scores, [by_id[n] for n in rows["id"].to_pylist()], rtol=1e-5)
    assert scores == sorted(scores, reverse=True)


def test_both_become_one_ranking(table: phalanx.Table) -> None:
    near = table.search("single", [1, 2, 0], 60, columns=["id"])["id"].to_pylist()
    match = table.search("body", "foxes run", 60, columns=["id"])["id"].to_pylist()
    worth: dict[int, float] = {}
    for ranking in (near, match):
        for rank, number in enumerate(ranking, 1):
            worth[number] = worth.get(number, 0) + 1 / (60 + rank)
    places = order_of(table)
    wanted = sorted(worth, key=lambda number: (-worth[number], places[number]))[:7]
    rows = table.search("single", [1, 2, 0], 7, columns=["id"], hybrid=("body", "foxes run"))
    assert rows["id"].to_pylist() == wanted
    relevance = rows["_relevance_score"].to_pylist()
    np.testing.assert_allclose(relevance, [worth[number] for number in wanted], rtol=1e-6)
    for name, ranking in (("_distance", near), ("_score", match)):
        told = [each is not None for each in rows[name].to_pylist()]
        assert told == [number in ranking for number in wanted]
