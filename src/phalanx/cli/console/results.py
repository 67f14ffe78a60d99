"""Tables for people: fitted to a terminal, whole and without colours everywhere else."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from phalanx.cli.console.json_text import dumps

_NULL = "NULL"
_WIDEST_CELL = 60
_GAP = 2


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its title, and its cells as text."""

    title: str
    cells: Sequence[str]
    is_number: bool = False

    @property
    def width(self) -> int:
        """How wide it is when nothing is cut."""
        return max(cell_len(text) for text in (self.title, *self.cells))


def column(title: str, values: Sequence[Any]) -> Column:
    """A column of JSON values."""
    numbers = [isinstance(value, int | float) for value in values if value is not None]
    return Column(printable(title), [cell(value) for value in values], all(numbers))


def cell(value: Any) -> str:
    """A JSON value as the text of a cell."""
    if value is None:
        return _NULL
    return printable(value if isinstance(value, str) else dumps(value))


def printable(text: str) -> str:
    """The text on one line, without what a terminal would obey."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def show(columns: Sequence[Column]) -> int:
    """Print the columns to stdout; returns how many a narrow terminal could not hold."""
    terminal = sys.stdout.isatty()
    console = Console(file=sys.stdout, highlight=False)
    shown = list(columns)
    if terminal:
        shown = _fitting(columns, console.width)
    else:
        console = Console(file=sys.stdout, highlight=False, width=_whole_width(columns))
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
            max_width=_WIDEST_CELL if terminal else None,
        )
    for row in zip(*(each.cells for each in shown), strict=True):
        table.add_row(*(Text(text, "dim" if text == _NULL else "") for text in row))
    console.print(table)
    return len(columns) - len(shown)


def _whole_width(columns: Sequence[Column]) -> int:
    return sum(each.width + _GAP for each in columns) + _GAP


def _fitting(columns: Sequence[Column], width: int) -> list[Column]:
    """The first columns that fit beside each other, at least one."""
    shown: list[Column] = []
    for each in columns:
        width -= min(each.width, _WIDEST_CELL) + _GAP
        if shown and width + _GAP < 0:
            break
        shown.append(each)
    return shown
