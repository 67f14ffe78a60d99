"""Print the results of commands: as JSON, or as tables and sentences for people.

Tables fit the terminal; elsewhere they are complete and without colours.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import typer
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from phalanx.cli.console import json_text
from phalanx.cli.console.json_text import dumps
from phalanx.cli.console.messages import note, warn
from phalanx.cli.console.options import Output
from phalanx.planning.pruning.scan_plan import ScanPlan
from phalanx.table.read.scan import Scan


def print_result(output: Output, sentence: str, fact: dict[str, Any]) -> None:
    """Print what was done, as a sentence or as JSON."""
    typer.echo(json_text.dumps(fact) if output is Output.JSON else sentence)


def warn_of_pruning(plan: ScanPlan) -> None:
    """Warn about conditions on partition sources that could not prune."""
    if plan.fail_open and plan.scanned_partitions > 1:
        conditions = "; ".join(dict.fromkeys(reason.condition for reason in plan.fail_open))
        warn(
            f"{conditions} cannot prune, so {plan.scanned_partitions:,} of "
            f"{plan.total_partitions:,} partitions are read. phalanx explain says why."
        )


def print_json_rows(batches: Iterable[pa.RecordBatch]) -> None:
    """Print a JSON list with one row on each line, batch by batch."""
    before = "["
    for batch in batches:
        for row in json_text.iter_rows(batch):
            sys.stdout.write(f"{before}\n{json_text.dumps(row)}")
            before = ","
    sys.stdout.write("[]\n" if before == "[" else "\n]\n")
    sys.stdout.flush()


def print_scan(found: Scan) -> bool:
    """Print a table of rows; return whether there may be more rows than the limit."""
    rows = found.to_arrow()
    print_arrow_table(rows)
    return found.limit is not None and rows.num_rows >= found.limit


def print_arrow_table(rows: pa.Table) -> None:
    """Print a table of rows, with as many columns as fit the terminal."""
    hidden = print_columns(
        [
            make_column(name, json_text.to_values(values))
            for name, values in zip(rows.column_names, rows.columns, strict=True)
        ]
    )
    if hidden:
        names = ", ".join(rows.column_names[-hidden:])
        note(f"Columns that do not fit the terminal: {names}. Choose some with --columns.")


_NULL = "NULL"
_MAX_CELL_WIDTH = 60
_GAP = 2


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of a table: its title, and its cells as text."""

    title: str
    cells: Sequence[str]
    is_number: bool = False

    @property
    def width(self) -> int:
        """The width without truncation."""
        return max(cell_len(text) for text in (self.title, *self.cells))


def make_column(title: str, values: Sequence[Any]) -> TableColumn:
    """Return a column of JSON values."""
    numbers = [isinstance(value, int | float) for value in values if value is not None]
    return TableColumn(
        escape_unprintable(title), [format_cell(value) for value in values], all(numbers)
    )


def format_cell(value: Any) -> str:
    """Return a JSON value as the text of a cell."""
    if value is None:
        return _NULL
    return escape_unprintable(value if isinstance(value, str) else dumps(value))


def escape_unprintable(text: str) -> str:
    """Return the text on one line, with control characters escaped."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def print_columns(columns: Sequence[TableColumn]) -> int:
    """Print the columns to stdout; return how many did not fit the terminal."""
    terminal = sys.stdout.isatty()
    console = Console(file=sys.stdout, highlight=False)
    shown = list(columns)
    if terminal:
        shown = _fit_columns(columns, console.width)
    else:
        console = Console(file=sys.stdout, highlight=False, width=_total_width(columns))
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
        header_style="bold",
    )
    for each in shown:
        table.add_column(
            Text(each.title),
            justify="right" if each.is_number else "left",
            no_wrap=True,
            overflow="ellipsis",
            max_width=_MAX_CELL_WIDTH if terminal else None,
        )
    for row in zip(*(each.cells for each in shown), strict=True):
        table.add_row(*(Text(text, "dim" if text == _NULL else "") for text in row))
    console.print(table)
    return len(columns) - len(shown)


def _total_width(columns: Sequence[TableColumn]) -> int:
    return sum(each.width + _GAP for each in columns) + _GAP


def _fit_columns(columns: Sequence[TableColumn], width: int) -> list[TableColumn]:
    """Return the first columns that fit the width, at least one."""
    shown: list[TableColumn] = []
    for each in columns:
        width -= min(each.width, _MAX_CELL_WIDTH) + _GAP
        if shown and width + _GAP < 0:
            break
        shown.append(each)
    return shown
