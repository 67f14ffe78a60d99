"""The commands for what was: `snapshots`, `rollback`, `vacuum` and `erase`."""

from __future__ import annotations

from typing import Annotated

import typer

from phalanx.cli.console import json_text
from phalanx.cli.console.messages import counting_groups, working
from phalanx.cli.console.options import (
    All,
    Output,
    OutputOption,
    StorageOptions,
    Uri,
    Where,
    age_of,
    shown_limit,
    snapshot_of,
    storage_options,
)
from phalanx.cli.console.results import column, show
from phalanx.cli.failures import note
from phalanx.cli.results import tell
from phalanx.table.opening import open as open_table

_SHOWN_SNAPSHOTS = 50


def snapshots(
    uri: Uri,
    limit: Annotated[int | None, typer.Option(min=0, help="The newest so many.")] = None,
    all: All = False,
    output: OutputOption = Output.TABLE,
    storage_option: StorageOptions = None,
) -> None:
    """List the snapshots, the newest last: when and by what, and how many rows came and went."""
    most = shown_limit(limit, all, output, _SHOWN_SNAPSHOTS)
    table = open_table(uri, storage_options=storage_options(storage_option))
    found = table.snapshots()
    hidden = 0 if most is None else max(0, found.num_rows - most)
    shown = found.slice(hidden)
    if output is Output.JSON:
        typer.echo(json_text.dumps(list(json_text.rows(shown)), indent=2))
        return
    show([column(name, json_text.values(shown.column(name))) for name in shown.column_names])
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
    """Make the rows of a snapshot the newest ones, as a new snapshot."""
    wanted = snapshot_of(snapshot, "'ID|TIME'")
    table = open_table(uri, storage_options=storage_options(storage_option))
    number = table.rollback(wanted)
    tell(
        output,
        f"Rolled back to {snapshot}, as snapshot {number}.",
        {"rolled_back_to": snapshot, "snapshot": number},
    )


def vacuum(
    uri: Uri,
    older_than: Annotated[
        str, typer.Option(metavar="SPAN", help="Keep what was there within: 90m, 12h, 7d, 4w.")
    ] = "7d",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    output: OutputOption = Output.TABLE,
    storage_option: StorageOptions = None,
) -> None:
    """Remove old snapshots, and the files that nothing needs any more."""
    age = age_of(older_than)
    table = open_table(uri, storage_options=storage_options(storage_option))
    with working("looking for what can go" if dry_run else "removing what nothing needs"):
        done = table.vacuum(age, dry_run)
    if output is Output.JSON:
        typer.echo(
            json_text.dumps(
                {
                    "dry_run": done.dry_run,
                    "snapshots": list(done.snapshots),
                    "bytes": done.bytes,
                    "files": list(json_text.rows(done.files)),
                    "left_alone": dict(done.left_alone),
                },
                indent=2,
            )
        )
        return
    typer.echo(str(done))
    if dry_run and done.files.num_rows:
        note("The files are in --output json.")


def erase(
    uri: Uri,
    where: Where,
    force: Annotated[
        bool, typer.Option("--force", help="Also delete tags of partitions that keep such rows.")
    ] = False,
    output: OutputOption = Output.TABLE,
    storage_option: StorageOptions = None,
) -> None:
    """Remove the rows that match from every file, for good, and verify that they are gone.

    Deleted rows that are still stored are removed too. Snapshots that read such rows expire, with
    all before them, and running transactions start over.
    """
    table = open_table(uri, storage_options=storage_options(storage_option))
    with counting_groups("erasing", "partitions") as progress:
        done = table.erase(where, force, progress=progress)
    if output is Output.JSON:
        files = {"files_removed": list(json_text.rows(done.removed))}
        typer.echo(json_text.dumps(done.to_dict() | files, indent=2))
        return
    typer.echo(str(done))
