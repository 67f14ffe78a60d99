"""The commands `search` and `index`."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any, cast

import pyarrow as pa
import typer

from phalanx.arguments import IndexKind, Metric, WordOperator
from phalanx.cli.console import json_text
from phalanx.cli.console.local_spark import start_local_spark
from phalanx.cli.console.messages import note, show_spinner
from phalanx.cli.console.options import (
    Output,
    OutputOption,
    SnapshotOption,
    StorageOptions,
    TrustLocations,
    Uri,
    parse_key_values,
    parse_snapshot,
    parse_storage_options,
)
from phalanx.cli.console.results import make_column, print_columns, print_result
from phalanx.errors import PhalanxError
from phalanx.model.schema.schema import Schema
from phalanx.model.search.indexes import is_searchable_text
from phalanx.model.search.vectors import resolve_search_column
from phalanx.table.opening import open as open_table

_STDIN = "-"


def search(
    uri: Uri,
    column_name: Annotated[
        str,
        typer.Argument(metavar="COLUMN", help="A column of vectors or text.", show_default=False),
    ],
    query: Annotated[
        str,
        typer.Argument(
            metavar="QUERY",
            help='Words, or a vector such as "[0.1, 0.2]"; - for a vector on stdin.',
            show_default=False,
        ),
    ],
    k: Annotated[int, typer.Option("-k", "--limit", min=1, help="How many rows to show.")] = 10,
    where: Annotated[str | None, typer.Option(help="An SQL predicate.", show_default=False)] = None,
    columns: Annotated[
        str | None, typer.Option(metavar="A,B", help="Show only these columns.", show_default=False)
    ] = None,
    metric: Annotated[
        str | None, typer.Option(help="l2, cosine, dot or hamming.", show_default=False)
    ] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="Compare with every row, without an index.")
    ] = False,
    nprobes: Annotated[
        int | None, typer.Option(help="How many parts of each index to search.", show_default=False)
    ] = None,
    refine_factor: Annotated[
        int | None,
        typer.Option(help="Compare this many times k candidates exactly.", show_default=False),
    ] = None,
    operator: Annotated[
        str, typer.Option(help="Match any of the words (or), or all (and).")
    ] = "or",
    hybrid: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN=WORDS", help="Also search words in a text column.", show_default=False
        ),
    ] = None,
    snapshot: SnapshotOption = None,
    output: OutputOption = Output.TABLE,
    storage_option: StorageOptions = None,
    trust_locations: TrustLocations = False,
) -> None:
    """Show the rows nearest to a vector, or those that match words best."""
    chosen = None if snapshot is None else parse_snapshot(snapshot)
    words = None
    if hybrid is not None:
        pairs = parse_key_values([hybrid], "'--hybrid'")
        words = next(iter(pairs.items()))
    table = open_table(
        uri, storage_options=parse_storage_options(storage_option), trust_locations=trust_locations
    )
    table = table if chosen is None else table.at(chosen)
    field = resolve_search_column(column_name, Schema.of(table.schema))
    parsed_query: Any = query if is_searchable_text(field.type) else _parse_vector(query)
    names = None if columns is None else [name.strip() for name in columns.split(",")]
    found = table.search(
        column_name,
        parsed_query,
        k,
        where,
        names,
        metric=cast(Metric | None, metric),
        use_index=not exact,
        nprobes=nprobes,
        refine_factor=refine_factor,
        operator=cast(WordOperator, operator),
        hybrid=words,
    )
    if output is Output.JSON:
        _print_json(found)
        return
    shown = [
        make_column(name, json_text.to_values(values))
        for name, values in zip(found.column_names, found.columns, strict=True)
    ]
    # Show distance and score first: a vector may be wider than the terminal.
    ordered = sorted(shown, key=lambda each: not each.title.startswith("_"))
    if hidden := print_columns(ordered):
        left = ", ".join(each.title for each in ordered[-hidden:])
        note(f"Columns that do not fit the terminal: {left}. Choose some with --columns.")


def index(
    uri: Uri,
    column_name: Annotated[
        str | None,
        typer.Argument(metavar="COLUMN", help="The column to index.", show_default=False),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Argument(
            metavar="KIND",
            help="Such as IVF_PQ, IVF_FLAT, INVERTED, BTREE, BITMAP.",
            show_default=False,
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="An option of the index, such as metric=cosine or num_partitions=64. Repeatable.",
            show_default=False,
        ),
    ] = None,
    min_rows: Annotated[
        int | None,
        typer.Option(min=1, help="Do not index smaller partitions.", show_default=False),
    ] = None,
    spark: Annotated[bool, typer.Option("--spark", help="Build the index with Spark.")] = False,
    output: OutputOption = Output.TABLE,
    storage_option: StorageOptions = None,
) -> None:
    """Index a column in every partition; without a column, index rows not yet indexed."""
    if (column_name is None) != (kind is None):
        raise typer.BadParameter("Give both COLUMN and KIND, or neither.", param_hint="'KIND'")
    if column_name is None and (option or min_rows is not None):
        raise typer.BadParameter(
            "--option and --min-rows are for a new index: give COLUMN and KIND.",
            param_hint="'COLUMN'",
        )
    options = {
        name: _parse_value(text) for name, text in parse_key_values(option, "'--option'").items()
    }
    table = open_table(uri, storage_options=parse_storage_options(storage_option))
    session = start_local_spark("index") if spark else None
    with show_spinner("indexing"):
        if column_name is None or kind is None:
            done = table.optimize_indexes(spark=session)
        else:
            done = table.create_index(
                column_name, cast(IndexKind, kind), min_rows=min_rows, spark=session, **options
            )
    print_result(output, str(done), done.to_dict())


def _parse_vector(text: str) -> list[float]:
    given = sys.stdin.read() if text == _STDIN else text
    try:
        found = json.loads(given)
    except ValueError:
        found = None
    if not isinstance(found, list):
        raise PhalanxError(
            f"Cannot read {given.strip()[:60]!r} as a vector: expected JSON such as [0.1, 0.2]."
        )
    return found


def _parse_value(text: str) -> Any:
    """Parse a number, true, false or a list; return other texts unchanged."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _print_json(found: pa.Table) -> None:
    rows = [row for batch in found.to_batches() for row in json_text.iter_rows(batch)]
    lines = ",\n".join(json_text.dumps(row) for row in rows)
    sys.stdout.write(f"[\n{lines}\n]\n" if rows else "[]\n")
