"""The commands `vacuum`, `erase`, `verify` and `upgrade`, which maintain a table."""

from __future__ import annotations

from typing import Annotated

import typer

from phalanx.cli.console import json_text
from phalanx.cli.console.messages import note, show_group_progress, show_spinner
from phalanx.cli.console.options import (
    Output,
    OutputOption,
    StorageOptions,
    TrustLocations,
    Uri,
    Where,
    parse_age,
    parse_storage_options,
)
from phalanx.cli.console.results import escape_unprintable
from phalanx.storage.lance.location import Location
from phalanx.table.maintenance.verify import Verified, verify_manifest
from phalanx.table.opening import open as open_table


def vacuum(
    uri: Uri,
    older_than: Annotated[
        str, typer.Option(metavar="SPAN", help="Keep what is younger than this: 90m, 12h, 7d, 4w.")
    ] = "7d",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be removed.")
    ] = False,
    output: OutputOption = Output.TABLE,
    storage_option: StorageOptions = None,
) -> None:
    """Expire old snapshots and remove the files that nothing needs."""
    age = parse_age(older_than)
    table = open_table(uri, storage_options=parse_storage_options(storage_option))
    with show_spinner("looking for unneeded files" if dry_run else "removing unneeded files"):
        done = table.vacuum(age, dry_run)
    if output is Output.JSON:
        typer.echo(
            json_text.dumps(
                {
                    "dry_run": done.dry_run,
                    "snapshots": list(done.snapshots),
                    "bytes": done.bytes,
                    "files": list(json_text.iter_rows(done.files)),
                    "left_alone": dict(done.left_alone),
                },
                indent=2,
            )
        )
        return
    typer.echo(str(done))
    if dry_run and done.files.num_rows:
        note("Use --output json to list the files.")


def erase(
    uri: Uri,
    where: Where,
    force: Annotated[
        bool,
        typer.Option("--force", help="Also delete tags of partitions that keep matching rows."),
    ] = False,
    output: OutputOption = Output.TABLE,
    storage_option: StorageOptions = None,
) -> None:
    """Remove the matching rows from every file, permanently, and verify that they are gone.

    Deleted rows that are still stored are removed too. Snapshots that read such rows expire, with
    all earlier ones, and running transactions start over.
    """
    table = open_table(uri, storage_options=parse_storage_options(storage_option))
    with show_group_progress("erasing", "partitions") as progress:
        done = table.erase(where, force, progress=progress)
    if output is Output.JSON:
        files = {"files_removed": list(json_text.iter_rows(done.removed))}
        typer.echo(json_text.dumps(done.to_dict() | files, indent=2))
        return
    typer.echo(str(done))


def verify(
    uri: Uri,
    deep: Annotated[
        bool, typer.Option("--deep", help="Also read all rows and check their partitions.")
    ] = False,
    output: OutputOption = Output.TABLE,
    storage_option: StorageOptions = None,
    trust_locations: TrustLocations = False,
) -> None:
    """Check that every file of every snapshot exists and is unchanged."""
    options = parse_storage_options(storage_option)
    # Compare the checksums of the manifest before Lance opens it.
    damaged = verify_manifest(Location.of(uri, options))
    if damaged:
        found = Verified(tuple(damaged), 0, 0, len(damaged), 0, len(damaged), None)
    else:
        table = open_table(uri, storage_options=options, trust_locations=trust_locations)
        with show_group_progress("verifying", "partitions") as progress:
            found = table.verify(deep, progress=progress)
    if output is Output.JSON:
        typer.echo(json_text.dumps(found.to_dict(), indent=2))
    else:
        for line in str(found).split("\n"):
            typer.echo(escape_unprintable(line))
    if found:
        raise typer.Exit(1)


def upgrade(
    uri: Uri,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would change.")
    ] = False,
    output: OutputOption = Output.TABLE,
    storage_option: StorageOptions = None,
) -> None:
    """Upgrade a table of an earlier draft to the newest format, in place."""
    table = open_table(uri, storage_options=parse_storage_options(storage_option))
    with show_spinner("checking the table" if dry_run else "upgrading"):
        done = table.upgrade(dry_run)
    if output is Output.JSON:
        typer.echo(json_text.dumps(done.to_dict(), indent=2))
        return
    for line in str(done).split("\n"):
        typer.echo(escape_unprintable(line))
