"""Snapshots in the shell: listed, read, restored and removed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import phalanx
from integration.shell import assert_fails, run, run_json
from tables import SCHEMA, rows


@pytest.fixture
def events(tmp_path: Path) -> str:
    uri = str(tmp_path / "events")
    table = phalanx.create(uri, SCHEMA, ["k"], transaction="strong")
    table.append(rows(("a", 1), ("b", 1)))
    table.append(rows(("a", 2), ("c", 2)))
    table.delete("k = 'b'")
    return uri


def scan_rows(*arguments: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in run_json("scan", *arguments))


def test_snapshots_are_listed(events: str) -> None:
    found = run_json("snapshots", events)
    assert [(each["id"], each["operation"], each["rows_added"]) for each in found] == [
        (1, "create", 0),
        (2, "append", 2),
        (3, "append", 2),
        (4, "delete", 0),
    ]
    assert found[0]["time"].endswith("+00:00")
    assert [each["id"] for each in run_json("snapshots", events, "--limit", "2")] == [3, 4]
    shown = run("snapshots", events)
    assert shown.exit_code == 0
    header, _, *lines = shown.stdout.splitlines()
    assert header.split() == ["id", "time", "operation", "partitions", "rows_added", "rows_removed"]
    assert [line.split()[0] for line in lines] == ["1", "2", "3", "4"]


def test_older_snapshots_are_hidden(events: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phalanx.cli.commands.history._SHOWN_SNAPSHOTS", 3)
    shown = run("snapshots", events)
    assert "1 older snapshots: show them with --all or --limit." in shown.stderr
    assert [line.split()[0] for line in shown.stdout.splitlines()[2:]] == ["2", "3", "4"]
    assert run("snapshots", events, "--all").stderr == ""


def test_a_weak_table_has_none(tmp_path: Path) -> None:
    uri = str(tmp_path / "weak")
    phalanx.create(uri, SCHEMA, ["k"])
    assert run_json("snapshots", uri) == []
    assert "weak mode" in run("snapshots", uri).stderr
    assert_fails(run("rollback", uri, "1"), 1, "strong mode")
    assert_fails(run("scan", uri, "--snapshot", "1"), 1, "strong mode")
    assert_fails(run("vacuum", uri, "--older-than", "59m"), 1, "weak mode", "1:00:00")
    assert run_json("vacuum", uri)["files"] == []


def test_reading_as_of_a_snapshot(events: str) -> None:
    old = [("a", 1), ("b", 1)]
    assert scan_rows(events) == [("a", 1), ("a", 2), ("c", 2)]
    assert scan_rows(events, "--snapshot", "2") == old
    moment = run_json("snapshots", events)[1]["time"]
    assert scan_rows(events, "--snapshot", moment) == old
    assert scan_rows(events, "--snapshot", moment.removesuffix("+00:00")) == old
    assert len(run_json("ls", events, "--snapshot", "2")) == 2
    assert len(run_json("ls", events)) == 3
    plan = run_json("explain", events, "k = 'b'", "--snapshot", "2")
    assert (len(plan["partitions"]), plan["total_partitions"]) == (1, 2)
    assert "reads 1 of 2 partitions" in run("explain", events, "k = 'b'", "--snapshot", "2").stdout
    for command in (["scan", events], ["ls", events], ["explain", events]):
        assert_fails(run(*command, "--snapshot", "99"), 1, "no snapshot 99")
        assert_fails(run(*command, "--snapshot", "yesterday"), 2, "'yesterday'", "ISO time")


def test_rollback(events: str) -> None:
    assert run_json("rollback", events, "2") == {"rolled_back_to": "2", "snapshot": 5}
    assert scan_rows(events) == [("a", 1), ("b", 1)]
    moment = run_json("snapshots", events)[2]["time"]
    assert run("rollback", events, moment).stdout == f"Rolled back to {moment}, as snapshot 6.\n"
    assert scan_rows(events) == [("a", 1), ("a", 2), ("b", 1), ("c", 2)]
    assert_fails(run("rollback", events, "99"), 1, "no snapshot 99")
    assert_fails(run("rollback", events, "soon"), 2, "'soon'")


def test_vacuum(events: str) -> None:
    assert run("vacuum", events).stdout == "Removed 0 snapshots.\nRemoved 0 files, 0 bytes.\n"
    time.sleep(0.02)
    now = ("vacuum", events, "--older-than", "0s")
    shown = run(*now, "--dry-run")
    assert shown.stdout.startswith("Would remove 3 snapshots (1 to 3).\n")
    assert shown.stderr == "Use --output json to list the files.\n"
    promised = run_json(*now, "--dry-run")
    assert len(run_json("snapshots", events)) == 4
    done = run_json(*now)
    assert (promised["dry_run"], done["dry_run"]) == (True, False)
    assert {**promised, "dry_run": False} == done
    assert done["snapshots"] == [1, 2, 3]
    assert done["bytes"] == sum(file["bytes"] for file in done["files"]) > 0
    assert {file["kind"] for file in done["files"]} >= {"version", "data"}
    assert not any(Path(file["path"]).exists() for file in done["files"])
    assert scan_rows(events) == [("a", 1), ("a", 2), ("c", 2)]
    assert_fails(run("scan", events, "--snapshot", "2"), 1, "removed by vacuum")
    for wrong in ("7", "d", "-1d", "7 d", "1y", "1.5d"):
        assert_fails(run("vacuum", events, f"--older-than={wrong}"), 2, "such as 7d")


def test_changes_are_shown(events: str, monkeypatch: pytest.MonkeyPatch) -> None:
    phalanx.open(events).update("n = 2", {"n": "n + 1"})
    found = run_json("changes", events, "3")
    assert [(each["_change"], each["_snapshot"], each["k"], each["n"]) for each in found] == [
        ("delete", 4, "b", 1),
        *[("update_before", 5, "a", 2), ("update_before", 5, "c", 2)],
        *[("update_after", 5, "a", 3), ("update_after", 5, "c", 3)],
    ]
    assert run_json("changes", events, "0", "2", "--where", "k = 'a'", "--columns", "n") == [
        {"n": 1, "_change": "insert", "_snapshot": 2, "_update": None}
    ]
    assert len(run_json("changes", events, "0", "--limit", "3")) == 3
    plan = run_json("changes", events, "0", "--where", "k = 'a'", "--plan")
    assert (plan["read_changes"], plan["total_changes"]) == (3, 7)
    assert (
        "reads 3 of 7 changed partitions"
        in run("changes", events, "0", "--where", "k = 'a'", "--plan").stdout
    )
    monkeypatch.setattr("phalanx.cli.commands.history._SHOWN_CHANGES", 3)
    shown = run("changes", events, "0", "--where", "n < 2")
    assert shown.stderr == ""
    assert shown.stdout.splitlines()[0].split() == ["k", "n", "_change", "_snapshot", "_update"]
    assert "There are more changes" in run("changes", events, "0").stderr
    assert_fails(run("changes", events, "4", "2"), 1, "must not be later")
    assert_fails(run("changes", events, "yesterday"), 2, "yesterday")
