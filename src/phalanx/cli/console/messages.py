"""How far a long command is, on stderr, and only if somebody looks at it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


@dataclass(frozen=True, slots=True)
class RowProgress:
    """What to call as an append goes on."""

    read: Callable[[int], None]
    all_read: Callable[[], None]


@contextmanager
def counting_rows(total: Callable[[], int | None]) -> Iterator[RowProgress]:
    """Show the rows as they are read; their total is asked for only when it is shown."""
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
def working(what: str) -> Iterator[None]:
    """Show that something goes on whose end is not known, and for how long."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        progress.add_task(what, total=None)
        yield


@contextmanager
def counting_groups(what: str, things: str = "groups") -> Iterator[Callable[[int, int], None]]:
    """Show how many groups are done of how many, which is known when the first ones are."""
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
