"""The command that makes a table of an earlier draft one of the newest format."""

from __future__ import annotations

from typing import Annotated

import typer

from phalanx.cli.console import json_text
from phalanx.cli.console.messages import working
from phalanx.cli.console.options import Output, OutputOption, StorageOptions, Uri, storage_options
from phalanx.cli.console.results import printable
from phalanx.table.opening import open as open_table


def upgrade(
    uri: Uri,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would change.")] = False,
    output: OutputOption = Output.TABLE,
    storage_option: StorageOptions = None,
) -> None:
    """Make a table of an earlier draft one of the newest format, in place."""
    table = open_table(uri, storage_options=storage_options(storage_option))
    with working("looking at the table" if dry_run else "upgrading"):
        done = table.upgrade(dry_run)
    if output is Output.JSON:
        typer.echo(json_text.dumps(done.to_dict(), indent=2))
        return
    for line in str(done).split("\n"):
        typer.echo(printable(line))
