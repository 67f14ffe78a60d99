"""Arguments and options that several commands take."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class Output(StrEnum):
    """How a command shows what it found."""

    TABLE = "table"
    JSON = "json"


Uri = Annotated[
    str,
    typer.Argument(metavar="URI", help="Where the table is: a path or URI.", show_default=False),
]
OutputOption = Annotated[
    Output, typer.Option("--output", "-o", help="For people, or for programs.")
]
StorageOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--storage-option",
        metavar="KEY=VALUE",
        help="What the object store needs to know, such as region=eu-west-1. Repeatable.",
        show_default=False,
    ),
]
All = Annotated[bool, typer.Option("--all", help="Show everything.")]


def storage_options(items: list[str] | None) -> dict[str, str] | None:
    """The options by key; a usage error if one has no value."""
    found = {}
    for item in items or []:
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise typer.BadParameter(f"{item!r} is not KEY=VALUE.", param_hint="'--storage-option'")
        found[key] = value
    return found or None


def shown_limit(limit: int | None, everything: bool, output: Output, default: int) -> int | None:
    """How many to show: as the user says, else all as JSON and the default in a table."""
    if everything and limit is not None:
        raise typer.BadParameter("Give one of --all and --limit.", param_hint="'--all'")
    if limit is not None:
        return limit
    return None if everything or output is Output.JSON else default
