"""A folder of tables as a Spark catalog.

A name is a path below the root: `lake.sales.events` is the table in the folder `sales/events`, and
`lake.sales.events.files` is its metadata table `files`, unless a table has that name.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from phalanx.errors import NotPartitioned, PhalanxError
from phalanx.model.predicates.rendering import to_datafusion
from phalanx.model.schema.schema import Schema
from phalanx.spark.pushdown.conditions import ExpressionTree, Translator, and_conditions
from phalanx.spark.runtime.options import NEW_TABLE
from phalanx.spark.sql.catalog_ddl import TableDefinition, alter_table
from phalanx.spark.sql.catalog_tables import (
    METADATA_NAMES,
    describe_metadata_table,
    describe_table,
)
from phalanx.storage.cleanup import table_folders
from phalanx.storage.lance.location import Location
from phalanx.storage.manifest.manifest import Manifest
from phalanx.table.opening import NewTable, open
from phalanx.table.table import Table
from phalanx.table.transactions.strong_mode import commit_first_snapshot

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MISSING = {"missing": True}
_STAGED, _REPLACED = "_staged-", "_replaced-"
# A running statement writes its next file long before this.
_STALE = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Catalog:
    """A folder of tables. The methods return answers of docs/BRIDGE.md."""

    root: Location

    def location_of(self, name: Sequence[str]) -> Location:
        """Return the location of a table or a namespace."""
        found = self.root
        for part in name:
            found = found.subfolder(part)
        return found

    def _open_table(self, name: Sequence[str]) -> Table | None:
        if not all(map(table_folders.is_visible_name, name)):
            return None
        place = self.location_of(name)
        try:
            return open(place.uri, storage_options=place.storage_options)
        except NotPartitioned:
            return None

    # ── tables ───────────────────────────────────────────────────────────────────────────────

    def load(self, name: Sequence[str], version: str | None, time: int | None) -> dict[str, Any]:
        """Describe a table or metadata table, as of a snapshot or a time in microseconds."""
        snapshot = _parse_snapshot(version, time)
        table = self._open_table(name)
        if table is not None:
            return describe_table(table, snapshot)
        kind = name[-1].lower()
        parent = self._open_table(name[:-1]) if len(name) > 1 and kind in METADATA_NAMES else None
        return _MISSING if parent is None else describe_metadata_table(parent, kind, snapshot)

    def list_names(self, name: Sequence[str]) -> dict[str, Any]:
        """List the tables and the namespaces of a namespace."""
        if not all(map(table_folders.is_visible_name, name)):
            return _MISSING
        found = table_folders.list_folder(self.location_of(name))
        if found is None or self._open_table(name) is not None:
            return _MISSING if name or found is not None else {"tables": [], "namespaces": []}
        return {"tables": found.tables, "namespaces": found.folders}

    def create(self, name: Sequence[str], definition: TableDefinition) -> dict[str, Any]:
        """Create a table, or return `exists`."""
        if self._open_table(name) is not None:
            return {"exists": True}
        self._check_free(name)
        definition.check_comments()
        return describe_table(definition.create(self.location_of(name)), None)

    def _check_free(self, name: Sequence[str]) -> None:
        table_folders.check_name(name)
        place = self.location_of(name)
        if table_folders.has_anything(place) and not table_folders.is_unfinished(place):
            raise PhalanxError(
                f"Cannot create {place}: it is a folder with other files. Choose another "
                "name, or remove the folder."
            )
        for end in range(1, len(name)):
            if self._open_table(name[:end]) is not None:
                raise PhalanxError(
                    f"Cannot create {place}: {self.location_of(name[:end])} is a table, and "
                    "tables cannot be nested. Choose another name."
                )

    def alter(self, name: Sequence[str], changes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Change the columns or properties of a table."""
        table = self._open_table(name)
        if table is None:
            return _MISSING
        alter_table(table, changes)
        return describe_table(table, None)

    def drop(self, name: Sequence[str]) -> dict[str, Any]:
        """Remove a table and its files. Refuse folders that are not Phalanx tables."""
        place = self.location_of(name)
        if self._open_table(name) is not None:
            table_folders.remove_table(place)
            return {"dropped": True}
        if not table_folders.has_anything(place):
            return {"dropped": False}
        raise PhalanxError(
            f"Cannot drop {place}: it is not a Phalanx table. Remove the folder by other means if "
            "you are sure."
        )

    # ── staged tables: visible once their rows are written ───────────────────────────────────

    def stage(
        self,
        name: Sequence[str],
        definition: TableDefinition,
        may_create: bool,
        may_replace: bool,
    ) -> dict[str, Any]:
        """Prepare a table that appears under its name when `finish` is called.

        On a file system it is created in a hidden folder beside its final location. An object
        store cannot move folders: there the commit of its rows creates it at its final location,
        which must be free.
        """
        exists = self._open_table(name) is not None
        if exists and not may_replace:
            return {"exists": True}
        if not exists and not may_create:
            return _MISSING
        place = self.location_of(name)
        if not exists:
            self._check_free(name)
        elif not place.is_local:
            raise PhalanxError(
                f"Cannot replace {place} at once: an object store cannot move folders. Replace "
                "its rows with INSERT OVERWRITE, or drop it first."
            )
        if not place.is_local:
            new = definition.plan(place)
            found, options = describe_table(new.table, None), {NEW_TABLE: new.to_json()}
            return {**found, "new": options, "may_replace": may_replace}
        # Left by drivers that died.
        table_folders.remove_abandoned(self.location_of(name[:-1]), (_STAGED, _REPLACED), _STALE)
        staged = self.location_of([*name[:-1], f"{_STAGED}{uuid.uuid4().hex}"])
        found = describe_table(definition.create_for_rows(staged), None)
        return {**found, "new": {}, "staged": staged.uri, "may_replace": may_replace}

    def finish(
        self,
        name: Sequence[str],
        new: Mapping[str, str],
        staged: str | None,
        may_replace: bool,
    ) -> dict[str, Any]:
        """Make a staged table visible under its name, and remove the table that it replaces."""
        place = self.location_of(name)
        if (text := new.get(NEW_TABLE)) is not None:
            planned = NewTable.from_json(place, text)
            if not planned.exists:
                # No rows were written, so no commit has created it.
                planned.create()
            return {}
        assert staged is not None
        source = Location.of(staged, self.root.storage_options)
        # A table without rows gets a first snapshot too.
        commit_first_snapshot(Manifest.open(source))
        old = None
        if self._open_table(name) is not None:
            if not may_replace:
                return {"exists": True}
            old = self.location_of([*name[:-1], f"{_REPLACED}{uuid.uuid4().hex}"])
        table_folders.move_table(source, place, old)
        if old is not None:
            # The new table is in place, and the folder of the old one is hidden.
            with suppress(PhalanxError):
                table_folders.remove_table(old)
        return {}

    def abort(
        self, name: Sequence[str], new: Mapping[str, str], staged: str | None
    ) -> dict[str, Any]:
        """Remove a staged table, but not another table that has its name by now."""
        if (text := new.get(NEW_TABLE)) is not None:
            place = self.location_of(name)
            if NewTable.from_json(place, text).exists:
                table_folders.remove_table(place)
            return {}
        assert staged is not None
        table_folders.remove_table(Location.of(staged, self.root.storage_options))
        return {}

    # ── namespaces ───────────────────────────────────────────────────────────────────────────

    def create_namespace(self, name: Sequence[str]) -> dict[str, Any]:
        """Create a folder. In an object store it exists once it holds a table."""
        table_folders.check_name(name)
        place = self.location_of(name)
        if table_folders.has_anything(place):
            return {"exists": True}
        table_folders.make_folder(place)
        return {}

    def drop_namespace(self, name: Sequence[str]) -> dict[str, Any]:
        """Remove an empty folder."""
        place = self.location_of(name)
        if not all(map(table_folders.is_visible_name, name)) or not table_folders.has_anything(
            place
        ):
            return _MISSING
        found = table_folders.list_folder(place)
        if (
            found is None
            or found.tables
            or found.folders
            or not table_folders.is_empty_folder(place)
        ):
            return {"filled": True}
        table_folders.remove_folder(place)
        return {}


def _parse_snapshot(version: str | None, time: int | None) -> int | datetime | None:
    if time is not None:
        return _EPOCH + timedelta(microseconds=time)
    if version is None:
        return None
    if not version.strip().isdecimal():
        raise PhalanxError(
            f"Cannot read VERSION AS OF {version!r}: expected the id of a snapshot, a number. See "
            "the table's .snapshots."
        )
    return int(version)


@dataclass(frozen=True, slots=True)
class RowFilter:
    """The WHERE clause of a statement: expression trees, their SQL text, the session's zone."""

    conditions: Sequence[ExpressionTree]
    texts: Sequence[str]
    zone: str

    def to_predicate(self, table: Table) -> str:
        """Return a predicate that is TRUE for exactly the same rows; refuse inexact ones."""
        translator = Translator(Schema.of(table.schema), self.zone, floats_are_exact=True)
        found = [translator.where_true(tree) for tree in self.conditions]
        for condition, text in zip(found, self.texts, strict=True):
            if not condition.exact or condition.on_rows != condition.predicate:
                raise PhalanxError(
                    f"Cannot change rows of {table.uri} by {text}: Phalanx has no predicate with "
                    "exactly Spark's meaning. Compare columns with constants (=, <, IN, LIKE "
                    "'a%', IS NULL, AND, OR, NOT), or write the predicate in "
                    "phalanx.open(...).delete(where)."
                )
        return to_datafusion(and_conditions(found).predicate)

    def is_exact(self, table: Table) -> bool:
        """Return whether `to_predicate` can translate the filter."""
        try:
            self.to_predicate(table)
        except PhalanxError:
            return False
        return True
