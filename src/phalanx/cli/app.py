"""The commands of the `phalanx` shell.

Data goes to stdout; progress, notes and warnings go to stderr. The exit code is 0 on success, 1 on
failure, with one line on stderr, and 2 on a usage error.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import typer

from phalanx.cli.commands import (
    history,
    importing,
    join_plan,
    maintenance,
    rewrite,
    row_changes,
    search,
)
from phalanx.cli.console import descriptions, json_text
from phalanx.cli.console.messages import OneLineFailures, note, show_row_progress, show_spinner
from phalanx.cli.console.options import (
    All,
    LayoutChoice,
    ModeChoice,
    Output,
    OutputOption,
    SnapshotOption,
    StorageOptions,
    TrustLocations,
    Uri,
    Where,
    parse_snapshot,
    parse_storage_options,
    resolve_limit,
)
from phalanx.cli.console.results import (
    escape_unprintable,
    print_json_rows,
    print_result,
    print_scan,
    warn_of_pruning,
)
from phalanx.cli.console.sources import (
    STDIN,
    FormatOption,
    NullOption,
    chain_sources,
    count_total_rows,
    make_source,
)
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
            help="The schema as JSON, as in describe --output json; - for stdin.",
        ),
    ] = None,
    like: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="A data file with the columns of the new table."),
    ] = None,
    format: FormatOption = None,
    null: NullOption = None,
    transaction: Annotated[
        ModeChoice,
        typer.Option(help="Commit each partition separately (weak), or all together (strong)."),
    ] = ModeChoice.WEAK,
    layout: Annotated[
        LayoutChoice,
        typer.Option(
            help="The newest format (namespace), or an earlier draft: folders named key=value "
            "(hive), or specs of expressions."
        ),
    ] = LayoutChoice.NAMESPACE,
    output: OutputOption = Output.TABLE,
    storage_option: StorageOptions = None,
) -> None:
    """Create an empty table."""
    if (schema is None) == (like is None):
        raise typer.BadParameter("Give one of --schema and --like.", param_hint="'--schema'")
    options = parse_storage_options(storage_option)
    if like is not None:
        columns = make_source(like, format, null, options).read_schema()
    else:
        assert schema is not None
        columns = _read_schema(schema)
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
        bool, typer.Option("--health", help="Also report problems and how to fix them.")
    ] = False,
    output: OutputOption = Output.TABLE,
    storage_option: StorageOptions = None,
) -> None:
    """Show the schema, the specs, the mode and the size of a table."""
    table = _open_table_at(uri, storage_option)
    found = descriptions.table_to_dict(table)
    findings = None
    if health:
        with show_spinner("checking the health"):
            findings = table.health()
        found["health"] = findings.to_dict()
    if output is Output.JSON:
        typer.echo(json_text.dumps(found, indent=2))
        return
    descriptions.print_table(found, table.schema)
    if findings is not None:
        typer.echo()
        for line in str(findings).split("\n"):
            typer.echo(escape_unprintable(line))


@app.command()
def ls(
    uri: Uri,
    limit: Annotated[
        int | None, typer.Option(min=0, help="Show at most this many partitions.")
    ] = None,
    all: All = False,
    snapshot: SnapshotOption = None,
    output: OutputOption = Output.TABLE,
    storage_option: StorageOptions = None,
    trust_locations: TrustLocations = False,
) -> None:
    """List the partitions with their values, rows, bytes and locations."""
    most = resolve_limit(limit, all, output, _SHOWN_PARTITIONS)
    table = _open_table_at(uri, storage_option, snapshot, trust_locations)
    found = descriptions.partitions_to_list(table)
    if output is Output.JSON:
        typer.echo(json_text.dumps(found[:most], indent=2))
    else:
        descriptions.print_partitions(found, table.uri, most)


@app.command()
def explain(
    uri: Uri,
    where: Where = "true",
    snapshot: SnapshotOption = None,
    output: OutputOption = Output.TABLE,
    storage_option: StorageOptions = None,
    trust_locations: TrustLocations = False,
) -> None:
    """Show which partitions a predicate needs, how many of all, and why."""
    plan = _open_table_at(uri, storage_option, snapshot, trust_locations).plan(where)
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
    """Append the rows of files, each row to its partition.

    All files are read and checked before anything is written. In weak mode each partition then
    commits separately.
    """
    options = parse_storage_options(storage_option)
    sources = [make_source(name, format, null, options) for name in files]
    table = open_table(uri, storage_options=options)

    with show_row_progress(lambda: count_total_rows(sources)) as progress:
        rows = table.append(chain_sources(sources, table.schema, progress))
    print_result(
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
        typer.Option(metavar="A,B", help="Show only these columns.", show_default=False),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=0, help="Show at most this many rows.")] = None,
    all: All = False,
    count: Annotated[bool, typer.Option("--count", help="Only count the rows.")] = False,
    snapshot: SnapshotOption = None,
    output: OutputOption = Output.TABLE,
    storage_option: StorageOptions = None,
    trust_locations: TrustLocations = False,
) -> None:
    """Show the matching rows: all of them as JSON, the first ones in a table."""
    most = limit if count else resolve_limit(limit, all, output, _SHOWN_ROWS)
    table = _open_table_at(uri, storage_option, snapshot, trust_locations)
    names = None if columns is None else [name.strip() for name in columns.split(",")]
    found = table.scan(where, names, most)
    warn_of_pruning(found.plan)
    if count:
        rows = found.count_rows()
        print_result(output, str(rows), {"count": rows})
    elif output is Output.JSON:
        print_json_rows(found.to_batches())
    else:
        hidden = print_scan(found)
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
    """Change the partitioning of later rows; stored rows stay as they are."""
    table = _open_table_at(uri, storage_option)
    made = descriptions.spec_to_dict(table.evolve(partition_by), table.schema)
    print_result(output, f"Spec v{made['id']} by {made['partition_by'] or 'nothing'}.", made)


app.command()(row_changes.delete)
app.command()(row_changes.update)
app.command()(row_changes.merge)
app.command()(row_changes.retain)
app.command("import")(importing.import_)
app.command()(history.snapshots)
app.command()(history.changes)
app.command()(history.rollback)
app.command()(maintenance.vacuum)
app.command()(maintenance.erase)
app.command()(rewrite.rewrite)
app.command()(search.search)
app.command()(search.index)
app.command()(join_plan.join_plan)
app.command()(maintenance.upgrade)
app.command()(maintenance.verify)


def _open_table_at(
    uri: str, options: list[str] | None, snapshot: str | None = None, trusts: bool = False
) -> Table:
    chosen = None if snapshot is None else parse_snapshot(snapshot)
    table = open_table(uri, storage_options=parse_storage_options(options), trust_locations=trusts)
    return table if chosen is None else table.at(chosen)


def _read_schema(name: str) -> pa.Schema:
    try:
        text = sys.stdin.read() if name == STDIN else Path(name).read_text(encoding="utf-8")
        return Schema.from_json(text).arrow
    except (UnicodeDecodeError, InvalidSchema) as error:
        raise InvalidSchema(
            f"Cannot read {name} as schema JSON: {error} For a data file use --like."
        ) from None
