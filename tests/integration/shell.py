"""Shared parts of the tests of the shell: rows of many types, their files, and how to run it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.parquet as pq
from typer.testing import CliRunner

from phalanx.cli.app import app
from phalanx.cli.console import json_text

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
        raise AssertionError(f"{name} is not valid JSON")

    return json.loads(text, parse_constant=refuse)


def assert_fails(result: Any, code: int, *words: str) -> None:
    assert result.exit_code == code
    assert result.stdout == ""
    assert all(word in result.stderr for word in words), result.stderr
    assert "Traceback" not in result.stderr
    if code == 1:
        assert result.stderr.startswith("error: ")
        assert len(result.stderr.splitlines()) == 1


def write_csv(path: Path, rows: pa.Table) -> None:
    path.write_text(csv_text(rows), encoding="utf-8")


def csv_text(rows: pa.Table) -> str:
    """NULL as an empty field, and everything else in quotes, empty text too."""
    values = [list(row.values()) for row in json_text.iter_rows(rows)]
    lines = (
        ",".join("" if value is None else f'"{value}"' for value in row)
        for row in [rows.column_names, *values]
    )
    return "".join(f"{line}\n" for line in lines)


def write_json_lines(path: Path, rows: pa.Table) -> None:
    path.write_text(
        "".join(json_text.dumps(row) + "\n" for row in json_text.iter_rows(rows)), encoding="utf-8"
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
