"""The commands `snapshots`, `changes` and `rollback`, about the history of a table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import pyarrow as pa
import typer

from phalanx.cli.console import json_text
from phalanx.cli.console.messages import note
from phalanx.cli.console.options import (
    All,
    Output,
    OutputOption,
    StorageOptions,
    TrustLocations,
    Uri,
    parse_snapshot,
    parse_storage_options,
    resolve_limit,
)
from phalanx.cli.console.results import (
    make_column,
    print_arrow_table,
    print_columns,
    print_json_rows,
    print_result,
)
from phalanx.table.opening import open as open_table

_SHOWN_SNAPSHOTS = 50


_SHOWN_CHANGES = 50


def snapshots(
    uri: Uri,
    limit: Annotated[int | None, typer.Option(min=0, help="Show this many of the newest.")] = None,
    all: All = False,
    output: OutputOption = Output.TABLE,
    storage_option: StorageOptions = None,
) -> None:
    """List the snapshots, newest last, with the operation and the rows added and removed."""
    most = resolve_limit(limit, all, output, _SHOWN_SNAPSHOTS)
    table = open_table(uri, storage_options=parse_storage_options(storage_option))
    found = table.snapshots()
    hidden = 0 if most is None else max(0, found.num_rows - most)
    shown = found.slice(hidden)
    if output is Output.JSON:
        typer.echo(json_text.dumps(list(json_text.iter_rows(shown)), indent=2))
        return
    print_columns(
        [make_column(name, json_text.to_values(shown.column(name))) for name in shown.column_names]
    )
    if table.mode == "weak":
        note("The table is in weak mode, which has no snapshots.")
    if hidden and limit is None:
        note(f"{hidden:,} older snapshots: show them with --all or --limit.")


def rollback(
    uri: Uri,
    snapshot: Annotated[
        str,
        typer.Argument(
            metavar="ID|TIME", help="A snapshot, or an ISO time (UTC).", show_default=False
        ),
    ],
    output: OutputOption = Output.TABLE,
    storage_option: StorageOptions = None,
) -> None:
    """Restore the rows of a snapshot, as a new snapshot."""
    wanted = parse_snapshot(snapshot, "'ID|TIME'")
    table = open_table(uri, storage_options=parse_storage_options(storage_option))
    number = table.rollback(wanted)
    print_result(
        output,
        f"Rolled back to {snapshot}, as snapshot {number}.",
        {"rolled_back_to": snapshot, "snapshot": number},
    )


def changes(
    uri: Uri,
    from_snapshot: Annotated[
        str,
        typer.Argument(
            metavar="FROM",
            help="Show changes after this snapshot or ISO time; 0 shows all.",
            show_default=False,
        ),
    ],
    to_snapshot: Annotated[
        str | None,
        typer.Argument(metavar="TO", help="The last snapshot; by default the newest."),
    ] = None,
    where: Annotated[str | None, typer.Option(help="An SQL predicate.", show_default=False)] = None,
    columns: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Show only these columns.", show_default=False),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=0, help="Show at most this many changes.")
    ] = None,
    all: All = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="Only show which partitions would be read.")
    ] = False,
    output: OutputOption = Output.TABLE,
    storage_option: StorageOptions = None,
    trust_locations: TrustLocations = False,
) -> None:
    """Show the rows inserted, deleted and updated, snapshot by snapshot."""
    most = resolve_limit(limit, all, output, _SHOWN_CHANGES)
    first = parse_snapshot(from_snapshot, "'FROM'")
    last = None if to_snapshot is None else parse_snapshot(to_snapshot, "'TO'")
    names = None if columns is None else [name.strip() for name in columns.split(",")]
    table = open_table(
        uri, storage_options=parse_storage_options(storage_option), trust_locations=trust_locations
    )
    feed = table.changes(first, last, where, names)
    if plan:
        is_json = output is Output.JSON
        typer.echo(json_text.dumps(feed.plan.to_dict(), indent=2) if is_json else str(feed.plan))
    elif output is Output.JSON:
        print_json_rows(_limit_rows(feed.to_batches(), most))
    else:
        # Read one more row to find out whether there are more.
        found = pa.Table.from_batches(
            _limit_rows(feed.to_batches(), None if most is None else most + 1), feed.schema
        )
        print_arrow_table(found.slice(0, most))
        if limit is None and most is not None and found.num_rows > most:
            note("There are more changes: show them with --all or --limit.")


def _limit_rows(batches: Iterator[pa.RecordBatch], most: int | None) -> Iterator[pa.RecordBatch]:
    """Yield the first rows, or all, and read no further."""
    left = most
    for batch in batches:
        if left is None:
            yield batch
            continue
        if left > 0:
            yield batch.slice(0, left)
        left -= batch.num_rows
        if left <= 0:
            return
