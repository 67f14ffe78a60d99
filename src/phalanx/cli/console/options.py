"""Arguments and options that several commands share, and how to parse them."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated

import typer


class Output(StrEnum):
    """How a command prints its result."""

    TABLE = "table"
    JSON = "json"


class ModeChoice(StrEnum):
    """How writes to several partitions are committed."""

    WEAK = "weak"
    STRONG = "strong"


class LayoutChoice(StrEnum):
    """How a table is stored."""

    NAMESPACE = "namespace"
    EXPRESSIONS = "expressions"
    HIVE = "hive"


Uri = Annotated[
    str,
    typer.Argument(metavar="URI", help="The path or URI of the table.", show_default=False),
]
Where = Annotated[
    str, typer.Argument(metavar="WHERE", help="An SQL predicate.", show_default=False)
]
OutputOption = Annotated[
    Output, typer.Option("--output", "-o", help="A table for people, or JSON for programs.")
]
StorageOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--storage-option",
        metavar="KEY=VALUE",
        help="An option of the object store, such as region=eu-west-1. Repeatable.",
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
        help="Read as of a snapshot, or of a time such as 2025-12-31T12:00 (UTC).",
        show_default=False,
    ),
]
_SIZE = re.compile(r"(\d{1,18})\s*([kmgt]?)i?b?", re.IGNORECASE)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
All = Annotated[bool, typer.Option("--all", help="Show everything.")]


def parse_storage_options(items: list[str] | None) -> dict[str, str] | None:
    """Return the options of the object store; raise a usage error if one has no value."""
    return parse_key_values(items, "'--storage-option'") or None


def parse_key_values(items: list[str] | None, hint: str) -> dict[str, str]:
    """Return values by key; raise a usage error if one has no value."""
    found = {}
    for item in items or []:
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise typer.BadParameter(f"{item!r} is not KEY=VALUE.", param_hint=hint)
        found[key] = value
    return found


def resolve_limit(limit: int | None, everything: bool, output: Output, default: int) -> int | None:
    """Return how many to show: the limit given, or all as JSON and the default in a table."""
    if everything and limit is not None:
        raise typer.BadParameter("Give one of --all and --limit.", param_hint="'--all'")
    if limit is not None:
        return limit
    return None if everything or output is Output.JSON else default


def parse_snapshot(text: str, hint: str = "'--snapshot'") -> int | datetime:
    """Return a snapshot id or an ISO time; raise a usage error if the text is neither."""
    if text.isdecimal():
        return int(text)
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is neither the id of a snapshot nor an ISO time.", param_hint=hint
        ) from None


def parse_age(text: str) -> timedelta:
    """Return a time span such as 7d or 12h; raise a usage error if it is invalid."""
    match = re.fullmatch(r"([0-9]{1,6})([smhdw])", text)
    if match is None:
        raise typer.BadParameter(
            f"{text!r} is not a time span: expected a number and one of s, m, h, d, w, such as 7d.",
            param_hint="'--older-than'",
        )
    return timedelta(**{_UNITS[match[2]]: int(match[1])})


def parse_size(text: str, hint: str) -> int:
    """Return a number of bytes such as 128MB, in powers of 1024; raise a usage error if invalid."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise typer.BadParameter(
            f"{text!r} is not a size: expected a number of bytes such as 134217728 or 128MB.",
            param_hint=hint,
        )
    return int(match[1]) << 10 * " kmgt".index(match[2].lower() or " ")
