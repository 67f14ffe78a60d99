"""The command for what changed: `changes`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import pyarrow as pa
import typer

from phalanx.cli.console import json_text
from phalanx.cli.console.options import (
    All,
    Output,
    OutputOption,
    StorageOptions,
    TrustLocations,
    Uri,
    shown_limit,
    snapshot_of,
    storage_options,
)
from phalanx.cli.failures import note
from phalanx.cli.results import show_table, write_json
from phalanx.table.opening import open as open_table

_SHOWN_CHANGES = 50


def changes(
    uri: Uri,
    from_snapshot: Annotated[
        str,
        typer.Argument(
            metavar="FROM",
            help="The snapshot that changes begin after, or an ISO time; 0: before the first.",
            show_default=False,
        ),
    ],
    to_snapshot: Annotated[
        str | None,
        typer.Argument(metavar="TO", help="The last snapshot: by default the newest."),
    ] = None,
    where: Annotated[str | None, typer.Option(help="An SQL predicate.", show_default=False)] = None,
    columns: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Only these columns.", show_default=False),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=0, help="At most so many changes.")] = None,
    all: All = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="Only which partitions would be read.")
    ] = False,
    output: OutputOption = Output.TABLE,
    storage_option: StorageOptions = None,
    trust_locations: TrustLocations = False,
) -> None:
    """Show the rows that came, went and became others, snapshot by snapshot."""
    most = shown_limit(limit, all, output, _SHOWN_CHANGES)
    first = snapshot_of(from_snapshot, "'FROM'")
    last = None if to_snapshot is None else snapshot_of(to_snapshot, "'TO'")
    names = None if columns is None else [name.strip() for name in columns.split(",")]
    table = open_table(
        uri, storage_options=storage_options(storage_option), trust_locations=trust_locations
    )
    feed = table.changes(first, last, where, names)
    if plan:
        is_json = output is Output.JSON
        typer.echo(json_text.dumps(feed.plan.to_dict(), indent=2) if is_json else str(feed.plan))
    elif output is Output.JSON:
        write_json(_first(feed.to_batches(), most))
    else:
        # One more tells whether there are more.
        found = pa.Table.from_batches(
            _first(feed.to_batches(), None if most is None else most + 1), feed.schema
        )
        show_table(found.slice(0, most))
        if limit is None and most is not None and found.num_rows > most:
            note("There are more changes: show them with --all or --limit.")


def _first(batches: Iterator[pa.RecordBatch], most: int | None) -> Iterator[pa.RecordBatch]:
    """So many rows, or all; what comes after them is not read."""
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
