"""The snippets of the documentation run, and print what their comments say."""

import contextlib
import logging
import re
import shlex
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import typer.core
import typer.main

from ducklakes import Lake
from integration.iceberg_tables import catalog_at
from phalanx.cli.app import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
WITH_SNIPPETS = [page for page in PAGES if "```python\n" in page.read_text(encoding="utf-8")]


@pytest.fixture
def restored_logger() -> Iterator[None]:
    """Remove what a snippet adds to the logger of Phalanx."""
    logger = logging.getLogger("phalanx")
    level, handlers = logger.level, list(logger.handlers)
    yield
    logger.setLevel(level)
    logger.handlers[:] = handlers


@pytest.mark.usefixtures("restored_logger")
@pytest.mark.parametrize("page", WITH_SNIPPETS, ids=lambda page: page.stem)
def test_snippets_print_what_they_promise(
    page: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    text = page.read_text(encoding="utf-8")
    example = "".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    exec(compile(example, str(page), "exec"), {})
    printed = capsys.readouterr().out
    results = re.findall(r"^ *print\(.*\)  # (.*)$", example, re.MULTILINE)
    assert results
    assert len(results) == example.count("print(")
    for result in results:
        start = result.removesuffix(" …")
        assert any(
            line.startswith(start) if result.endswith(" …") else line == result
            for line in printed.splitlines()
        ), result
    if page.name == "README.md":
        # The filter that the plan should have; tests/spark runs the Spark SQL.
        promised, *_ = re.findall(r"```sql\n(.*?)```", text, re.DOTALL)
        assert " ".join(promised.split()) in printed


def blocks(page: str, language: str) -> list[str]:
    """The code of one language on a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def test_ducklake_tables_are_planned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lake = Lake("duckdb", tmp_path)
    lake.connection.execute("CREATE TABLE events (id BIGINT, ts TIMESTAMP, country VARCHAR)")
    lake.connection.execute("INSERT INTO events VALUES (4711, '2025-06-02', 'US'), (1, NULL, 'FR')")
    lake.close()
    code = blocks("docs/importing.md", "py")[2]
    assert "postgres:dbname=lake" in code
    names: dict[str, Any] = {}
    exec(code.replace("postgres:dbname=lake", lake.catalog), names)
    assert len(names["plan"].files) == 1
    assert str(names["plan"]) in capsys.readouterr().out


def test_iceberg_tables_are_planned_and_rewritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    catalog = catalog_at(tmp_path)
    catalog.create_namespace("sales")
    rows = pa.table({"customer_id": [42], "ts": [datetime(2026, 1, 2)]})
    table = catalog.create_table("sales.orders", rows.schema)
    for _ in range(6):
        table.append(rows)
    names: dict[str, Any] = {"catalog": catalog}
    exec(blocks("docs/importing.md", "py")[3], names)
    assert len(names["plan"].groups) == 1
    assert "6 files" in capsys.readouterr().out
    assert catalog.load_table("sales.orders").scan().count() == 6


def shell_commands() -> list[list[str]]:
    """The commands of the shell's page; each ends at a pipe."""
    found = []
    for line in "".join(blocks("docs/shell.md", "sh")).splitlines():
        _, name, rest = line.partition("phalanx ")
        if name:
            words = shlex.split(rest, comments=True)
            found.append(words[: words.index("|")] if "|" in words else words)
    return found


@pytest.mark.parametrize("words", shell_commands(), ids=" ".join)
def test_the_shell_accepts_every_command(words: list[str], tmp_path: Path) -> None:
    """The commands are parsed with their options; the tests of the shell run them."""
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    name, *arguments = words
    command = group.commands[name]
    for file in ("monday.parquet", "tuesday.csv", "wednesday.jsonl", "corrections.parquet"):
        (tmp_path / file).touch()
    with contextlib.chdir(tmp_path):
        command.make_context(name, arguments)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (page.parent / target).exists(), target
