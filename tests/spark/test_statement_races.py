"""Statements of Spark SQL in two sessions at the same time: as if one had run after the other."""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import phalanx
from faults.programs.history_checker import Rule
from spark.conftest import MASTER
from spark.lakes import Lake, lake_at
from spark.statement_histories import SCHEMA, Change, changes, find_statement_anomalies
from spark.statement_histories import create_table as create_history_table
from spark.statement_races import (
    APPEND,
    BY_MERGE,
    CONDITIONS,
    CONFLICT,
    OF_ITSELF,
    OLD,
    ONE,
    SOURCES,
    SWAPS,
    Source,
    Statement,
    check_outcome,
    create_table,
    insert_only,
    race,
    upsert,
)
from tables import SOAK

Pair = tuple[Statement, Statement]
PARTITIONS = ("k", "bucket(2, id)", "")


def pairs() -> Iterator[tuple[str, Pair]]:
    """Yield the statements that race: each with itself.

    The soak also races merges with an upsert of the same ids, and statements that read the table
    with each other.
    """
    for (name, kind), (rows, source), (how, condition) in itertools.product(
        BY_MERGE.items(), SOURCES.items(), CONDITIONS.items()
    ):
        one = kind(source, condition)
        yield f"{name}, {rows}, {how}", (one, one)
        if SOAK:
            yield f"{name} and upsert, {rows}, {how}", (one, upsert(source, condition))
    for name, one in OF_ITSELF.items():
        yield name, (one, one)
    if SOAK:
        for (name, one), (other, two) in itertools.combinations(OF_ITSELF.items(), 2):
            yield f"{name} and {other}", (one, two)
    yield "swaps", SWAPS


# A race takes seconds. So the soak runs each once, in one of three ways: with adaptive execution,
# without it, or in two drivers. Another run takes other ways.
WAYS = ("true", "false", "drivers")
ROTATION = random.randrange(len(WAYS))


def is_run(place: int, name: str, way: str) -> bool:
    """Return whether a race runs in this way."""
    if SOAK:
        return WAYS[(place + ROTATION) % len(WAYS)] == way
    return name in FEW[way]


# What a plain run tries, with adaptive execution and without it.
FEW = {
    "true": (
        *("upsert, one, range", "upsert, many, equal", "insert missing, two, range"),
        *("next id, from metadata", "above all", "overwrite by a count"),
    ),
    "false": ("upsert, two, equal", "insert only, many, equal", "merge of itself", "swaps"),
}


@pytest.fixture
def lakes(spark: SparkSession, tmp_path: Path) -> list[Lake]:
    """The same catalog in two sessions."""
    root = str(tmp_path / "lake")
    return [lake_at(spark, root), lake_at(spark.newSession(), root)]


def lakes_of_race(lakes: list[Lake], place: int) -> list[Lake]:
    """The namespace of one race."""
    return [Lake(each.spark, f"{each.name}.`{place}`", each.root) for each in lakes]


if MASTER.startswith("local"):

    @pytest.mark.parametrize("adaptive", FEW)
    def test_two_sessions(lakes: list[Lake], adaptive: str) -> None:
        tried = set()
        for lake in lakes:
            lake.spark.conf.set("spark.sql.adaptive.enabled", adaptive)
        try:
            for place, (name, statements) in enumerate(pairs()):
                if is_run(place, name, adaptive):
                    table = create_table(f"{lakes[0].root}/{place}", PARTITIONS[place % 3])
                    check_outcome(table, statements, race(lakes_of_race(lakes, place), statements))
                    tried.add(name)
        finally:
            lakes[0].spark.conf.unset("spark.sql.adaptive.enabled")
        assert len(tried) > 20 if SOAK else tried == {*FEW[adaptive]}

    def test_histories(lakes: list[Lake]) -> None:
        """Statements that overlap freely, checked by the words that they left in the rows."""
        seed = random.randrange(1_000_000) if SOAK else 1
        table = create_history_table(lakes[0].root, "k")
        done: list[list[tuple[Change, str | None]]] = [[] for _ in lakes]

        def run(place: int) -> None:
            for change in itertools.islice(changes("ab"[place], seed), 30 if SOAK else 3):
                try:
                    lakes[place].sql(change.sql)
                except Exception as error:
                    done[place].append((change, str(error)))
                else:
                    done[place].append((change, None))

        threads = [threading.Thread(target=run, args=(place,)) for place in range(len(lakes))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        judge_history(table, done, seed)

    def test_one_of_two_inserts_of_a_key_is_reported(lakes: list[Lake]) -> None:
        """However Spark plans them: as a change of rows, or as an append to what a join left."""
        for place, statement in enumerate([upsert(ONE), insert_only(ONE)]):
            table = create_table(f"{lakes[0].root}/{place}", "k")
            errors = race(lakes_of_race(lakes, place), [statement, statement])
            check_outcome(table, [statement, statement], errors)
            assert [row["id"] for row in table.scan("id = 100").to_arrow().to_pylist()] == [100]
            operations = table.snapshots()["operation"].to_pylist()
            assert operations[2:] in (["merge"], ["insert"], ["merge", "merge"])

    def test_merges_into_different_partitions_are_no_conflict(lakes: list[Lake]) -> None:
        """Only the rows with the keys of the source count as read."""
        table = create_table(lakes[0].root, "k")
        statements = [
            upsert(
                Source(
                    f"(SELECT id, '{key}' AS k, id AS n FROM range(200, 240, 1, 2))",
                    tuple((i, key, i) for i in range(200, 240)),
                ),
                "t.k = s.k AND t.id = s.id",
            )
            for key in "ab"
        ]
        # An id is of one partition here, as the sources have it.
        assert race(lakes, statements) == [None, None]
        assert table.scan().count_rows() == len(OLD) + 80

    def test_rows_that_were_added_without_a_look_are_no_conflict(lakes: list[Lake]) -> None:
        table = create_table(lakes[0].root, "k")
        statements = [upsert(ONE), APPEND]
        errors = race(lakes, statements)
        assert errors == [None, None]
        check_outcome(table, statements, errors)


if SOAK:

    def test_two_drivers(tmp_path: Path) -> None:
        """The same statements, each of which another process runs."""
        script = Path(__file__).with_name("racing_driver.py")
        drivers = [
            subprocess.Popen(
                [sys.executable, str(script), str(tmp_path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(2)
        ]
        try:
            assert [answer(driver) for driver in drivers] == ["ready", "ready"]
            for place, (name, statements) in enumerate(pairs()):
                if not is_run(place, name, "drivers"):
                    continue
                table = create_table(f"{tmp_path}/{place}", PARTITIONS[place % 3])
                for driver, statement in zip(drivers, statements, strict=True):
                    ask(driver, place, statement.sql)
                check_outcome(table, statements, [answer(driver) for driver in drivers])
            history_of_drivers(drivers, tmp_path)
        finally:
            for driver in drivers:
                driver.kill()
                driver.communicate()


def history_of_drivers(drivers: list[subprocess.Popen[str]], root: Path) -> None:
    """Statements that two drivers begin at the same time, one after the other."""
    seed = random.randrange(1_000_000)
    table = create_history_table(f"{root}/999", "k")
    done: list[list[tuple[Change, str | None]]] = [[] for _ in drivers]
    both = zip(*(changes(name, seed) for name in "ab"), strict=True)
    for pair in itertools.islice(both, 20):
        for driver, change in zip(drivers, pair, strict=True):
            ask(driver, 999, change.sql)
        for place, (driver, change) in enumerate(zip(drivers, pair, strict=True)):
            done[place].append((change, answer(driver)))
    judge_history(table, done, seed)


def judge_history(
    table: phalanx.Table, done: list[list[tuple[Change, str | None]]], seed: int
) -> None:
    """Check that the statements are serializable, and that the failed ones report a conflict."""
    errors = [error for each in done for _, error in each if error is not None]
    assert all(CONFLICT in error for error in errors), (seed, errors)
    assert len(errors) < sum(map(len, done)), seed
    assert find_statement_anomalies(table, done) == [], (seed, done)


def test_a_key_that_two_statements_inserted_is_reported(tmp_path: Path) -> None:
    """The checker of histories finds the anomalies that it should find."""
    table = create_history_table(str(tmp_path), "k")
    done = [[(Change(word, (1,), ""), None)] for word in "ab"]
    for word in "ab":
        table.append(pa.table({"id": [1], "k": ["1"], "log": [word]}, schema=SCHEMA))
    assert {each.rule for each in find_statement_anomalies(table, done)} >= {Rule.LOST_UPDATE}


def ask(driver: subprocess.Popen[str], place: int, statement: str) -> None:
    """Send a driver a statement on the table at a path."""
    assert driver.stdin is not None
    adaptive = "true" if place % 2 else "false"
    driver.stdin.write(json.dumps([place, adaptive, statement]) + "\n")
    driver.stdin.flush()


def answer(driver: subprocess.Popen[str]) -> str | None:
    """Return the next line of a driver."""
    assert driver.stdout is not None
    line = driver.stdout.readline()
    assert line, "the driver has ended"
    found: str | None = json.loads(line)
    return found
