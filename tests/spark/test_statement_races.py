"""Statements of Spark SQL in two sessions at the same time: as if one had run after the other."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark.conftest import MASTER
from spark.lakes import Lake, lake_at
from spark.statement_races import (
    APPEND,
    BY_MERGE,
    CONDITIONS,
    OF_ITSELF,
    OLD,
    ONE,
    SOURCES,
    SWAPS,
    Source,
    Statement,
    insert_only,
    judge,
    made,
    race,
    upsert,
)

SOAK = os.environ.get("PHALANX_PROFILE") == "soak"
Pair = tuple[Statement, Statement]
PARTITIONS = ("k", "bucket(2, id)", "")


def pairs() -> Iterator[tuple[str, Pair]]:
    """Which statements race: each with itself, and with an upsert of the same ids."""
    for (name, kind), (rows, source), (how, condition) in itertools.product(
        BY_MERGE.items(), SOURCES.items(), CONDITIONS.items()
    ):
        one = kind(source, condition)
        yield f"{name}, {rows}, {how}", (one, one)
        if SOAK:
            yield f"{name} and upsert, {rows}, {how}", (one, upsert(source, condition))
    for name, one in OF_ITSELF.items():
        yield name, (one, one)
        for other, two in OF_ITSELF.items() if SOAK else ():
            yield f"{name} and {other}", (one, two)
    yield "swaps", SWAPS


# What a plain run tries, with adaptive execution and without it; the soak tries all in both ways.
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


def below(lakes: list[Lake], place: int) -> list[Lake]:
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
                if SOAK or name in FEW[adaptive]:
                    table = made(f"{lakes[0].root}/{place}", PARTITIONS[place % 3])
                    judge(table, statements, race(below(lakes, place), statements))
                    tried.add(name)
        finally:
            lakes[0].spark.conf.unset("spark.sql.adaptive.enabled")
        assert tried >= {*FEW[adaptive]}

    def test_of_two_inserts_of_a_key_one_is_told(lakes: list[Lake]) -> None:
        """However Spark plans them: as a change of rows, or as an append to what a join left."""
        for place, statement in enumerate([upsert(ONE), insert_only(ONE)]):
            table = made(f"{lakes[0].root}/{place}", "k")
            errors = race(below(lakes, place), [statement, statement])
            judge(table, [statement, statement], errors)
            assert [row["id"] for row in table.scan("id = 100").to_arrow().to_pylist()] == [100]
            operations = table.snapshots()["operation"].to_pylist()
            assert operations[2:] in (["merge"], ["insert"], ["merge", "merge"])

    def test_merges_into_different_partitions_are_no_conflict(lakes: list[Lake]) -> None:
        """Of what was read only what the keys of the source leave of it counts."""
        table = made(lakes[0].root, "k")
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
        table = made(lakes[0].root, "k")
        statements = [upsert(ONE), APPEND]
        errors = race(lakes, statements)
        assert errors == [None, None]
        judge(table, statements, errors)


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
            for place, (_, statements) in enumerate(pairs()):
                table = made(f"{tmp_path}/{place}", PARTITIONS[place % 3])
                for driver, statement in zip(drivers, statements, strict=True):
                    assert driver.stdin is not None
                    adaptive = "true" if place % 2 else "false"
                    driver.stdin.write(json.dumps([place, adaptive, statement.sql]) + "\n")
                    driver.stdin.flush()
                judge(table, statements, [answer(driver) for driver in drivers])
        finally:
            for driver in drivers:
                driver.kill()
                driver.wait()


def answer(driver: subprocess.Popen[str]) -> str | None:
    """The next line that a driver says."""
    assert driver.stdout is not None
    line = driver.stdout.readline()
    assert line, "the driver has ended"
    found: str | None = json.loads(line)
    return found
