"""The commands `search` and `index`."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import pyarrow as pa
import typer

from phalanx.cli.console import json_text
from phalanx.cli.console.local_spark import local_spark
from phalanx.cli.console.messages import working
from phalanx.cli.console.options import (
    Output,
    OutputOption,
    SnapshotOption,
    StorageOptions,
    TrustLocations,
    Uri,
    key_values,
    snapshot_of,
    storage_options,
)
from phalanx.cli.console.results import column, show
from phalanx.cli.failures import note
from phalanx.cli.results import tell
from phalanx.errors import PhalanxError
from phalanx.model.schema.schema import Schema
from phalanx.model.search.indexes import is_text
from phalanx.model.search.vectors import searched_column
from phalanx.table.opening import open as open_table

_STDIN = "-"


def search(
    uri: Uri,
    column_name: Annotated[
        str, typer.Argument(metavar="COLUMN", help="Vectors, or text.", show_default=False)
    ],
    query: Annotated[
        str,
        typer.Argument(
            metavar="QUERY",
            help='Words, or a vector such as "[0.1, 0.2]"; - for a vector on stdin.',
            show_default=False,
        ),
    ],
    k: Annotated[int, typer.Option("-k", "--limit", min=1, help="How many rows.")] = 10,
    where: Annotated[str | None, typer.Option(help="An SQL predicate.", show_default=False)] = None,
    columns: Annotated[
        str | None, typer.Option(metavar="A,B", help="Only these columns.", show_default=False)
    ] = None,
    metric: Annotated[
        str | None, typer.Option(help="l2, cosine, dot or hamming.", show_default=False)
    ] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="Compare with every row; use no index.")
    ] = False,
    nprobes: Annotated[
        int | None, typer.Option(help="Parts of each index that are searched.", show_default=False)
    ] = None,
    refine_factor: Annotated[
        int | None,
        typer.Option(help="So many times k candidates are compared exactly.", show_default=False),
    ] = None,
    operator: Annotated[str, typer.Option(help="Any of the words (or), or all (and).")] = "or",
    hybrid: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN=WORDS", help="Also words in a column of text.", show_default=False
        ),
    ] = None,
    snapshot: SnapshotOption = None,
    output: OutputOption = Output.TABLE,
    storage_option: StorageOptions = None,
    trust_locations: TrustLocations = False,
) -> None:
    """Show the rows that are nearest to a vector, or that match words best."""
    chosen = None if snapshot is None else snapshot_of(snapshot)
    words = None
    if hybrid is not None:
        pairs = key_values([hybrid], "'--hybrid'")
        words = next(iter(pairs.items()))
    table = open_table(
        uri, storage_options=storage_options(storage_option), trust_locations=trust_locations
    )
    table = table if chosen is None else table.at(chosen)
    field = searched_column(column_name, Schema.of(table.schema))
    looked_for: Any = query if is_text(field.type) else _vector(query)
    names = None if columns is None else [name.strip() for name in columns.split(",")]
    found = table.search(
        column_name,
        looked_for,
        k,
        where,
        names,
        metric=metric,
        use_index=not exact,
        nprobes=nprobes,
        refine_factor=refine_factor,
        operator=operator,
        hybrid=words,
    )
    if output is Output.JSON:
        _write_json(found)
        return
    shown = [
        column(name, json_text.values(values))
        for name, values in zip(found.column_names, found.columns, strict=True)
    ]
    # How well a row matches comes first: a vector may be wider than the terminal.
    measured = sorted(shown, key=lambda each: not each.title.startswith("_"))
    if hidden := show(measured):
        left = ", ".join(each.title for each in measured[-hidden:])
        note(f"Columns that do not fit the terminal: {left}. Choose some with --columns.")


def index(
    uri: Uri,
    column_name: Annotated[
        str | None, typer.Argument(metavar="COLUMN", help="What to index.", show_default=False)
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
            help="Of the index, such as metric=cosine or num_partitions=64. Repeatable.",
            show_default=False,
        ),
    ] = None,
    min_rows: Annotated[
        int | None,
        typer.Option(min=1, help="Smaller partitions are left without.", show_default=False),
    ] = None,
    spark: Annotated[bool, typer.Option("--spark", help="Build it by Spark.")] = False,
    output: OutputOption = Output.TABLE,
    storage_option: StorageOptions = None,
) -> None:
    """Index a column in every partition; without a column, what the indexes do not cover yet."""
    if (column_name is None) != (kind is None):
        raise typer.BadParameter("Give both COLUMN and KIND, or neither.", param_hint="'KIND'")
    if column_name is None and (option or min_rows is not None):
        raise typer.BadParameter(
            "--option and --min-rows are for a new index: give COLUMN and KIND.",
            param_hint="'COLUMN'",
        )
    options = {name: _value(text) for name, text in key_values(option, "'--option'").items()}
    table = open_table(uri, storage_options=storage_options(storage_option))
    session = local_spark("index") if spark else None
    with working("indexing"):
        if column_name is None or kind is None:
            done = table.optimize_indexes(spark=session)
        else:
            done = table.create_index(
                column_name, kind, min_rows=min_rows, spark=session, **options
            )
    tell(output, str(done), done.to_dict())


def _vector(text: str) -> list[float]:
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


def _value(text: str) -> Any:
    """A number, true, false or a list if the text is one, else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _write_json(found: pa.Table) -> None:
    rows = [row for batch in found.to_batches() for row in json_text.rows(batch)]
    lines = ",\n".join(json_text.dumps(row) for row in rows)
    sys.stdout.write(f"[\n{lines}\n]\n" if rows else "[]\n")
