"""The command `join-plan`."""

from __future__ import annotations

from typing import Annotated

import typer

from phalanx.cli.console import json_text
from phalanx.cli.console.options import Output, OutputOption, StorageOptions, parse_storage_options
from phalanx.table.joins.prepare import plan_join


def join_plan(
    left: Annotated[
        str, typer.Argument(metavar="LEFT", help="A table: its path or URI.", show_default=False)
    ],
    right: Annotated[
        str, typer.Argument(metavar="RIGHT", help="Another table.", show_default=False)
    ],
    on: Annotated[
        list[str],
        typer.Option(
            metavar="COLUMN|LEFT=RIGHT",
            help="A column of both tables, or one of each, such as customer_id=id. Repeatable.",
            show_default=False,
        ),
    ],
    left_where: Annotated[
        str | None, typer.Option(help="An SQL predicate on the left table.", show_default=False)
    ] = None,
    right_where: Annotated[
        str | None, typer.Option(help="An SQL predicate on the right table.", show_default=False)
    ] = None,
    output: OutputOption = Output.TABLE,
    storage_option: StorageOptions = None,
) -> None:
    """Show which partitions of two tables join with each other, what is shuffled, and why."""
    plan = plan_join(
        left,
        right,
        [_parse_pair(text) for text in on],
        left_where=left_where,
        right_where=right_where,
        storage_options=parse_storage_options(storage_option),
    )
    typer.echo(json_text.dumps(plan.to_dict(), indent=2) if output is Output.JSON else str(plan))


def _parse_pair(text: str) -> tuple[str, str]:
    """Return the left and right column of a text such as `a=b` or `a`."""
    one, equals, other = text.partition("=")
    pair = one.strip(), (other if equals else one).strip()
    if not all(pair):
        raise typer.BadParameter(
            f"{text!r} is neither a column nor LEFT=RIGHT.", param_hint="'--on'"
        )
    return pair
