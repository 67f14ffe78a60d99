"""What a command found or did: as JSON, or as tables and sentences for people."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import typer

from phalanx.cli.console import json_text
from phalanx.cli.console.options import Output
from phalanx.cli.console.results import column, show
from phalanx.cli.failures import note, warn
from phalanx.planning.pruning.scan_plan import ScanPlan
from phalanx.table.read.scan import Scan


def tell(output: Output, sentence: str, fact: dict[str, Any]) -> None:
    """Say what was done, in a sentence or as JSON."""
    typer.echo(json_text.dumps(fact) if output is Output.JSON else sentence)


def warn_of_pruning(plan: ScanPlan) -> None:
    """Say on stderr which conditions on partition sources could not prune."""
    if plan.fail_open and plan.planned > 1:
        conditions = "; ".join(dict.fromkeys(reason.condition for reason in plan.fail_open))
        warn(
            f"{conditions} cannot prune, so {plan.planned:,} of {plan.total_partitions:,} "
            "partitions are read. phalanx explain says why."
        )


def write_json(batches: Iterable[pa.RecordBatch]) -> None:
    """Print a list of objects, a row on each line, as the rows come."""
    before = "["
    for batch in batches:
        for row in json_text.rows(batch):
            sys.stdout.write(f"{before}\n{json_text.dumps(row)}")
            before = ","
    sys.stdout.write("[]\n" if before == "[" else "\n]\n")
    sys.stdout.flush()


def show_rows(found: Scan) -> bool:
    """Print a table of rows; whether there may be more than the limit let through."""
    rows = found.to_arrow()
    show_table(rows)
    return found.limit is not None and rows.num_rows >= found.limit


def show_table(rows: pa.Table) -> None:
    """Print a table of rows, with as many columns as the terminal has room for."""
    hidden = show(
        [
            column(name, json_text.values(values))
            for name, values in zip(rows.column_names, rows.columns, strict=True)
        ]
    )
    if hidden:
        names = ", ".join(rows.column_names[-hidden:])
        note(f"Columns that do not fit the terminal: {names}. Choose some with --columns.")
