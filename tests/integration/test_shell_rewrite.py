"""Rewrites in the shell: the plan, the run, warnings and errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from rich.console import Console

import phalanx
from integration.shell import assert_fails, run, run_json, strict_json
from phalanx.cli.console import messages as progress
from phalanx.cli.console.options import parse_size
from phalanx.planning.rewrites import filter as rewrite_filter
from phalanx.table.maintenance import rewrite as rewriting
from tables import SCHEMA, rows_of_key


def create_table(uri: str, mode: str) -> phalanx.Table:
    """Six files for each of a and b, two for c."""
    table = phalanx.create(uri, SCHEMA, ["k"], transaction=mode)
    for file in range(6):
        keys = "ab" if file < 4 else "abc"
        table.append(
            pa.concat_tables([rows_of_key(k, range(file * 10, file * 10 + 10)) for k in keys])
        )
    return table


@pytest.fixture(params=["weak", "strong"])
def events(request: pytest.FixtureRequest, tmp_path: Path) -> phalanx.Table:
    return create_table(str(tmp_path / "events"), request.param)


@pytest.fixture
def strong(tmp_path: Path) -> phalanx.Table:
    return create_table(str(tmp_path / "strong"), "strong")


def test_a_dry_run_shows_the_plan(events: phalanx.Table) -> None:
    events.delete("k = 'b' AND n = 7")
    shown = run("rewrite", events.uri, "--dry-run")
    assert (shown.exit_code, shown.stderr) == (0, "")
    header, _, first, second, empty, summary, left = shown.stdout.splitlines()
    assert header.split() == ["group", "spec", "k", "files", "size", "deleted", "rows"]
    assert first.split()[:4] == ["1", "v1", "a", "6"]
    assert (first.split()[-1], second.split()[-1]) == ("0", "1")
    assert empty == ""
    assert summary.startswith("Would rewrite 12 of 14 files, ")
    assert summary.endswith(" in 2 groups.")
    assert left.startswith("Left out 2 files: fewer files than min_input_files=5")
    assert run_json("rewrite", events.uri, "--dry-run") == events.plan_rewrite().to_dict()
    assert events.files().num_rows == 14


def test_a_plan_of_nothing(events: phalanx.Table) -> None:
    shown = run("rewrite", events.uri, "--dry-run", "--where", "k = 'nobody'")
    assert shown.stdout == "Would rewrite 0 of 0 files, 0 bytes, in 0 groups.\n"
    done = run("rewrite", events.uri, "--where", "k = 'nobody'")
    assert (done.stdout, done.stderr) == ("Nothing to rewrite.\n", "")


def test_a_run_shows_what_it_did(events: phalanx.Table) -> None:
    before = sorted(events.scan().to_arrow()["n"].to_pylist())
    done = run("rewrite", events.uri, "--where", "k = 'a'")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith("Rewrote 6 files (")
    assert "as 1 (" in done.stdout
    found = run_json("rewrite", events.uri)
    assert (found["groups"], found["files_before"], found["files_after"]) == (1, 6, 1)
    assert found["bytes_after"] < found["bytes_before"]
    assert (found["rows"], found["dropped"]) == (60, [])
    assert len(found["snapshots"]) == (1 if events.mode == "strong" else 0)
    assert sorted(events.scan().to_arrow()["n"].to_pylist()) == before
    assert events.files().num_rows == 4


@pytest.mark.parametrize(
    ("arguments", "files"),
    [
        (["--min-input-files", "2"], 14),
        (["--rewrite-all"], 14),
        (["--max-files", "8", "--job-order", "files-desc"], 8),
        (["--where", "K = 'a'"], 6),
        (["--target-file-size", "500"], 0),
        (["--target-file-size", "3kB", "--min-input-files", "7"], 12),
        (["--max-group-size", "3kB"], 10),
        (["--delete-ratio", "0.05"], 14),
    ],
)
def test_options_are_those_of_a_plan(arguments: list[str], files: int, tmp_path: Path) -> None:
    table = create_table(str(tmp_path / "t"), "weak")
    table.delete("k = 'c' AND n = 40")
    plan = run_json("rewrite", table.uri, "--dry-run", *arguments)
    assert plan["rewritten_files"] == files


def test_progress_is_kept(strong: phalanx.Table) -> None:
    found = run_json("rewrite", strong.uri, "--partial-progress", "--max-commits", "2")
    assert len(found["snapshots"]) == 2


def test_rows_move_to_another_spec(strong: phalanx.Table) -> None:
    strong.evolve("bucket(2, n)")
    plan = run_json("rewrite", strong.uri, "--target-spec", "2", "--dry-run")
    assert plan["rewritten_files"] == 14
    found = run_json("rewrite", strong.uri, "--target-spec", "2")
    assert (found["files_before"], found["rows"]) == (14, 140)
    assert set(strong.files()["spec_id"].to_pylist()) == {2}
    shown = run("rewrite", strong.uri, "--target-spec", "2", "--dry-run").stdout
    assert "Spec v1 no longer holds files: a vacuum removes those of older versions.\n" in shown


def test_what_others_change_meanwhile_is_a_warning(
    events: phalanx.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = iter(range(100))
    before: Callable[..., Any] = rewriting.Compaction._run_groups

    def ran(*arguments: Any) -> Any:
        done = before(*arguments)
        phalanx.open(events.uri).delete(f"k = 'a' AND n = {next(numbers)}")
        return done

    monkeypatch.setattr(rewriting.Compaction, "_run_groups", ran)
    done = run("rewrite", events.uri)
    assert done.exit_code == 0
    assert done.stdout.startswith("Rewrote 6 files (")
    assert "alone" not in done.stdout
    assert done.stderr == (
        "warning: left 6 files of v1 k=a alone, which other writers changed meanwhile. "
        "Run it again.\n"
    )
    again = run("rewrite", events.uri, "--output", "json")
    assert strict_json(again.stdout)["dropped"] == [1]
    assert again.stderr.startswith("warning: ")
    assert run("rewrite", events.uri).stdout == "Rewrote nothing.\n"


def test_what_the_filter_cannot_decide_is_a_warning(
    events: phalanx.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> Any:
        raise ValueError("no idea")

    monkeypatch.setattr(rewrite_filter, "project_inclusive", fails)
    where = ("rewrite", events.uri, "--where", "k = 'a'")
    warning = "warning: 3 partitions of spec v1 included undecided: no idea\n"
    plan = run(*where, "--dry-run", "--output", "json")
    assert plan.stderr == warning
    assert strict_json(plan.stdout)["stats"]["unevaluable_specs"] == 1
    assert_fails(run(*where, "--strict"), 1, "no idea", "strict")
    done = run(*where)
    assert (done.stderr, done.exit_code) == (warning, 0)
    assert done.stdout.startswith("Rewrote 12 files")


def test_groups_that_are_too_many_are_hidden(
    events: phalanx.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("phalanx.cli.commands.rewrite._SHOWN_GROUPS", 1)
    shown = run("rewrite", events.uri, "--dry-run")
    assert shown.stderr == "1 more groups: --output json has them.\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--where", "nope = 1"], ["nope"]),
        (["--where", "K = 'a'", "--case-sensitive"], ["K"]),
        (["--min-input-files", "0"], ["min_input_files=0"]),
        (["--delete-ratio", "2"], ["delete_ratio_threshold=2.0"]),
        (["--target-file-size", "0"], ["target_file_size_bytes=0"]),
        (["--max-files", "0"], ["max_files_to_rewrite=0"]),
        (["--partial-progress", "--max-commits", "0"], ["max_commits=0"]),
        (["--target-spec", "9"], ["spec 9"]),
    ],
)
def test_failures_are_one_line(
    arguments: list[str], words: list[str], strong: phalanx.Table
) -> None:
    assert_fails(run("rewrite", strong.uri, *arguments), 1, *words)
    assert strong.newest_snapshot == 7


@pytest.mark.parametrize(
    "arguments",
    [
        ["--target-file-size", "big"],
        ["--max-group-size", "-1"],
        ["--job-order", "random"],
        ["--max-commits", "3"],
        ["--min-input-files", "x"],
        ["--output", "yaml"],
    ],
)
def test_wrong_usage_has_its_own_exit_code(arguments: list[str]) -> None:
    assert_fails(run("rewrite", "x", *arguments), 2, arguments[0])
    assert_fails(run("rewrite"), 2)


def test_sizes_have_units() -> None:
    texts = ["7", "7b", "2k", "2KiB", "3 MB", "1GB", "1t"]
    sizes = [7, 7, 2 << 10, 2 << 10, 3 << 20, 1 << 30, 1 << 40]
    assert [parse_size(text, "'--size'") for text in texts] == sizes


def test_a_terminal_sees_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []

    @contextmanager
    def bar(*_: Any, **__: Any) -> Iterator[Any]:
        class Bar:
            def add_task(self, *_: Any, **__: Any) -> int:
                return 0

            def update(self, _: int, **fields: Any) -> None:
                seen.append(fields)

        yield Bar()

    monkeypatch.setattr(progress, "Progress", bar)
    monkeypatch.setattr(progress, "Console", lambda **_: Console(force_terminal=True))
    with progress.show_group_progress("rewriting") as tell:
        tell(2, 1000)
    assert seen == [{"completed": 2, "total": 1000, "counted": "2 of 1,000 groups"}]
