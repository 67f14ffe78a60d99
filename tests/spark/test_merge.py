"""`phalanx.spark.merge`: a DataFrame merged into a table, with and without the classes in Java."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

import phalanx
import phalanx.spark
from phalanx.errors import CommitConflict, PhalanxError, SchemaMismatch
from phalanx.spark.pipelines import merge as merging
from phalanx.table.jobs.row_job import RowJob, TaskChanges
from phalanx.table.jobs.row_lookup import KeyedLeaves, LookupWork
from phalanx.table.write.merge import MergeCounts
from spark.lakes import rows_of
from tables import KEYED_SCHEMA, table_of

# Spark's processes do not find the modules of tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
TYPES = "id bigint, k string, n int"
Row = tuple[Any, ...]
OLD: list[Row] = [(i, "abc"[i % 3], i) for i in range(12)]
NEW: list[Row] = [(3, "a", 33), (4, "moved", 44), (20, None, 20), (None, "b", 0), (None, "b", 0)]


def rows(values: list[Row]) -> pa.Table:
    return table_of(KEYED_SCHEMA, values)


def create_table(uri: str, mode: str = "strong") -> phalanx.Table:
    """Rows under two specs."""
    table = phalanx.create(uri, KEYED_SCHEMA, "bucket(2, id)", transaction=mode)
    table.append(rows(OLD[:5]))
    table.evolve("k")
    table.append(rows(OLD[5:]))
    return table


def frame(spark: SparkSession, values: list[Row]) -> DataFrame:
    return spark.createDataFrame(values, TYPES).repartition(2)


def without(*ids: int) -> list[Row]:
    return [row for row in OLD if row[0] not in ids]


@pytest.mark.executors
def test_rows_are_changed_added_and_removed(spark: SparkSession, tmp_path: Path) -> None:
    source = frame(spark, NEW)
    table = create_table(str(tmp_path / "t"))
    done = phalanx.spark.merge(spark, source, table.uri, "id", marker="load 1")
    merged = sorted([*without(3, 4), *NEW], key=repr)
    assert (done, rows_of(table)) == (MergeCounts(3, 2, 0), merged)
    snapshot = table.newest_snapshot
    # The result was lost, so the merge is called again.
    again = phalanx.spark.merge(spark, source, table.uri, "id", marker="load 1")
    assert (again, rows_of(table), table.newest_snapshot) == (MergeCounts(), merged, snapshot)
    weak = create_table(str(tmp_path / "w"), "weak")
    keys = ["id", "k"]
    done = phalanx.spark.merge(
        spark, source, weak.uri, keys, when_matched="delete", when_not_matched="insert"
    )
    left = sorted([*without(3), *NEW[1:]], key=repr)
    assert (done, rows_of(weak)) == (MergeCounts(4, 0, 1), left)


@pytest.mark.parametrize(
    ("matched", "not_matched", "counts", "expected"),
    [
        ("update", "ignore", MergeCounts(0, 2, 0), [*without(3, 4), *NEW[:2]]),
        ("delete", "ignore", MergeCounts(0, 0, 2), without(3, 4)),
        ("ignore", "insert", MergeCounts(3, 0, 0), [*OLD, *NEW[2:]]),
        ("ignore", "ignore", MergeCounts(0, 0, 0), OLD),
    ],
)
def test_what_may_happen(
    spark: SparkSession,
    uri: str,
    matched: str,
    not_matched: str,
    counts: MergeCounts,
    expected: list[Row],
) -> None:
    table = create_table(uri)
    choice = {"when_matched": matched, "when_not_matched": not_matched}
    done = phalanx.spark.merge(spark, frame(spark, NEW), uri, "id", **choice)
    assert (done, rows_of(table)) == (counts, sorted(expected, key=repr))


def test_what_is_refused(spark: SparkSession, uri: str) -> None:
    table = create_table(uri)
    before = table.newest_snapshot
    twice = frame(spark, [*NEW, NEW[0], NEW[1]])
    good = frame(spark, NEW)
    for source, on, options, error, message in (
        (twice, "id", {}, SchemaMismatch, "2 rows of the source have the key id = .*2 keys"),
        (good, "nothing", {}, SchemaMismatch, "Cannot merge on 'nothing'"),
        (good.drop("n"), "id", {}, SchemaMismatch, "lacks"),
        (good, "id", {"when_matched": "odd"}, PhalanxError, "when_matched='odd'"),
    ):
        with pytest.raises(error, match=message):
            phalanx.spark.merge(spark, source, uri, on, **options)
    table.set_mode("weak")
    with pytest.raises(PhalanxError, match="weak mode"):
        phalanx.spark.merge(spark, good, uri, "id", marker="once")
    assert rows_of(table) == sorted(OLD, key=repr)
    assert before is not None


def test_only_partitions_of_the_keys_are_read(
    spark: SparkSession, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = phalanx.create(uri, KEYED_SCHEMA, "k, bucket(4, id)", transaction="strong")
    data: list[Row] = [(i, str(i % 8), i) for i in range(256)]
    table.append(rows(data))
    read: list[int] = []
    of = LookupWork.of

    def record_work(manifest: Any, leaves: KeyedLeaves, names: Any) -> LookupWork:
        work = of(manifest, leaves, names)
        read.append(len({scan.location for task in work.tasks for scan in task.scans}))
        return work

    monkeypatch.setattr(merging.LookupWork, "of", record_work)
    for on, partitions in ((["id", "k"], 2), ("id", 16), ("n", 32)):
        phalanx.spark.merge(spark, frame(spark, [data[9], data[10]]), uri, on)
        assert read[-1] == partitions
    monkeypatch.setattr(merging, "MAX_KEYS", 1)
    phalanx.spark.merge(spark, frame(spark, [data[9], data[10]]), uri, "id")
    assert read[-1] == 32
    assert rows_of(table) == sorted(data, key=repr)


@dataclass(frozen=True)
class DyingJob(RowJob):
    """Dies once in a task, after its files are written."""

    folder: str = ""

    def write(self, changes: Iterable[pa.RecordBatch]) -> TaskChanges:
        done = RowJob.write(self, changes)
        if not (Path(self.folder) / "died").exists():
            (Path(self.folder) / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return done


def test_a_task_that_dies_is_tried_again(
    spark: SparkSession, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = create_table(uri)
    begin = RowJob.begin
    monkeypatch.setattr(
        merging.RowJob,
        "begin",
        lambda *given: DyingJob(begin(*given).job, str(tmp_path)),
    )
    done = phalanx.spark.merge(spark, frame(spark, NEW), uri, "id")
    assert (tmp_path / "died").exists()
    assert (done, rows_of(table)) == (
        MergeCounts(3, 2, 0),
        sorted([*without(3, 4), *NEW], key=repr),
    )


def test_another_merge_of_the_same_keys_is_a_conflict(
    spark: SparkSession, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = create_table(uri)
    written = merging._write_changes

    def late(*given: Any) -> Any:
        tasks = written(*given)
        table.merge(rows([(20, None, 1)]), "id")
        return tasks

    monkeypatch.setattr(merging, "_write_changes", late)
    with pytest.raises(CommitConflict, match=r"changed partition .* and this one has read it"):
        phalanx.spark.merge(spark, frame(spark, NEW), uri, "id")
    assert rows_of(table) == sorted([*OLD, (20, None, 1)], key=repr)
