"""A folder of tables as a catalog of Spark: the answers to what its classes in Java ask.

A name is a path below the root: `lake.sales.events` is the table in the folder `sales/events`,
and `lake.sales.events.files` what it is made of, unless that is a table itself.
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
from phalanx.spark.pushdown.conditions import Translator, together
from phalanx.spark.runtime.options import NEW_TABLE
from phalanx.spark.source.row_changes import options_of
from phalanx.spark.sql import catalog_ddl as catalog_changes
from phalanx.spark.sql.catalog_tables import TOLD_OF, loaded, partitions, told_of
from phalanx.storage.cleanup import table_folders
from phalanx.storage.lance.failures import told
from phalanx.storage.lance.location import Location
from phalanx.storage.manifest.manifest import Manifest
from phalanx.table.jobs.row_job import RowJob
from phalanx.table.opening import NewTable, open
from phalanx.table.table import Table
from phalanx.table.transactions.strong_mode import begin_history
from phalanx.table.write import operations

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MISSING = {"missing": True}
_STAGED, _REPLACED = "_staged-", "_replaced-"
# No statement takes so long to write its next file.
_LEFT = timedelta(days=1)


def answer(question: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to one question about a catalog; `missing` where its object is not there."""
    catalog = Catalog(Location.of(question["root"], question["storage"] or None))
    name = question["name"]
    with told(f"{question['do'].replace('_', ' ')} in {catalog.root}"):
        match question["do"]:
            case "load":
                return catalog.load(name, question.get("version"), question.get("time"))
            case "list":
                return catalog.listed(name)
            case "create":
                return catalog.create(name, question)
            case "stage":
                return catalog.stage(name, question)
            case "finish":
                return catalog.finish(name, question)
            case "abort":
                return catalog.abort(name, question)
            case "alter":
                return catalog.alter(name, question["changes"])
            case "drop":
                return catalog.drop(name)
            case "create_namespace":
                return catalog.create_namespace(name)
            case "drop_namespace":
                return catalog.drop_namespace(name)
            case "where":
                return {"where": _where(open_at(question), question)}
            case "delete":
                table = open_at(question)
                where = _where(table, question)
                return {"deleted": operations.delete(*table._statements(), where, in_turn=True)}
            case "can_delete":
                return {"can": _can_delete(open_at(question), question)}
            case "begin_changes":
                table, version = open_at(question), question.get("version")
                job = RowJob.begin(
                    table._written(),
                    question["command"],
                    version=None if version is None else int(version),
                )
                return {"options": options_of(job)}
            case "partitions":
                return partitions(open_at(question))
    raise AssertionError(question["do"])


@dataclass(frozen=True, slots=True)
class Catalog:
    """A folder of tables."""

    root: Location

    def place(self, name: Sequence[str]) -> Location:
        """Where a name is."""
        found = self.root
        for part in name:
            found = found.own(part)
        return found

    def _table(self, name: Sequence[str]) -> Table | None:
        if not all(map(table_folders.is_name, name)):
            return None
        place = self.place(name)
        try:
            return open(place.uri, storage_options=place.storage_options)
        except NotPartitioned:
            return None

    # ── tables ───────────────────────────────────────────────────────────────────────────────

    def load(self, name: Sequence[str], version: str | None, time: int | None) -> dict[str, Any]:
        """What Spark needs to know of a table, as of a snapshot or a time in microseconds."""
        snapshot = _snapshot(version, time)
        table = self._table(name)
        if table is not None:
            return loaded(table, snapshot)
        kind = name[-1].lower()
        parent = self._table(name[:-1]) if len(name) > 1 and kind in TOLD_OF else None
        return _MISSING if parent is None else told_of(parent, kind, snapshot)

    def listed(self, name: Sequence[str]) -> dict[str, Any]:
        """The tables and the namespaces in a namespace."""
        if not all(map(table_folders.is_name, name)):
            return _MISSING
        found = table_folders.listed(self.place(name))
        if found is None or self._table(name) is not None:
            return _MISSING if name or found is not None else {"tables": [], "namespaces": []}
        return {"tables": found.tables, "namespaces": found.folders}

    def create(self, name: Sequence[str], question: Mapping[str, Any]) -> dict[str, Any]:
        """A new table; `exists` where there is one already."""
        if self._table(name) is not None:
            return {"exists": True}
        self._check_free(name)
        catalog_changes.check_columns(question)
        table = catalog_changes.made(self.place(name), question)
        return loaded(table, None)

    def _check_free(self, name: Sequence[str]) -> None:
        table_folders.check_name(name)
        place = self.place(name)
        if table_folders.holds_anything(place) and not table_folders.is_unfinished(place):
            raise PhalanxError(
                f"Cannot create {place}: there is a folder that is no table of Phalanx. Choose "
                "another name, or remove what is there."
            )
        for end in range(1, len(name)):
            if self._table(name[:end]) is not None:
                raise PhalanxError(
                    f"Cannot create {place}: {self.place(name[:end])} is a table, and a table "
                    "holds no others. Choose another name."
                )

    def alter(self, name: Sequence[str], changes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The table with other columns or properties."""
        table = self._table(name)
        if table is None:
            return _MISSING
        catalog_changes.alter(table, changes)
        return loaded(table, None)

    def drop(self, name: Sequence[str]) -> dict[str, Any]:
        """Remove a table and its rows; nothing but a table of Phalanx is removed."""
        place = self.place(name)
        if self._table(name) is not None:
            table_folders.remove_table(place)
            return {"dropped": True}
        if not table_folders.holds_anything(place):
            return {"dropped": False}
        raise PhalanxError(
            f"Cannot drop {place}: it is no table of Phalanx, and may be anything. Remove it by "
            "other means if you are sure."
        )

    # ── tables that become visible with their rows ───────────────────────────────────────────

    def stage(self, name: Sequence[str], question: Mapping[str, Any]) -> dict[str, Any]:
        """A new table that takes the place of its name when it is finished.

        On a file system it is made in a hidden folder beside it. Object stores move nothing:
        there it is made by the commit of its rows, at its place, which must be free.
        """
        exists = self._table(name) is not None
        if exists and not question["may_replace"]:
            return {"exists": True}
        if not exists and not question["may_create"]:
            return _MISSING
        place = self.place(name)
        if not exists:
            self._check_free(name)
        elif not place.is_local:
            raise PhalanxError(
                f"Cannot replace {place} at once: an object store moves no folders. Write its "
                "rows anew with INSERT OVERWRITE, or drop it first."
            )
        may_replace = {"may_replace": question["may_replace"]}
        if not place.is_local:
            new = catalog_changes.to_be_made(place, question)
            return {**loaded(new.table, None), "new": {NEW_TABLE: new.to_json()}, **may_replace}
        # Those of a driver that died.
        table_folders.remove_left(self.place(name[:-1]), (_STAGED, _REPLACED), _LEFT)
        staged = self.place([*name[:-1], f"{_STAGED}{uuid.uuid4().hex}"])
        made = loaded(catalog_changes.made_for_rows(staged, question), None)
        return {**made, "new": {}, "staged": staged.uri, **may_replace}

    def finish(self, name: Sequence[str], question: Mapping[str, Any]) -> dict[str, Any]:
        """Have a staged table take its place, and what may be replaced there go."""
        place, may_replace = self.place(name), question["may_replace"]
        if (text := question.get("new", {}).get(NEW_TABLE)) is not None:
            new = NewTable.from_json(place, text)
            if not new.is_there:
                # Nothing was written to it.
                new.create()
            return {}
        source = Location.of(question["staged"], self.root.storage_options)
        # Also a table without rows has a history.
        begin_history(Manifest.open(source))
        old = None
        if self._table(name) is not None:
            if not may_replace:
                return {"exists": True}
            old = self.place([*name[:-1], f"{_REPLACED}{uuid.uuid4().hex}"])
        table_folders.move_table(source, place, old)
        if old is not None:
            # The new table is there: what is left of the old one is hidden, and harms nobody.
            with suppress(PhalanxError):
                table_folders.remove_table(old)
        return {}

    def abort(self, name: Sequence[str], question: Mapping[str, Any]) -> dict[str, Any]:
        """Remove a staged table, and no other that is in its place by now."""
        if (text := question.get("new", {}).get(NEW_TABLE)) is not None:
            place = self.place(name)
            if NewTable.from_json(place, text).is_there:
                table_folders.remove_table(place)
            return {}
        table_folders.remove_table(Location.of(question["staged"], self.root.storage_options))
        return {}

    # ── namespaces ───────────────────────────────────────────────────────────────────────────

    def create_namespace(self, name: Sequence[str]) -> dict[str, Any]:
        """A folder; in an object store it is there with its first table."""
        table_folders.check_name(name)
        place = self.place(name)
        if table_folders.holds_anything(place):
            return {"exists": True}
        table_folders.make_folder(place)
        return {}

    def drop_namespace(self, name: Sequence[str]) -> dict[str, Any]:
        """Remove an empty folder."""
        place = self.place(name)
        if not all(map(table_folders.is_name, name)) or not table_folders.holds_anything(place):
            return _MISSING
        found = table_folders.listed(place)
        if found is None or found.tables or found.folders or not table_folders.is_empty(place):
            return {"filled": True}
        table_folders.remove_folder(place)
        return {}


def open_at(question: Mapping[str, Any]) -> Table:
    """The table that a question is about, by its path."""
    return open(question["path"], storage_options=question["storage"] or None)


def _snapshot(version: str | None, time: int | None) -> int | datetime | None:
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


def _where(table: Table, question: Mapping[str, Any]) -> str:
    """The conditions of Spark as a predicate that is TRUE for the same rows, and for no others."""
    translator = Translator(Schema.of(table.schema), question["zone"], trusts_floats=True)
    found = [translator.truth(tree) for tree in question["conditions"]]
    for condition, text in zip(found, question["texts"], strict=True):
        if not condition.exact or condition.on_rows != condition.predicate:
            raise PhalanxError(
                f"Cannot change rows of {table.uri} by {text}: Spark's meaning of it cannot be "
                "told exactly. Compare columns with constants (=, <, IN, LIKE 'a%', IS NULL, AND, "
                "OR, NOT), or write the predicate in phalanx.open(...).delete(where)."
            )
    return to_datafusion(together(found).predicate)


def _can_delete(table: Table, question: Mapping[str, Any]) -> bool:
    """Whether rows can be deleted by the conditions of Spark without reading them by Spark."""
    try:
        _where(table, question)
    except PhalanxError:
        return False
    return True
