"""The shell: what it prints where, how it fails, and that every file format gives the same rows."""

from __future__ import annotations

import gzip
import json
import math
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import phalanx
from phalanx.cli import json_text
from phalanx.cli.app import app
from phalanx.cli.failures import one_line
from phalanx.cli.tables import printable

ROWS = pa.table(
    {
        "id": pa.array([1, 2**62, 3], pa.int64()),
        "day": pa.array([date(2025, 1, 31), date(2025, 2, 1), None], pa.date32()),
        "at": pa.array([time(1, 2, 3, 4), None, time(23, 59)], pa.time64("us")),
        "local": pa.array(
            [datetime(2025, 1, 1, 12), datetime(2024, 6, 1), None], pa.timestamp("us")
        ),
        "ts": pa.array(
            [datetime(2025, 1, 1, 12, tzinfo=UTC), None, datetime(1969, 12, 31, tzinfo=UTC)],
            pa.timestamp("us", "Europe/Paris"),
        ),
        "price": pa.array([Decimal("14.20"), None, Decimal("-0.01")], pa.decimal128(12, 2)),
        "ratio": pa.array([0.5, None, 1e300], pa.float64()),
        "raw": pa.array([b"\x00\xff", b"", None], pa.binary()),
        "country": pa.array(["US", "", None], pa.string()),
    }
)
SPEC = "year(local), country"


def run(*arguments: str, input: bytes | None = None) -> Any:
    return CliRunner().invoke(app, list(arguments), input=input)


def run_json(*arguments: str) -> Any:
    result = run(*arguments, "--output", "json")
    assert (result.exit_code, result.stderr) == (0, "")
    return strict_json(result.stdout)


def strict_json(text: str) -> Any:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


def assert_fails(result: Any, code: int, *words: str) -> None:
    assert result.exit_code == code
    assert result.stdout == ""
    assert all(word in result.stderr for word in words), result.stderr
    assert "Traceback" not in result.stderr
    if code == 1:
        assert result.stderr.startswith("error: ")
        assert len(result.stderr.splitlines()) == 1


@pytest.fixture
def events(tmp_path: Path) -> str:
    uri = str(tmp_path / "events")
    phalanx.create(uri, ROWS.schema, SPEC).append(ROWS)
    return uri


def write_csv(path: Path, rows: pa.Table) -> None:
    path.write_text(csv_text(rows), encoding="utf-8")


def csv_text(rows: pa.Table) -> str:
    """NULL as an empty field, and everything else in quotes, empty text too."""
    values = [list(row.values()) for row in json_text.rows(rows)]
    lines = (
        ",".join("" if value is None else f'"{value}"' for value in row)
        for row in [rows.column_names, *values]
    )
    return "".join(f"{line}\n" for line in lines)


def write_json_lines(path: Path, rows: pa.Table) -> None:
    path.write_text(
        "".join(json_text.dumps(row) + "\n" for row in json_text.rows(rows)), encoding="utf-8"
    )


def write_gzipped(path: Path, rows: pa.Table) -> None:
    path.write_bytes(gzip.compress(csv_text(rows).encode()))


def write_arrow_file(path: Path, rows: pa.Table) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
        writer.write_table(rows)


def write_arrow_stream(path: Path, rows: pa.Table) -> None:
    path.write_bytes(arrow_stream(rows))


def arrow_stream(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return sink.getvalue().to_pybytes()


FILES: dict[str, Callable[[Path, pa.Table], object]] = {
    "rows.parquet": lambda path, rows: pq.write_table(rows, path),
    "rows.csv": write_csv,
    "rows.csv.gz": write_gzipped,
    "rows.jsonl": write_json_lines,
    "rows.arrow": write_arrow_file,
    "rows.arrows": write_arrow_stream,
    "rows.lance": lambda path, rows: lance.write_dataset(rows, str(path)),
}


@pytest.mark.parametrize("name", FILES)
def test_every_format_appends_the_same_rows(name: str, tmp_path: Path) -> None:
    uri, path = str(tmp_path / "events"), tmp_path / name
    table = phalanx.create(uri, ROWS.schema, SPEC)
    FILES[name](path, ROWS)
    assert run_json("append", uri, str(path)) == {"rows": 3, "files": 1}
    assert table.scan().to_arrow().sort_by("id") == ROWS.sort_by("id")


def test_several_files_are_one_append(tmp_path: Path) -> None:
    uri = str(tmp_path / "events")
    table = phalanx.create(uri, ROWS.schema, "country")
    for name, write in FILES.items():
        write(tmp_path / name, ROWS)
    names = [str(tmp_path / name) for name in FILES]
    result = run("append", uri, *names)
    assert result.stdout == f"Appended {3 * len(FILES)} rows from {len(FILES)} files.\n"
    assert table.scan().count_rows() == 3 * len(FILES)
    # Version 1 makes the leaf, version 2 has the rows.
    assert table.partition(country="US").version == 2


def test_nothing_is_written_if_one_file_is_wrong(tmp_path: Path) -> None:
    uri = str(tmp_path / "events")
    table = phalanx.create(uri, ROWS.schema, SPEC)
    pq.write_table(ROWS, tmp_path / "good.parquet")
    pq.write_table(ROWS.drop_columns("ts"), tmp_path / "bad.parquet")
    result = run("append", uri, str(tmp_path / "good.parquet"), str(tmp_path / "bad.parquet"))
    assert_fails(result, 1, "bad.parquet", "'ts'")
    assert table.partitions().num_rows == 0


def test_an_arrow_stream_and_csv_come_on_stdin(tmp_path: Path) -> None:
    uri = str(tmp_path / "events")
    table = phalanx.create(uri, ROWS.schema, SPEC)
    assert run("append", uri, "-", input=arrow_stream(ROWS)).exit_code == 0
    csv_input = csv_text(ROWS).encode()
    assert run("append", uri, "-", "--format", "csv", input=csv_input).exit_code == 0
    assert table.scan().count_rows() == 6
    assert_fails(run("append", uri, "-", "--format", "parquet", input=b"PAR1"), 1, "stdin")


def test_nested_json_is_parsed_at_every_depth(tmp_path: Path) -> None:
    order = pa.struct([("placed", pa.date32()), ("tags", pa.list_(pa.string()))])
    rows = pa.table(
        {
            "order": pa.array([{"placed": date(2025, 1, 1), "tags": ["a"]}, None], order),
            "days": pa.array([[date(2025, 1, 2), None], None], pa.list_(pa.date32())),
            "vector": pa.array([[1.0, 2.0], None], pa.list_(pa.float32(), 2)),
        }
    )
    table = phalanx.create(tmp_path / "t", rows.schema, [])
    write_json_lines(tmp_path / "rows.jsonl", rows)
    (tmp_path / "none.jsonl").touch()
    result = run("append", table.uri, str(tmp_path / "rows.jsonl"), str(tmp_path / "none.jsonl"))
    assert result.exit_code == 0, result.stderr
    assert table.scan().to_arrow() == rows
    assert run_json("scan", table.uri) == list(json_text.rows(rows))


def test_text_without_a_zone_is_in_the_zone_of_its_column(tmp_path: Path) -> None:
    schema = pa.schema([("ts", pa.timestamp("us", "Europe/Paris"))])
    table = phalanx.create(tmp_path / "t", schema, [])
    texts = ["2025-07-01 12:00:00", "2025-07-01T12:00:00Z", "2025-07-01T12:00+05:00", "2025-07-01"]
    (tmp_path / "rows.csv").write_text("ts\n" + "\n".join(texts) + "\n")
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"ts": t}) + "\n" for t in texts))
    files = [str(tmp_path / "rows.csv"), str(tmp_path / "rows.jsonl")]
    assert run("append", table.uri, *files).exit_code == 0
    found = [moment.astimezone(UTC) for moment in table.scan().to_arrow()["ts"].to_pylist()]
    hours = [(1, 10), (1, 12), (1, 7), (30, 22)]
    expected = [datetime(2025, 6 if day == 30 else 7, day, hour, tzinfo=UTC) for day, hour in hours]
    assert found == expected * 2


def test_null_texts_are_the_users_choice(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text('country,n\nNA,1\n"",NA\n,3\n')
    like = ("--like", str(tmp_path / "rows.csv"), "--partition-by", "country")
    assert run("create", str(tmp_path / "t"), *like, "--null", "NA").exit_code == 0
    table = phalanx.open(tmp_path / "t")
    assert table.schema.field("n").type == pa.int64()
    assert_fails(run("append", table.uri, str(tmp_path / "rows.csv")), 1, "rows.csv", "'NA'")
    run("append", table.uri, str(tmp_path / "rows.csv"), "--null", "NA")
    assert table.scan().to_arrow().to_pydict() == {"country": ["", None, None], "n": [None, 1, 3]}


@pytest.mark.parametrize("name", FILES)
def test_a_table_is_created_like_a_file(name: str, tmp_path: Path) -> None:
    FILES[name](tmp_path / name, ROWS.select(["id", "country", "ratio"]))
    uri = str(tmp_path / "made")
    made = run_json("create", uri, "--like", str(tmp_path / name), "--partition-by", "country")
    assert (made["uri"], made["rows"], made["specs"][0]["partition_by"]) == (uri, 0, "country")
    assert phalanx.open(uri).schema.names == ["id", "country", "ratio"]


def test_a_described_schema_creates_the_same_table(events: str, tmp_path: Path) -> None:
    described = run_json("describe", events)
    (tmp_path / "schema.json").write_text(json.dumps(described["schema"]))
    uri = str(tmp_path / "other")
    schema = ("--schema", str(tmp_path / "schema.json"))
    assert run("create", uri, *schema, "--partition-by", SPEC).exit_code == 0
    assert phalanx.open(uri).schema.equals(phalanx.open(events).schema, check_metadata=True)
    assert run_json("describe", uri)["specs"][0]["fields"] == described["specs"][0]["fields"]


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
    assert "weak: each partition commits for itself" in shown


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
    assert run_json("scan", events) == list(json_text.rows(phalanx.open(events).scan().to_arrow()))
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


def test_delete_tells_how_many(events: str) -> None:
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
    first, second = strict_json(json_text.dumps(list(json_text.rows(table))))
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
def test_wrong_usage_is_told_apart(arguments: list[str]) -> None:
    assert_fails(run(*arguments), 2)


def test_create_refuses_what_exists_and_types_that_nobody_knows(
    events: str, tmp_path: Path
) -> None:
    (tmp_path / "rows.csv").write_text("id,note\n1,\n")
    like = ("--like", str(tmp_path / "rows.csv"), "--partition-by", "id")
    assert_fails(run("create", str(tmp_path / "new"), *like), 1, "'note'", "--schema")
    pq.write_table(ROWS, tmp_path / "rows.parquet")
    again = ("--like", str(tmp_path / "rows.parquet"), "--partition-by", "id")
    assert_fails(run("create", events, *again), 1, "exists")


def test_a_message_is_one_line_without_foreign_places() -> None:
    error = OSError("LanceError(IO): broken\n  pipe, /root/.cargo/lance-1.0/src/io.rs:12:34")
    assert one_line(error) == "LanceError(IO): broken pipe"
    assert printable("a\tb") == r"a\tb"


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
