"""The commands of the `phalanx` shell.

Data goes to stdout; progress, notes and warnings go to stderr. A command ends with 0 when all
went well, with 1 and one line on stderr when it failed, and with 2 when it was called wrongly.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import typer

from phalanx.cli import upgrading, verifying
from phalanx.cli.commands import history as changes
from phalanx.cli.commands import importing, row_changes
from phalanx.cli.commands import join_plan as joins
from phalanx.cli.commands import maintenance as history
from phalanx.cli.commands import rewrite as rewriting
from phalanx.cli.commands import search as searching
from phalanx.cli.console import descriptions, json_text
from phalanx.cli.console.messages import counting_rows, working
from phalanx.cli.console.options import (
    All,
    Layout,
    Mode,
    Output,
    OutputOption,
    SnapshotOption,
    StorageOptions,
    TrustLocations,
    Uri,
    Where,
    shown_limit,
    snapshot_of,
    storage_options,
)
from phalanx.cli.console.results import printable
from phalanx.cli.console.sources import (
    STDIN,
    FormatOption,
    NullOption,
    chained,
    source_of,
    total_rows,
)
from phalanx.cli.failures import OneLineFailures, note
from phalanx.cli.results import show_rows, tell, warn_of_pruning, write_json
from phalanx.errors import InvalidSchema
from phalanx.model.schema.schema import Schema
from phalanx.table.opening import create as create_table
from phalanx.table.opening import open as open_table
from phalanx.table.table import Table

_SHOWN_ROWS = 50
_SHOWN_PARTITIONS = 100

app = typer.Typer(
    cls=OneLineFailures,
    help="One logical table made of many Lance tables.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

PartitionByText = Annotated[
    str,
    typer.Argument(
        metavar="SPEC", help='Such as "year(ts), bucket(16, id), country".', show_default=False
    ),
]


@app.command()
def create(
    uri: Uri,
    partition_by: Annotated[
        str,
        typer.Option(help='Such as "year(ts), bucket(16, id), country".', show_default=False),
    ],
    schema: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="The schema as JSON, as describe --output json has it; - for stdin.",
        ),
    ] = None,
    like: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="A data file with the columns that the table gets."),
    ] = None,
    format: FormatOption = None,
    null: NullOption = None,
    transaction: Annotated[
        Mode, typer.Option(help="Commit each partition for itself (weak), or all as one (strong).")
    ] = Mode.WEAK,
    layout: Annotated[
        Layout,
        typer.Option(
            help="The newest format (namespace), or a draft: folders named key=value (hive), specs "
            "of expressions."
        ),
    ] = Layout.NAMESPACE,
    output: OutputOption = Output.TABLE,
    storage_option: StorageOptions = None,
) -> None:
    """Make an empty table."""
    if (schema is None) == (like is None):
        raise typer.BadParameter("Give one of --schema and --like.", param_hint="'--schema'")
    options = storage_options(storage_option)
    if like is not None:
        columns = source_of(like, format, null, options).schema()
    else:
        assert schema is not None
        columns = _schema_in(schema)
    table = create_table(
        uri,
        columns,
        partition_by,
        transaction=transaction.value,
        layout=layout.value,
        storage_options=options,
    )
    made = descriptions.table_to_dict(table)
    if output is Output.JSON:
        typer.echo(json_text.dumps(made, indent=2))
    else:
        typer.echo(f"Created {table.uri} by {made['specs'][0]['partition_by'] or 'nothing'}.")


@app.command()
def describe(
    uri: Uri,
    health: Annotated[
        bool, typer.Option("--health", help="Also what should be done about it, and how.")
    ] = False,
    output: OutputOption = Output.TABLE,
    storage_option: StorageOptions = None,
) -> None:
    """Show the schema, the specs, the mode, and how large the table is."""
    table = _open(uri, storage_option)
    found = descriptions.table_to_dict(table)
    findings = None
    if health:
        with working("looking for what should be done"):
            findings = table.health()
        found["health"] = findings.to_dict()
    if output is Output.JSON:
        typer.echo(json_text.dumps(found, indent=2))
        return
    descriptions.show_table(found, table.schema)
    if findings is not None:
        typer.echo()
        for line in str(findings).split("\n"):
            typer.echo(printable(line))


@app.command()
def ls(
    uri: Uri,
    limit: Annotated[int | None, typer.Option(min=0, help="At most so many partitions.")] = None,
    all: All = False,
    snapshot: SnapshotOption = None,
    output: OutputOption = Output.TABLE,
    storage_option: StorageOptions = None,
    trust_locations: TrustLocations = False,
) -> None:
    """List the partitions with their values, rows, bytes and locations."""
    most = shown_limit(limit, all, output, _SHOWN_PARTITIONS)
    table = _open(uri, storage_option, snapshot, trust_locations)
    found = descriptions.partitions_to_list(table)
    if output is Output.JSON:
        typer.echo(json_text.dumps(found[:most], indent=2))
    else:
        descriptions.show_partitions(found, table.uri, most)


@app.command()
def explain(
    uri: Uri,
    where: Where = "true",
    snapshot: SnapshotOption = None,
    output: OutputOption = Output.TABLE,
    storage_option: StorageOptions = None,
    trust_locations: TrustLocations = False,
) -> None:
    """Say which partitions a predicate needs, how many of how many, and why."""
    plan = _open(uri, storage_option, snapshot, trust_locations).plan(where)
    typer.echo(json_text.dumps(plan.to_dict(), indent=2) if output is Output.JSON else str(plan))


@app.command()
def append(
    uri: Uri,
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILES...",
            help="Parquet, CSV, JSON lines, Arrow or Lance; - for an Arrow stream on stdin.",
            show_default=False,
        ),
    ],
    format: FormatOption = None,
    null: NullOption = None,
    output: OutputOption = Output.TABLE,
    storage_option: StorageOptions = None,
) -> None:
    """Add the rows of some files, each row to its partition.

    All files are read and checked before anything is written. Then, in weak mode, each partition
    commits for itself.
    """
    options = storage_options(storage_option)
    sources = [source_of(name, format, null, options) for name in files]
    table = open_table(uri, storage_options=options)

    with counting_rows(lambda: total_rows(sources)) as progress:
        rows = table.append(chained(sources, table.schema, progress))
    tell(
        output,
        f"Appended {rows:,} rows from {len(files):,} file{'s' if len(files) > 1 else ''}.",
        {"rows": rows, "files": len(files)},
    )


@app.command()
def scan(
    uri: Uri,
    where: Annotated[str | None, typer.Option(help="An SQL predicate.", show_default=False)] = None,
    columns: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Only these columns.", show_default=False),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=0, help="At most so many rows.")] = None,
    all: All = False,
    count: Annotated[bool, typer.Option("--count", help="Only how many rows there are.")] = False,
    snapshot: SnapshotOption = None,
    output: OutputOption = Output.TABLE,
    storage_option: StorageOptions = None,
    trust_locations: TrustLocations = False,
) -> None:
    """Show the rows that match: all of them as JSON, the first ones in a table."""
    most = limit if count else shown_limit(limit, all, output, _SHOWN_ROWS)
    table = _open(uri, storage_option, snapshot, trust_locations)
    names = None if columns is None else [name.strip() for name in columns.split(",")]
    found = table.scan(where, names, most)
    warn_of_pruning(found.plan)
    if count:
        rows = found.count_rows()
        tell(output, str(rows), {"count": rows})
    elif output is Output.JSON:
        write_json(found.to_batches())
    else:
        hidden = show_rows(found)
        if hidden and limit is None:
            total = table.scan(where).count_rows()
            if total > _SHOWN_ROWS:
                note(f"{total - _SHOWN_ROWS:,} more rows: show them with --all or --limit.")


@app.command()
def evolve(
    uri: Uri,
    partition_by: PartitionByText,
    output: OutputOption = Output.TABLE,
    storage_option: StorageOptions = None,
) -> None:
    """Partition what is written from now on in another way; what is stored stays as it is."""
    table = _open(uri, storage_option)
    made = descriptions.spec_to_dict(table.evolve(partition_by), table.schema)
    tell(output, f"Spec v{made['id']} by {made['partition_by'] or 'nothing'}.", made)


app.command()(row_changes.delete)
app.command()(row_changes.update)
app.command()(row_changes.merge)
app.command()(row_changes.retain)
app.command("import")(importing.import_)
app.command()(history.snapshots)
app.command()(changes.changes)
app.command()(history.rollback)
app.command()(history.vacuum)
app.command()(history.erase)
app.command()(rewriting.rewrite)
app.command()(searching.search)
app.command()(searching.index)
app.command()(joins.join_plan)
app.command()(upgrading.upgrade)
app.command()(verifying.verify)


def _open(
    uri: str, options: list[str] | None, snapshot: str | None = None, trusts: bool = False
) -> Table:
    chosen = None if snapshot is None else snapshot_of(snapshot)
    table = open_table(uri, storage_options=storage_options(options), trust_locations=trusts)
    return table if chosen is None else table.at(chosen)


def _schema_in(name: str) -> pa.Schema:
    try:
        text = sys.stdin.read() if name == STDIN else Path(name).read_text(encoding="utf-8")
        return Schema.from_json(text).arrow
    except (UnicodeDecodeError, InvalidSchema) as error:
        raise InvalidSchema(
            f"Cannot read {name} as schema JSON: {error} For a data file use --like."
        ) from None
