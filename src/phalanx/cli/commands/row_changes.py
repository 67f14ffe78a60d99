"""The commands that change rows and drop partitions: `delete`, `update`, `merge` and `retain`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from phalanx.cli.console import json_text
from phalanx.cli.console.messages import note, show_row_progress
from phalanx.cli.console.options import (
    Output,
    OutputOption,
    StorageOptions,
    Uri,
    Where,
    parse_key_values,
    parse_storage_options,
)
from phalanx.cli.console.results import escape_unprintable, make_column, print_columns, print_result
from phalanx.cli.console.sources import (
    FormatOption,
    NullOption,
    chain_sources,
    count_total_rows,
    make_source,
)
from phalanx.table.opening import open as open_table
from phalanx.table.table import Table
from phalanx.table.write.retention import ExpiredPartition

_SHOWN_PARTITIONS = 100


class WhenMatched(StrEnum):
    """What to do with a row of the table whose key is in the files."""

    UPDATE = "update"
    DELETE = "delete"
    IGNORE = "ignore"


class WhenNotMatched(StrEnum):
    """What to do with a row of the files whose key is new."""

    INSERT = "insert"
    IGNORE = "ignore"


def delete(
    uri: Uri,
    where: Where,
    output: OutputOption = Output.TABLE,
    storage_option: StorageOptions = None,
) -> None:
    """Delete the matching rows; in weak mode each partition commits separately."""
    rows = _open_table(uri, storage_option).delete(where)
    print_result(output, f"Deleted {rows:,} rows.", {"rows": rows})


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
    """Update the matching rows; a row whose partition changes moves there.

    In weak mode each partition commits separately.
    """
    given = parse_key_values(assignments, "'COLUMN=SQL...'")
    if len(given) < len(assignments):
        raise typer.BadParameter("A column is set twice.", param_hint="'COLUMN=SQL...'")
    texts = {name.strip(): text.strip() for name, text in given.items()}
    rows = _open_table(uri, storage_option).update(where, texts)
    print_result(output, f"Updated {rows:,} rows.", {"rows": rows})


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
        WhenMatched, typer.Option(help="What to do with rows whose key is in the files.")
    ] = WhenMatched.UPDATE,
    when_not_matched: Annotated[
        WhenNotMatched, typer.Option(help="What to do with rows of the files with a new key.")
    ] = WhenNotMatched.INSERT,
    format: FormatOption = None,
    null: NullOption = None,
    output: OutputOption = Output.TABLE,
    storage_option: StorageOptions = None,
) -> None:
    """Replace the rows with a key that is in the files, and insert the others.

    Each key must occur once in all files. In weak mode each partition commits separately.
    """
    options = parse_storage_options(storage_option)
    sources = [make_source(name, format, null, options) for name in files]
    table = open_table(uri, storage_options=options)
    with show_row_progress(lambda: count_total_rows(sources)) as progress:
        done = table.merge(
            chain_sources(sources, table.schema, progress),
            [name.strip() for name in on.split(",")],
            when_matched=when_matched.value,
            when_not_matched=when_not_matched.value,
        )
    counts = {"inserted": done.inserted, "updated": done.updated, "deleted": done.deleted}
    print_result(output, f"Merged: {done}.", counts)


def retain(
    uri: Uri,
    keep: Annotated[
        str,
        typer.Argument(
            metavar="KEEP",
            help="The rows to keep: an SQL predicate that may use now and today, such as "
            '"event_date >= now - 90 days".',
            show_default=False,
        ),
    ],
    rows: Annotated[
        bool,
        typer.Option("--rows", help="Also delete rows of partitions that are kept in part."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be removed.")
    ] = False,
    output: OutputOption = Output.TABLE,
    storage_option: StorageOptions = None,
) -> None:
    """Drop the partitions without rows to keep, without reading data.

    Rows for which the predicate is unknown, such as those without a date, are kept. In strong mode
    this is one snapshot, which rollback can undo until a vacuum.
    """
    done = _open_table(uri, storage_option).retain(keep, rows=rows, dry_run=dry_run)
    if output is Output.JSON:
        typer.echo(json_text.dumps(done.to_dict(), indent=2))
        return
    for line in str(done).split("\n"):
        typer.echo(escape_unprintable(line))
    _print_partitions(done.dropped)
    if done.partial and not rows:
        note("Use --rows to delete rows of partitions that are kept in part.")


def _print_partitions(partitions: tuple[ExpiredPartition, ...]) -> None:
    shown = partitions[:_SHOWN_PARTITIONS]
    if not shown:
        return
    found = [each.to_dict() for each in shown]
    print_columns([make_column(name, [each[name] for each in found]) for name in found[0]])
    if len(partitions) > len(shown):
        note(f"{len(partitions) - len(shown):,} more partitions: use --output json to list them.")


def _open_table(uri: str, options: list[str] | None) -> Table:
    return open_table(uri, storage_options=parse_storage_options(options))
