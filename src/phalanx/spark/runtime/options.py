"""The options of `format("phalanx")`: which there are, and what their texts mean."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from phalanx.errors import PhalanxError, shown
from phalanx.model.schema.names import close_names
from phalanx.storage.lance.location import Location

# What Phalanx tells itself of a table that is made with the rows of a write: its properties.
NEW_TABLE = "new_table"
PLACE = frozenset({"path", "storage_options"})
READ = PLACE | {
    *("where", "columns", "snapshot", "split_size", "metadata_table", "trust_locations"),
    *("changes", "from_snapshot", "to_snapshot"),
}
WRITE = PLACE | {
    *("partition_by", "transaction", "if_exists"),
    *("replace_where", "partition_overwrite", "distribution", "marker", "report"),
    NEW_TABLE,
}
ROW_CHANGES = PLACE | {"row_changes"}
STREAM_READ = PLACE | {
    *("where", "columns", "split_size", "starting_snapshot", "trust_locations"),
    *("max_snapshots_per_trigger", "max_rows_per_trigger", "max_bytes_per_trigger"),
    *("changes", "from_snapshot"),
}
# The last two are Spark's own.
STREAM_WRITE = PLACE | {"partition_by", "transaction", "checkpointlocation", "queryname"}
_STORAGE = "storage."
_SIZE = re.compile(r"(\d+)\s*([kmgt]?)i?b?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Options:
    """The options of one read or write, of which no others are known."""

    given: Mapping[str, str] = field(repr=False)
    doing: str

    @classmethod
    def of(cls, given: Mapping[str, str], known: frozenset[str], doing: str) -> Options:
        """The options, all of which must be known; their names in lower case."""
        for name in given:
            if name not in known and not name.startswith(_STORAGE):
                close = close_names(name, known)
                known_ones = f"Expected one of {', '.join(sorted(known - {NEW_TABLE}))}."
                hint = f"Did you mean {close[0]!r}?" if close else known_ones
                raise PhalanxError(
                    f"Cannot {doing} with the option {name!r}: there is no such option. {hint}"
                )
        return cls(dict(given), doing)

    @property
    def location(self) -> Location:
        """Where the table is, and what its store needs to be told."""
        path = self.given.get("path")
        if path is None:
            raise PhalanxError(
                f"Cannot {self.doing}: there is no path. Name the table: load(path), save(path) "
                "or option('path', path)."
            )
        return Location.of(path, self.storage_options, self.flag("trust_locations"))

    @property
    def storage_options(self) -> dict[str, str] | None:
        """What the object store needs: `storage_options` as JSON, and options `storage.<key>`."""
        found: dict[str, str] = {}
        if (text := self.given.get("storage_options")) is not None:
            try:
                found = json.loads(text)
            except (ValueError, RecursionError):
                found = {"": ""}
            if not _are_texts(found):
                raise self._refused(
                    "storage_options", 'a JSON object of texts such as {"region": "x"}'
                )
        for name, text in self.given.items():
            if name.startswith(_STORAGE):
                found[name.removeprefix(_STORAGE)] = text
        return found or None

    def text(self, name: str) -> str | None:
        """The option as it was written; None where it was not."""
        return self.given.get(name)

    def choice(self, name: str, *choices: str) -> str:
        """One of several words, by default the first."""
        chosen = self.given.get(name, choices[0]).lower()
        if chosen not in choices:
            raise self._refused(name, " or ".join(map(repr, choices)))
        return chosen

    def flag(self, name: str) -> bool:
        """Whether something is wanted; by default it is not."""
        return self.choice(name, "false", "true") == "true"

    def check_alone(self, name: str, value: str, others: Iterable[str], instead: str) -> None:
        """Refuse options that mean nothing beside another one."""
        for other in others:
            if other in self.given:
                raise PhalanxError(
                    f"Cannot {self.doing} with {name}={value} and {other}={self.given[other]!r}: "
                    f"{instead}"
                )

    def number(self, name: str) -> int | None:
        """A whole number from 1."""
        text = self.given.get(name)
        if text is None:
            return None
        if not text.strip().isdecimal() or int(text) < 1:
            raise self._refused(name, "a whole number from 1")
        return int(text)

    def size(self, name: str) -> int | None:
        """A number of bytes, as `134217728` or `128MB`."""
        text = self.given.get(name)
        if text is None:
            return None
        found = _SIZE.fullmatch(text.strip())
        if found is None or not int(found[1]):
            raise self._refused(name, "a number of bytes such as 134217728 or 128MB")
        return int(found[1]) << 10 * " kmgt".index(found[2].lower() or " ")

    def names(self, name: str) -> list[str] | None:
        """Column names, separated by commas or as a JSON list."""
        text = self.given.get(name)
        if text is None:
            return None
        if text.lstrip().startswith("["):
            try:
                names = json.loads(text)
            except (ValueError, RecursionError):
                names = None
            if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
                raise self._refused(name, 'names such as a,b or ["a", "b"]')
            return names
        return [each.strip() for each in text.split(",")]

    def snapshot(self, name: str) -> int | datetime | None:
        """A snapshot by its id or a time."""
        text = self.given.get(name)
        if text is None:
            return None
        if text.strip().isdecimal():
            return int(text)
        try:
            return datetime.fromisoformat(text.strip())
        except ValueError:
            raise self._refused(
                name, "the id of a snapshot, or a time such as 2025-12-31T12:00:00+00:00"
            ) from None

    def _refused(self, name: str, expected: str) -> PhalanxError:
        return PhalanxError(
            f"Cannot {self.doing} with {name}={shown(self.given[name])}: expected {expected}."
        )


def _are_texts(found: object) -> bool:
    """Whether it is an object of JSON whose values are all texts."""
    return (
        isinstance(found, dict)
        and "" not in found
        and all(isinstance(text, str) for text in found.values())
    )


def wants_changes(options: Options) -> bool:
    """Whether changes of rows are read, rather than rows; refuses options of the other."""
    if options.flag("changes"):
        instead = "changes go from from_snapshot to to_snapshot. Leave it out."
        options.check_alone("changes", "true", ("snapshot", "metadata_table"), instead)
        instead = "changes begin after from_snapshot, so name the snapshot before it there."
        options.check_alone("changes", "true", ("starting_snapshot",), instead)
        return True
    instead = "that is for changes of rows. Leave it out, or set changes=true."
    options.check_alone("changes", "false", ("from_snapshot", "to_snapshot"), instead)
    return False


def option_text(value: object) -> str:
    """A value as the text of an option, as Spark writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
