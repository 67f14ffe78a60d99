"""The shell: what each command prints, where it prints it, and how it fails."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import phalanx
from integration.shell import (
    ROWS,
    SPEC,
    assert_fails,
    run,
    run_json,
    strict_json,
)
from phalanx.cli.console import json_text
from phalanx.cli.console.messages import to_one_line
from phalanx.cli.console.results import escape_unprintable


@pytest.fixture
def events(tmp_path: Path) -> str:
    uri = str(tmp_path / "events")
    phalanx.create(uri, ROWS.schema, SPEC).append(ROWS)
    return uri


def test_a_described_schema_creates_the_same_table(events: str, tmp_path: Path) -> None:
    described = run_json("describe", events)
    (tmp_path / "schema.json").write_text(json.dumps(described["schema"]))
    uri = str(tmp_path / "other")
    schema = ("--schema", str(tmp_path / "schema.json"))
    assert run("create", uri, *schema, "--partition-by", SPEC).exit_code == 0
    assert phalanx.open(uri).schema.equals(phalanx.open(events).schema, check_metadata=True)
    assert run_json("describe", uri)["specs"][0]["fields"] == described["specs"][0]["fields"]


def test_a_strong_table_has_snapshots_from_the_start(tmp_path: Path) -> None:
    pq.write_table(ROWS, tmp_path / "rows.parquet")
    uri, file = str(tmp_path / "strong"), str(tmp_path / "rows.parquet")
    strong = ("--partition-by", SPEC, "--transaction", "strong")
    assert run("create", uri, "--like", file, *strong).exit_code == 0
    assert run("append", uri, file).exit_code == 0
    assert [each["operation"] for each in run_json("snapshots", uri)] == ["create", "append"]
    unknown = run("create", f"{uri}2", "--like", file, *strong[:3], "big")
    assert unknown.exit_code == 2


def test_describe_counts_by_spec(events: str) -> None:
    assert run_json("evolve", events, "bucket(4, id)")["partition_by"] == "bucket(4, id)"
    phalanx.open(events).append(ROWS.slice(0, 2))
    found = run_json("describe", events)
    assert (found["mode"], found["rows"], found["partitions"]) == ("weak", 5, 5)
    assert [(spec["id"], spec["rows"], spec["partitions"]) for spec in found["specs"]] == [
        (1, 3, 3),
        (2, 2, 2),
    ]
    assert found["bytes"] == sum(spec["bytes"] for spec in found["specs"])
    shown = run("describe", events).stdout
    assert "decimal128(12, 2)" in shown
    assert "weak: each partition commits separately" in shown


def test_ls_lists_what_partitions_has(events: str) -> None:
    found = run_json("ls", events)
    table = phalanx.open(events).partitions()
    assert [each["location"] for each in found] == table["location"].to_pylist()
    assert [each["values"]["country"] for each in found] == table["country"].to_pylist()
    assert sum(each["rows"] for each in found) == 3
    shown = run("ls", events, "--limit", "1")
    assert Path(found[0]["location"]).name in shown.stdout
    assert "2 more partitions" in shown.stderr


def test_explain_prints_the_plan(events: str) -> None:
    plan = phalanx.open(events).plan("country = 'US'")
    assert run("explain", events, "country = 'US'").stdout == f"{plan}\n"
    found = run_json("explain", events, "country = 'US'")
    assert found == plan.to_dict()
    assert (found["scanned_partitions"], found["total_partitions"]) == (1, 3)


def test_scan_prints_rows(events: str) -> None:
    assert run_json("scan", events) == list(
        json_text.iter_rows(phalanx.open(events).scan().to_arrow())
    )
    assert run_json("scan", events, "--where", "id = 3", "--columns", "price, id") == [
        {"price": "-0.01", "id": 3}
    ]
    assert run_json("scan", events, "--where", "false") == []
    assert len(run_json("scan", events, "--limit", "2")) == 2
    assert run_json("scan", events, "--count", "--where", "id < 4") == {"count": 2}
    assert run("scan", events, "--count").stdout == "3\n"


def test_a_table_of_rows_hides_no_character_and_says_how_many_rows(tmp_path: Path) -> None:
    long = "x" * 500
    rows = pa.table({"text": [long, "two\nlines \x1b[31m[red]", *["more"] * 98], "n": range(100)})
    table = phalanx.create(tmp_path / "t", rows.schema, [])
    table.append(rows)
    result = run("scan", table.uri)
    assert long in result.stdout
    assert r"two\nlines \x1b[31m[red]" in result.stdout
    assert "\x1b" not in result.stdout
    assert result.stderr == "50 more rows: show them with --all or --limit.\n"
    assert len(result.stdout.splitlines()) == 52
    assert len(run("scan", table.uri, "--all").stdout.splitlines()) == 102
    assert run("scan", table.uri, "--limit", "60").stderr == ""


def test_a_scan_that_cannot_prune_says_so(events: str) -> None:
    result = run("scan", events, "--where", "lower(country) = 'us'", "--output", "json")
    assert len(strict_json(result.stdout)) == 1
    assert result.stderr.startswith("warning: ")
    assert "3 of 3 partitions" in result.stderr


def test_delete_shows_how_many(events: str) -> None:
    assert run_json("delete", events, "country = 'US'") == {"rows": 1}
    assert run("delete", events, "country = 'US'").stdout == "Deleted 0 rows.\n"
    assert phalanx.open(events).scan().count_rows() == 2


def test_json_holds_every_type() -> None:
    far = pa.array([2**40, None], pa.int64())
    maps = pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int32()))
    table = pa.table(
        {
            "float": [math.nan, -math.inf],
            "uint64": pa.array([2**64 - 1, None], pa.uint64()),
            "ns": pa.array([1, None], pa.timestamp("ns", "Europe/Paris")),
            "far": far.cast(pa.timestamp("s")),
            "duration": pa.array([5, None], pa.duration("ms")),
            "map": maps,
            "word": pa.array(["é😀", None]).dictionary_encode(),
            "struct": pa.array([{"a": math.nan, "b": b"\x01"}, None]),
        }
    )
    first, second = strict_json(json_text.dumps(list(json_text.iter_rows(table))))
    assert first["float"] == "nan"
    assert first["uint64"] == 2**64 - 1
    assert first["ns"] == "1970-01-01T00:00:00.000000001Z"
    assert first["duration"] == 5
    assert first["map"] == [{"key": "a", "value": 1}]
    assert first["word"] == "é😀"
    assert first["struct"] == {"a": "nan", "b": "01"}
    assert set(second) == set(table.column_names)
    assert {name for name, value in second.items() if value is not None} == {"float"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["describe", "{nowhere}"], ["nowhere"]),
        (["ls", "{nowhere}", "--output", "json"], ["nowhere"]),
        (["scan", "{events}", "--where", "nope = 1"], ["nope"]),
        (["scan", "{events}", "--where", "id ="], ["id ="]),
        (["scan", "{events}", "--columns", "nope"], ["nope"]),
        (["explain", "{events}", "id = 'x"], ["id = 'x"]),
        (["append", "{events}", "{nowhere}.parquet"], ["nowhere.parquet"]),
        (["append", "{events}", "{nowhere}.lance"], ["nowhere.lance"]),
        (["append", "{events}", "{text}", "--format", "parquet"], ["some.txt"]),
        (["append", "{events}", "{text}", "--format", "csv"], ["some.txt"]),
        (["append", "{events}", "{text}", "--format", "jsonl"], ["some.txt"]),
        (["append", "{events}", "{text}", "--format", "arrow"], ["some.txt"]),
        (["evolve", "{events}", "week(ts)"], ["week"]),
        (["delete", "{events}", "nope = 1"], ["nope"]),
        (["create", "{events}", "--like", "{events}", "--format", "lance"], ["--partition-by"]),
        (["create", "{nowhere}", "--schema", "{text}", "--partition-by", "id"], ["--like"]),
    ],
)
def test_failures_are_one_line(
    arguments: list[str], words: list[str], events: str, tmp_path: Path
) -> None:
    (tmp_path / "some.txt").write_text("neither\nthis nor that\n")
    places = {"events": events, "nowhere": tmp_path / "nowhere", "text": tmp_path / "some.txt"}
    is_usage = words == ["--partition-by"]
    result = run(*(argument.format(**places) for argument in arguments))
    assert_fails(result, 2 if is_usage else 1, *words)


@pytest.mark.parametrize(
    "arguments",
    [
        ["describe"],
        ["describe", "x", "--output", "yaml"],
        ["describe", "x", "--storage-option", "region"],
        ["nonsense"],
        ["scan", "x", "--limit", "-1"],
        ["scan", "x", "--limit", "1", "--all"],
        ["append", "x"],
        ["append", "x", "rows.xlsx"],
        ["create", "x", "--partition-by", "id"],
        ["create", "x", "--partition-by", "id", "--like", "a.csv", "--schema", "b.json"],
    ],
)
def test_wrong_usage_has_its_own_exit_code(arguments: list[str]) -> None:
    assert_fails(run(*arguments), 2)


def test_create_refuses_what_exists_and_unknown_types(events: str, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("id,note\n1,\n")
    like = ("--like", str(tmp_path / "rows.csv"), "--partition-by", "id")
    assert_fails(run("create", str(tmp_path / "new"), *like), 1, "'note'", "--schema")
    pq.write_table(ROWS, tmp_path / "rows.parquet")
    again = ("--like", str(tmp_path / "rows.parquet"), "--partition-by", "id")
    assert_fails(run("create", events, *again), 1, "exists")


def test_a_message_is_one_line_without_foreign_places() -> None:
    error = OSError("LanceError(IO): broken\n  pipe, /root/.cargo/lance-1.0/src/io.rs:12:34")
    assert to_one_line(error) == "broken pipe."
    assert escape_unprintable("a\tb") == r"a\tb"


# ── as a process ─────────────────────────────────────────────────────────────────────────────


def process(*arguments: str, code: str = "from phalanx.cli import main; main()") -> Any:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, timeout=60, check=False
    )


def test_a_process_keeps_data_and_messages_apart(events: str) -> None:
    done = process("scan", events, "--output", "json")
    assert (done.returncode, done.stderr) == (0, b"")
    assert len(strict_json(done.stdout.decode())) == 3
    failed = process("scan", f"{events}/nowhere")
    assert (failed.returncode, failed.stdout) == (1, b"")
    assert failed.stderr.startswith(b"error: Cannot open ")
    assert failed.stderr.count(b"\n") == 1


def test_a_reader_that_leaves_early_sees_no_error(events: str) -> None:
    table = phalanx.open(events)
    table.append(pa.concat_tables([ROWS] * 3000))
    code = "from phalanx.cli import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", code, "scan", events, "--output", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert child.stdout.readline() == b"[\n"
        child.stdout.close()
        assert child.stderr.read() == b""


def test_a_missing_extra_is_named() -> None:
    code = "import sys; sys.modules['typer'] = None\nfrom phalanx.cli import main\nmain()"
    done = process("ls", "x", code=code)
    assert done.returncode == 1
    assert done.stderr.decode() == (
        "error: The phalanx shell needs typer, which is not installed. "
        "Install it: pip install 'phalanx-lance[cli]'\n"
    )
