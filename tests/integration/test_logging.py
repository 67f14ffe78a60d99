"""What Phalanx logs: nothing by default, commits at INFO, retries and plans at DEBUG."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import phalanx
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.retries import retry_conflicts
from phalanx.storage.leaf import leaf
from phalanx.storage.leaf.leaf import AppliedChange
from phalanx.table.handle import handle_of
from phalanx.table.joins.prepare import plan_join
from phalanx.table.maintenance.group_tasks import retry_dropped
from phalanx.table.maintenance.indexes import Indexed
from phalanx.table.transactions.strong_target import RetryableConflict
from phalanx.table.write.incoming_rows import Target
from phalanx.table.write.transaction import run_in_transaction

ROWS = pa.table({"k": ["a", "b"], "n": [1, 2]})


def create_table(tmp_path: Path, mode: phalanx.Mode) -> phalanx.Table:
    return phalanx.create(tmp_path / "t", ROWS.schema, "k", transaction=mode)


def list_messages(caplog: pytest.LogCaptureFixture, level: int) -> list[tuple[str, str]]:
    return [(each.name, each.getMessage()) for each in caplog.records if each.levelno == level]


def test_a_strong_table_logs_each_commit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "phalanx")
    table = create_table(tmp_path, "strong")
    caplog.clear()
    table.append(ROWS)
    table.append(ROWS)
    table.delete("n = 1")
    table.rewrite(rewrite_all=True)
    table.vacuum(timedelta(0))
    uri, lines = table.uri, list_messages(caplog, logging.INFO)
    assert [name for name, _ in lines] == [
        *["phalanx.storage"] * 4,
        *["phalanx.table"] * 2,
    ]
    texts = [text for _, text in lines]
    assert (
        texts[1] == f"Committed snapshot 3 of {uri}: append, 2 partitions, 2 rows added, 0 removed"
    )
    assert "delete, 1 partition, 0 rows added, 2 removed" in texts[2]
    assert "rewrite" in texts[3]
    assert texts[4] == f"Rewrote 2 files of {uri} into 1, 2 rows"
    assert texts[5].startswith(f"Vacuumed {uri}: 4 snapshots expired, ")


def test_a_weak_table_logs_each_write(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "phalanx")
    table = create_table(tmp_path, "weak")
    table.append(ROWS)
    table.delete("n = 1")
    assert list_messages(caplog, logging.INFO) == [
        ("phalanx.storage", f"Created {table.uri}"),
        ("phalanx.storage", f"Changed 2 partitions of {table.uri}: append, 0 rows removed"),
        ("phalanx.storage", f"Changed 1 partition of {table.uri}: delete, 1 row removed"),
    ]


def test_a_weak_write_that_fails_in_part_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = create_table(tmp_path, "weak")
    table.append(ROWS)
    apply = leaf.apply_change

    def fail_for_b(location: Location, *arguments: Any, **options: Any) -> AppliedChange:
        if location.uri == failing:
            raise OSError("no space")
        return apply(location, *arguments, **options)

    failing = table.partitions()["location"].to_pylist()[1]
    monkeypatch.setattr(leaf, "apply_change", fail_for_b)
    caplog.set_level(logging.INFO, "phalanx")
    with pytest.raises(phalanx.PartialWrite):
        table.append(ROWS)
    assert list_messages(caplog, logging.INFO) == [
        (
            "phalanx.storage",
            f"Changed partitions of {table.uri} only in part: append, 1 written, 1 not written",
        )
    ]


def test_each_change_of_a_weak_table_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = create_table(tmp_path, "weak")
    table.append(ROWS)
    lance.write_dataset(ROWS.slice(0, 1).set_column(0, "k", [["c"]]), str(tmp_path / "other"))
    caplog.set_level(logging.INFO, "phalanx")
    table.adopt(tmp_path / "other")
    table.add_column(pa.field("m", pa.int32()))
    table.rename_column("m", "l")
    table.create_index("n", "BTREE")
    table.drop_index("n_idx")
    table.evolve("k, bucket(n, 2)")
    table.set_checksums()
    table.set_mode("strong")
    table.set_mode("weak")
    uri = table.uri
    assert list_messages(caplog, logging.INFO) == [
        ("phalanx.table", f"Adopted {tmp_path / 'other'} as partition ('c',) of {uri}"),
        ("phalanx.table", f"Changed the schema of {uri}: add_column, name m, type int32"),
        ("phalanx.table", f"Changed the schema of {uri}: rename_column, name m, new l"),
        ("phalanx.table", f"Indexed 3 rows in 3 partitions of {uri}: n_idx"),
        ("phalanx.table", f"Dropped the index n_idx of {uri}, in 3 partitions"),
        ("phalanx.table", f"Evolved {uri} to spec 2 by k, bucket(2, n)"),
        ("phalanx.table", f"Turned checksums of {uri} on"),
        (
            "phalanx.storage",
            f"Committed snapshot 1 of {uri}: set_mode, 3 partitions, 3 rows added, 0 removed",
        ),
        (
            "phalanx.storage",
            f"Committed snapshot 2 of {uri}: set_mode, 0 partitions, 0 rows added, 0 removed",
        ),
        ("phalanx.table", f"Changed {uri} to weak mode"),
    ]


def test_maintenance_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = create_table(tmp_path, "strong")
    table.append(ROWS)
    caplog.set_level(logging.INFO, "phalanx.table")
    table.rewrite()
    table.erase("n = 99")
    assert not list_messages(caplog, logging.INFO), "nothing was done"
    table.evolve("bucket(n, 1)")
    table.rewrite(target_spec=2)
    table.erase("n = 1")
    uri = table.uri
    texts = [text for name, text in list_messages(caplog, logging.INFO) if name == "phalanx.table"]
    assert texts == [
        f"Moved 2 files of {uri} to spec 2: 2 new files, 2 rows",
        f"Erased 2 rows of {uri}: 2 files and 1 partition removed, 4 snapshots expired",
    ]


def test_creation_and_upgrade_of_the_hive_layout_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "phalanx")
    table = phalanx.create(tmp_path / "t", ROWS.schema, "k", layout="hive")
    table.upgrade(dry_run=True)
    table.upgrade()
    assert list_messages(caplog, logging.INFO) == [
        ("phalanx.storage", f"Created {table.uri}"),
        ("phalanx.table", f"Upgraded {table.uri} from the layout hive to the newest format"),
    ]


def test_plans_are_logged_for_debugging(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = create_table(tmp_path, "strong")
    table.append(ROWS)
    caplog.set_level(logging.DEBUG, "phalanx")
    assert table.scan("k = 'a'").count_rows() == 1
    assert list_messages(caplog, logging.DEBUG) == [
        ("phalanx.table", f"Planned a scan of {table.uri}: 1 of 2 partitions")
    ]
    caplog.clear()
    table.changes(0, where="k = 'a'")
    assert list_messages(caplog, logging.DEBUG)[-1] == (
        "phalanx.table",
        f"Planned the changes of {table.uri} from snapshot 0 to 2: 1 of 2 changed partitions",
    )
    table.rewrite(rewrite_all=True)
    assert list_messages(caplog, logging.DEBUG)[-1] == (
        "phalanx.table",
        f"Planned a rewrite of {table.uri}: 2 of 2 files in 2 groups",
    )
    plan_join(table, table, "k")
    assert list_messages(caplog, logging.DEBUG)[-1] == (
        "phalanx.table",
        f"Planned a join of {table.uri} and {table.uri}: 2 partitions with 2 partitions",
    )


def test_retries_are_logged_for_debugging(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "phalanx")
    outcomes = [OSError("Commit conflict"), None]

    def attempt() -> str:
        error = outcomes.pop(0)
        if error is not None:
            raise error
        return "done"

    assert retry_conflicts(attempt) == "done"
    [(name, text)] = list_messages(caplog, logging.DEBUG)
    assert name == "phalanx.storage"
    assert re.fullmatch(r"Another writer committed before attempt 1; retrying in \d\.\d{3} s", text)


def test_statements_that_start_over_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = create_table(tmp_path, "strong")
    manifest = handle_of(table).load_manifest()
    conflicts = [RetryableConflict("another writer was first")]

    def statement(target: Target) -> int:
        if conflicts:
            raise conflicts.pop()
        return 1

    caplog.set_level(logging.DEBUG, "phalanx")
    assert run_in_transaction(manifest, statement) == 1
    [(name, text)] = list_messages(caplog, logging.DEBUG)
    assert name == "phalanx.table"
    assert re.fullmatch(
        r"Another writer changed what attempt 1 has read; retrying in \d\.\d{3} s", text
    )


def test_groups_that_others_change_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "phalanx")
    results = [Indexed((), 1, dropped=(phalanx.PartitionKey(1, ("a",)),)), Indexed((), 1)]
    done = retry_dropped(lambda: results.pop(0), "indexing", "partition")
    assert done == Indexed((), 2)
    assert list_messages(caplog, logging.DEBUG) == [
        ("phalanx.table", "Other writers changed 1 partition during the indexing; planning again")
    ]


def test_nothing_is_shown_by_default(tmp_path: Path) -> None:
    """A logger without handlers would print warnings to stderr."""
    script = (
        "import sys, pyarrow as pa, phalanx; "
        "t = phalanx.create(sys.argv[1], pa.schema([('k', pa.string())]), 'k', "
        "transaction='strong'); t.append(pa.table({'k': ['a']}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "t")], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
