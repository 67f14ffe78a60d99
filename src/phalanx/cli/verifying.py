"""The command that looks whether everything is there, and is what was written."""

from __future__ import annotations

from typing import Annotated

import typer

from phalanx.cli.console import json_text
from phalanx.cli.console.messages import counting_groups
from phalanx.cli.console.options import (
    Output,
    OutputOption,
    StorageOptions,
    TrustLocations,
    Uri,
    storage_options,
)
from phalanx.cli.console.results import printable
from phalanx.storage.lance.location import Location
from phalanx.table.maintenance.verify import Verified, verify_manifest
from phalanx.table.opening import open as open_table


def verify(
    uri: Uri,
    deep: Annotated[
        bool, typer.Option("--deep", help="Also read all rows, and check their partitions.")
    ] = False,
    output: OutputOption = Output.TABLE,
    storage_option: StorageOptions = None,
    trust_locations: TrustLocations = False,
) -> None:
    """Check that every file of every snapshot is there, and is what was written."""
    options = storage_options(storage_option)
    # Lance opens no file of the manifest before its checksums are compared.
    damaged = verify_manifest(Location.of(uri, options))
    if damaged:
        found = Verified(tuple(damaged), 0, 0, len(damaged), 0, len(damaged), None)
    else:
        table = open_table(uri, storage_options=options, trust_locations=trust_locations)
        with counting_groups("verifying", "partitions") as progress:
            found = table.verify(deep, progress=progress)
    if output is Output.JSON:
        typer.echo(json_text.dumps(found.to_dict(), indent=2))
    else:
        for line in str(found).split("\n"):
            typer.echo(printable(line))
    if found:
        raise typer.Exit(1)
