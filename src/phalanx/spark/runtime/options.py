"""The options of `format("phalanx")`: their names, and how their texts are parsed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar

from phalanx.errors import InvalidArgument, PhalanxError, format_value
from phalanx.model.schema.names import find_close_names
from phalanx.storage.lance.location import Location

# Internal: the properties of a table that the write creates together with its rows.
NEW_TABLE = "new_table"
LOCATION_OPTIONS = frozenset({"path", "storage_options"})
READ_OPTIONS = LOCATION_OPTIONS | {
    *("where", "columns", "snapshot", "split_size", "metadata_table", "trust_locations"),
    *("changes", "from_snapshot", "to_snapshot"),
}
WRITE_OPTIONS = LOCATION_OPTIONS | {
    *("partition_by", "transaction", "if_exists"),
    *("replace_where", "partition_overwrite", "distribution", "marker", "report"),
    NEW_TABLE,
}
ROW_CHANGE_OPTIONS = LOCATION_OPTIONS | {"row_changes"}
STREAM_READ_OPTIONS = LOCATION_OPTIONS | {
    *("where", "columns", "split_size", "starting_snapshot", "trust_locations"),
    *("max_snapshots_per_trigger", "max_rows_per_trigger", "max_bytes_per_trigger"),
    *("changes", "from_snapshot"),
}
# The last two are options of Spark.
STREAM_WRITE_OPTIONS = LOCATION_OPTIONS | {
    "partition_by",
    "transaction",
    "checkpointlocation",
    "queryname",
}
_STORAGE = "storage."
_Word = TypeVar("_Word", bound=str)
_SIZE = re.compile(r"(\d+)\s*([kmgt]?)i?b?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Options:
    """The validated options of one read or write."""

    given: Mapping[str, str] = field(repr=False)
    action: str

    @classmethod
    def of(cls, given: Mapping[str, str], known: frozenset[str], action: str) -> Options:
        """Validate option names, which are in lower case."""
        for name in given:
            if name not in known and not name.startswith(_STORAGE):
                close = find_close_names(name, known)
                known_ones = f"Expected one of {', '.join(sorted(known - {NEW_TABLE}))}."
                hint = f"Did you mean {close[0]!r}?" if close else known_ones
                raise InvalidArgument(
                    f"Cannot {action} with the option {name!r}: there is no such option. {hint}"
                )
        return cls(dict(given), action)

    @property
    def location(self) -> Location:
        """The location of the table, with its storage options."""
        path = self.given.get("path")
        if path is None:
            raise InvalidArgument(
                f"Cannot {self.action}: the path is missing. Set it with load(path), save(path) or "
                "option('path', path)."
            )
        return Location.of(path, self.storage_options, self.flag("trust_locations"))

    @property
    def storage_options(self) -> dict[str, str] | None:
        """The storage options: `storage_options` as JSON, and options `storage.<key>`."""
        found: dict[str, str] = {}
        if (text := self.given.get("storage_options")) is not None:
            try:
                found = json.loads(text)
            except (ValueError, RecursionError):
                found = {"": ""}
            if not _is_string_map(found):
                raise self._invalid(
                    "storage_options", 'a JSON object of strings such as {"region": "x"}'
                )
        for name, text in self.given.items():
            if name.startswith(_STORAGE):
                found[name.removeprefix(_STORAGE)] = text
        return found or None

    def text(self, name: str) -> str | None:
        """Return the text of an option; None if it is not set."""
        return self.given.get(name)

    def choice(self, name: str, *choices: _Word) -> _Word:
        """Return an option that is one of several words, by default the first."""
        chosen = self.given.get(name, choices[0]).lower()
        for word in choices:
            if word == chosen:
                return word
        raise self._invalid(name, " or ".join(map(repr, choices)))

    def flag(self, name: str) -> bool:
        """Return a boolean option, by default False."""
        return self.choice(name, "false", "true") == "true"

    def check_incompatible(
        self, name: str, value: str, others: Iterable[str], instead: str
    ) -> None:
        """Refuse options that cannot be combined with another one."""
        for other in others:
            if other in self.given:
                raise InvalidArgument(
                    f"Cannot {self.action} with {name}={value} and {other}={self.given[other]!r}: "
                    f"{instead}"
                )

    def number(self, name: str) -> int | None:
        """Return an integer option of at least 1."""
        text = self.given.get(name)
        if text is None:
            return None
        if not text.strip().isdecimal() or int(text) < 1:
            raise self._invalid(name, "a positive integer")
        return int(text)

    def size(self, name: str) -> int | None:
        """Return a number of bytes, written as `134217728` or `128MB`."""
        text = self.given.get(name)
        if text is None:
            return None
        found = _SIZE.fullmatch(text.strip())
        if found is None or not int(found[1]):
            raise self._invalid(name, "a number of bytes such as 134217728 or 128MB")
        return int(found[1]) << 10 * " kmgt".index(found[2].lower() or " ")

    def names(self, name: str) -> list[str] | None:
        """Return column names, written with commas or as a JSON list."""
        text = self.given.get(name)
        if text is None:
            return None
        if text.lstrip().startswith("["):
            try:
                names = json.loads(text)
            except (ValueError, RecursionError):
                names = None
            if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
                raise self._invalid(name, 'names such as a,b or ["a", "b"]')
            return names
        return [each.strip() for each in text.split(",")]

    def snapshot(self, name: str) -> int | datetime | None:
        """Return a snapshot option: an id or a time."""
        text = self.given.get(name)
        if text is None:
            return None
        if text.strip().isdecimal():
            return int(text)
        try:
            return datetime.fromisoformat(text.strip())
        except ValueError:
            raise self._invalid(
                name, "the id of a snapshot, or a time such as 2025-12-31T12:00:00+00:00"
            ) from None

    def _invalid(self, name: str, expected: str) -> PhalanxError:
        return InvalidArgument(
            f"Cannot {self.action} with {name}={format_value(self.given[name])}: expected "
            f"{expected}."
        )


def _is_string_map(found: object) -> bool:
    """Return whether a JSON value is an object whose values are all strings."""
    return (
        isinstance(found, dict)
        and "" not in found
        and all(isinstance(text, str) for text in found.values())
    )


def is_change_feed(options: Options) -> bool:
    """Return whether the options read the change feed; refuse options of the other kind of read."""
    if options.flag("changes"):
        instead = "a change feed is read from from_snapshot to to_snapshot. Leave it out."
        options.check_incompatible("changes", "true", ("snapshot", "metadata_table"), instead)
        instead = "a change feed starts after from_snapshot. Set that to the snapshot before."
        options.check_incompatible("changes", "true", ("starting_snapshot",), instead)
        return True
    instead = "it is an option of the change feed. Leave it out, or set changes=true."
    options.check_incompatible("changes", "false", ("from_snapshot", "to_snapshot"), instead)
    return False


def option_text(value: object) -> str:
    """Format a value as the text of an option, as Spark does."""
    return str(value).lower() if isinstance(value, bool) else str(value)
