"""The commands that change rows and drop partitions: `delete`, `update`, `merge` and `retain`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from phalanx.cli.console import json_text
from phalanx.cli.console.messages import counting_rows
from phalanx.cli.console.options import (
    Output,
    OutputOption,
    StorageOptions,
    Uri,
    Where,
    key_values,
    storage_options,
)
from phalanx.cli.console.results import column, printable, show
from phalanx.cli.console.sources import FormatOption, NullOption, chained, source_of, total_rows
from phalanx.cli.failures import note
from phalanx.cli.results import tell
from phalanx.table.opening import open as open_table
from phalanx.table.table import Table
from phalanx.table.write.retention import OutsidePartition

_SHOWN_PARTITIONS = 100


class WhenMatched(StrEnum):
    """What becomes of a row whose key the files have."""

    UPDATE = "update"
    DELETE = "delete"
    IGNORE = "ignore"


class WhenNotMatched(StrEnum):
    """What becomes of a row of the files whose key is new."""

    INSERT = "insert"
    IGNORE = "ignore"


def delete(
    uri: Uri,
    where: Where,
    output: OutputOption = Output.TABLE,
    storage_option: StorageOptions = None,
) -> None:
    """Remove the rows that match; in weak mode each partition commits for itself."""
    rows = _open(uri, storage_option).delete(where)
    tell(output, f"Deleted {rows:,} rows.", {"rows": rows})


def update(
    uri: Uri,
    where: Where,
    assignments: Annotated[
        list[str],
        typer.Argument(
            metavar="COLUMN=SQL...",
            help='New values, such as "status=\'done\'" or "n=n + 1".',
            show_default=False,
        ),
    ],
    output: OutputOption = Output.TABLE,
    storage_option: StorageOptions = None,
) -> None:
    """Give the rows that match new values; a row whose partition changes moves there.

    In weak mode each partition commits for itself.
    """
    given = key_values(assignments, "'COLUMN=SQL...'")
    if len(given) < len(assignments):
        raise typer.BadParameter("A column is set twice.", param_hint="'COLUMN=SQL...'")
    texts = {name.strip(): text.strip() for name, text in given.items()}
    rows = _open(uri, storage_option).update(where, texts)
    tell(output, f"Updated {rows:,} rows.", {"rows": rows})


def merge(
    uri: Uri,
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILES...",
            help="Parquet, CSV, JSON lines, Arrow or Lance; - for an Arrow stream on stdin.",
            show_default=False,
        ),
    ],
    on: Annotated[
        str, typer.Option(metavar="A,B", help="The columns of the key.", show_default=False)
    ],
    when_matched: Annotated[
        WhenMatched, typer.Option(help="What becomes of rows whose key the files have.")
    ] = WhenMatched.UPDATE,
    when_not_matched: Annotated[
        WhenNotMatched, typer.Option(help="What becomes of rows of the files with a new key.")
    ] = WhenNotMatched.INSERT,
    format: FormatOption = None,
    null: NullOption = None,
    output: OutputOption = Output.TABLE,
    storage_option: StorageOptions = None,
) -> None:
    """Replace the rows that have the key of a row of the files, and add the others.

    Each key must be there once in all files. In weak mode each partition commits for itself.
    """
    options = storage_options(storage_option)
    sources = [source_of(name, format, null, options) for name in files]
    table = open_table(uri, storage_options=options)
    with counting_rows(lambda: total_rows(sources)) as progress:
        done = table.merge(
            chained(sources, table.schema, progress),
            [name.strip() for name in on.split(",")],
            when_matched=when_matched.value,
            when_not_matched=when_not_matched.value,
        )
    counts = {"inserted": done.inserted, "updated": done.updated, "deleted": done.deleted}
    tell(output, f"Merged: {done}.", counts)


def retain(
    uri: Uri,
    keep: Annotated[
        str,
        typer.Argument(
            metavar="KEEP",
            help='What stays: an SQL predicate, also with now and today, such as "event_date >= '
            'now - 90 days".',
            show_default=False,
        ),
    ],
    rows: Annotated[
        bool,
        typer.Option("--rows", help="Also delete rows of partitions that have others to keep."),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    output: OutputOption = Output.TABLE,
    storage_option: StorageOptions = None,
) -> None:
    """Drop the partitions that are entirely outside of what is kept, without reading data.

    Rows for which it is unknown, such as those without a date, stay. In strong mode it is one
    snapshot, which rollback undoes until a vacuum.
    """
    done = _open(uri, storage_option).retain(keep, rows=rows, dry_run=dry_run)
    if output is Output.JSON:
        typer.echo(json_text.dumps(done.to_dict(), indent=2))
        return
    for line in str(done).split("\n"):
        typer.echo(printable(line))
    _show(done.dropped)
    if done.partial and not rows:
        note("Rows of partitions that stay whole are deleted with --rows.")


def _show(partitions: tuple[OutsidePartition, ...]) -> None:
    shown = partitions[:_SHOWN_PARTITIONS]
    if not shown:
        return
    found = [each.to_dict() for each in shown]
    show([column(name, [each[name] for each in found]) for name in found[0]])
    if len(partitions) > len(shown):
        note(f"{len(partitions) - len(shown):,} more partitions: they are in --output json.")


def _open(uri: str, options: list[str] | None) -> Table:
    return open_table(uri, storage_options=storage_options(options))
