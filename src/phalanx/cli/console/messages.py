"""What the shell writes to stderr: progress, notes, warnings, and one line for a failure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from typer.core import TyperGroup

from phalanx.errors import PhalanxError, hide_secrets
from phalanx.storage.lance.failures import is_lance_error, summarize_error

# Lance raises plain ValueError and RuntimeError too.
_EXPECTED_ERRORS = (PhalanxError, OSError, pa.ArrowException, ValueError, RuntimeError)


class OneLineFailures(TyperGroup):
    """A group of commands that fail with exit code 1 and one line; typer handles usage errors."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that the arguments name."""
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort, BrokenPipeError):
            # Typer exits quietly when the reader of a pipe is gone.
            raise
        except _EXPECTED_ERRORS as error:
            typer.echo(f"error: {to_one_line(error)}", err=True)
            raise typer.Exit(1) from None


def to_one_line(error: BaseException) -> str:
    """Return the message without line breaks, and without source locations of Lance."""
    if is_lance_error(error):
        return summarize_error(error)
    text = hide_secrets(str(error).strip()) or type(error).__name__
    return re.sub(r"\s*[\r\n]\s*", " ", text)


def warn(message: str) -> None:
    """Print a warning to stderr."""
    typer.echo(f"warning: {message}", err=True)


def note(message: str) -> None:
    """Print a note about the output to stderr."""
    typer.echo(message, err=True)


@dataclass(frozen=True, slots=True)
class RowProgress:
    """The callbacks of an append: rows read, and all rows read."""

    read: Callable[[int], None]
    all_read: Callable[[], None]


@contextmanager
def show_row_progress(total: Callable[[], int | None]) -> Iterator[RowProgress]:
    """Show the number of rows read; `total` is called only if it is shown."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield RowProgress(lambda rows: None, lambda: None)
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,} rows"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("reading", total=total())
        yield RowProgress(
            lambda rows: progress.advance(task, rows),
            lambda: progress.update(task, total=None, description="writing partitions"),
        )


@contextmanager
def show_spinner(what: str) -> Iterator[None]:
    """Show a spinner and the time elapsed, for work of unknown length."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        progress.add_task(what, total=None)
        yield


@contextmanager
def show_group_progress(what: str, things: str = "groups") -> Iterator[Callable[[int, int], None]]:
    """Show how many groups are done; yield a callback with the number done and the total."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda done, total: None
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[counted]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(what, total=None, counted="")
        yield lambda done, total: progress.update(
            task, completed=done, total=total, counted=f"{done:,} of {total:,} {things}"
        )
