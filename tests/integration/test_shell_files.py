"""Files in the shell: every format gives the same rows, and text becomes the columns' types."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import phalanx
from integration.shell import (
    FILES,
    ROWS,
    SPEC,
    arrow_stream,
    assert_fails,
    csv_text,
    run,
    run_json,
    write_json_lines,
)
from phalanx.cli.console import json_text


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
    # Versions 1 and 2 make the leaf, version 3 has the rows.
    assert table.partition(country="US").version == 3


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
    assert run_json("scan", table.uri) == list(json_text.iter_rows(rows))


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
