"""How far a long command is, on stderr, and only if somebody looks at it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


@contextmanager
def counting_rows(total: Callable[[], int | None]) -> Iterator[Callable[[int], None]]:
    """A function to call with the number of rows that passed.

    The total is asked for only when it is shown. Once it is reached, partitions are written.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda rows: None
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,} rows"),
        TimeElapsedColumn(),
    )
    expected = total()
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("reading", total=expected)
        done = 0

        def advance(rows: int) -> None:
            nonlocal done
            done += rows
            writing = expected is not None and done >= expected
            progress.update(
                task, advance=rows, description="writing partitions" if writing else "reading"
            )

        yield advance
