"""Arguments and options that several commands take."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated

import typer


class Output(StrEnum):
    """How a command shows what it found."""

    TABLE = "table"
    JSON = "json"


class Mode(StrEnum):
    """How writes to several partitions are committed."""

    WEAK = "weak"
    STRONG = "strong"


class Layout(StrEnum):
    """How a table is stored."""

    NAMESPACE = "namespace"
    EXPRESSIONS = "expressions"
    HIVE = "hive"


Uri = Annotated[
    str,
    typer.Argument(metavar="URI", help="Where the table is: a path or URI.", show_default=False),
]
Where = Annotated[
    str, typer.Argument(metavar="WHERE", help="An SQL predicate.", show_default=False)
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
TrustLocations = Annotated[
    bool,
    typer.Option(
        "--trust-locations",
        help="Also read partitions outside of the table's folder that were not adopted.",
    ),
]
SnapshotOption = Annotated[
    str | None,
    typer.Option(
        "--snapshot",
        metavar="ID|TIME",
        help="As of a snapshot, or of a time such as 2025-12-31T12:00 (UTC).",
        show_default=False,
    ),
]
_SIZE = re.compile(r"(\d{1,18})\s*([kmgt]?)i?b?", re.IGNORECASE)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
All = Annotated[bool, typer.Option("--all", help="Show everything.")]


def storage_options(items: list[str] | None) -> dict[str, str] | None:
    """The options of the object store by key; a usage error if one has no value."""
    return key_values(items, "'--storage-option'") or None


def key_values(items: list[str] | None, hint: str) -> dict[str, str]:
    """Values by their keys; a usage error if one has no value."""
    found = {}
    for item in items or []:
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise typer.BadParameter(f"{item!r} is not KEY=VALUE.", param_hint=hint)
        found[key] = value
    return found


def shown_limit(limit: int | None, everything: bool, output: Output, default: int) -> int | None:
    """How many to show: as the user says, else all as JSON and the default in a table."""
    if everything and limit is not None:
        raise typer.BadParameter("Give one of --all and --limit.", param_hint="'--all'")
    if limit is not None:
        return limit
    return None if everything or output is Output.JSON else default


def snapshot_of(text: str, hint: str = "'--snapshot'") -> int | datetime:
    """The snapshot by its id, or as of an ISO time; a usage error if it is neither."""
    if text.isdecimal():
        return int(text)
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is neither the id of a snapshot nor an ISO time.", param_hint=hint
        ) from None


def age_of(text: str) -> timedelta:
    """A time span such as 7d or 12h; a usage error if it is none."""
    match = re.fullmatch(r"([0-9]{1,6})([smhdw])", text)
    if match is None:
        raise typer.BadParameter(
            f"{text!r} is no time span: expected a number and one of s, m, h, d, w, such as 7d.",
            param_hint="'--older-than'",
        )
    return timedelta(**{_UNITS[match[2]]: int(match[1])})


def size_of(text: str, hint: str) -> int:
    """A number of bytes such as 128MB, in powers of 1024; a usage error if it is none."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise typer.BadParameter(
            f"{text!r} is no size: expected a number of bytes such as 134217728 or 128MB.",
            param_hint=hint,
        )
    return int(match[1]) << 10 * " kmgt".index(match[2].lower() or " ")
