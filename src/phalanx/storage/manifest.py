"""The manifest: `__manifest`, a Lance table that lists the namespaces and tables of a root.

One `Manifest` is one version of it, and never changes (format: Manifest Table Schema). How its
rows are merged, and why with these options, `tests/integration/test_lance_facts.py` shows.
"""

from __future__ import annotations

import copy
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from lance import LanceDataset, LanceOperation

from phalanx.errors import (
    CommitConflict,
    NotPartitioned,
    PhalanxError,
    StorageFailure,
    UnknownSpec,
)
from phalanx.model.grouping import positions
from phalanx.model.partition_key import key_columns
from phalanx.model.spec import PartitionField
from phalanx.planning.pruning import Pruning
from phalanx.planning.scan import OBJECT_ID, READ_VERSION
from phalanx.storage.failures import plain_reason
from phalanx.storage.leaf import deletion_by_address, write
from phalanx.storage.leaf_tables import STORED_COLUMNS, by_spec, filtered, in_order, of_spec
from phalanx.storage.location import Location
from phalanx.storage.naming import SEPARATOR, spec_namespace
from phalanx.storage.properties import EPOCH, MODE, WRITER_FLAG, Properties, properties_of
from phalanx.storage.races import is_lost_race

DIRECTORY = "__manifest"
_PRIMARY_KEY = {b"lance-schema:unenforced-primary-key:position": b"0"}
_FIXED_COLUMNS = [
    pa.field("object_id", pa.string(), nullable=False, metadata=_PRIMARY_KEY),
    pa.field("object_type", pa.string(), nullable=False),
    pa.field("location", pa.string()),
    pa.field("metadata", pa.string()),
    pa.field("base_objects", pa.list_(pa.field("object_id", pa.string()))),
    pa.field("read_version", pa.uint64()),
]
# Up to here reading all rows costs no more than having Lance filter them.
_FEW_ROWS = 4096
# More ids than these are not put into a filter.
_MOST_LISTED = 1000


class Manifest:
    """One version of a namespace's manifest."""

    def __init__(self, root: Location, dataset: lance.LanceDataset) -> None:
        self.root = root
        self.dataset = dataset
        self.version: int = dataset.version
        self.properties: Properties = self._properties()
        self._leaves: dict[int, pa.Table] | None = None
        self._total: int | None = None
        self._asked = 0

    @classmethod
    def create(cls, root: Location, properties: Properties) -> Manifest:
        """A new namespace without partitions: all of it appears at once, or nothing does."""
        fields = [field for spec in properties.specs.values() for field in spec.fields]
        schema = pa.schema([*_FIXED_COLUMNS, *map(_column, fields)])
        rows = plain_rows(
            [(spec_namespace(number), "namespace", None) for number in properties.specs]
        )
        table = pa.Table.from_arrays(
            [
                rows.column(name) if name in rows.column_names else pa.nulls(len(rows), kind)
                for name, kind in zip(schema.names, schema.types, strict=True)
            ],
            schema=schema,
        )
        try:
            staged = lance.write_dataset(table, f"memory://{uuid.uuid4().hex}")
            staged.update_metadata({**WRITER_FLAG, **properties.to_metadata()})
        except (OSError, ValueError) as error:
            raise PhalanxError(
                f"Cannot create {root}: Lance refuses its manifest: {plain_reason(error)}"
            ) from None
        where = root.child(DIRECTORY)
        try:
            staged.deep_clone(where.uri, staged.version, storage_options=root.storage_options)
        except OSError as error:
            if _exists(where):
                raise PhalanxError(
                    f"Cannot create {root}: a namespace exists there. Open it with phalanx.open, "
                    "or choose another path."
                ) from None
            raise StorageFailure(f"Cannot create {root}: {plain_reason(error)}") from None
        return cls(root, where.open())

    @classmethod
    def open(cls, root: Location) -> Manifest:
        """The newest version of a namespace's manifest."""
        try:
            dataset = root.child(DIRECTORY).open()
        except (OSError, ValueError) as error:
            if "not found" not in str(error).lower():
                raise StorageFailure(f"Cannot open {root}: {plain_reason(error)}") from None
            raise NotPartitioned(
                f"Cannot open {root}: there is no partitioned namespace (no {DIRECTORY} table in "
                "it). Check the path, or create it with phalanx.create."
            ) from None
        return cls(root, dataset)

    def at_version(self, version: int) -> Manifest:
        """Another version of the same manifest."""
        return Manifest(self.root, self.root.child(DIRECTORY).open(version))

    def latest(self) -> Manifest:
        """The newest version; this one if nothing changed."""
        with suppress(OSError, ValueError):
            if self.dataset.latest_version == self.version:
                return self
        return Manifest.open(self.root)

    def check_current(self, latest: Manifest | None = None) -> None:
        """Refuse to go on under a schema or specs that another writer has changed."""
        now, here = (latest or self.latest()).properties, self.properties
        if now.schema != here.schema or now.specs != here.specs:
            raise CommitConflict(
                f"Cannot write to {self.root}: another writer changed its schema or its specs "
                "meanwhile. Look at the table as it is now, and write again."
            )

    def _properties(self) -> Properties:
        metadata = self.dataset.metadata
        found = properties_of(metadata, self.root.uri)
        # Another writer of the format says strong only by what it writes.
        if not metadata.get(MODE) and self.dataset.count_rows("object_type = 'table_version'"):
            return replace(found, mode="strong")
        return found

    # ── reading ──────────────────────────────────────────────────────────────────────────────

    @property
    def total_partitions(self) -> int:
        """How many leaf tables there are, under all specs."""
        self._check_spec_versions()
        assert self._total is not None
        return self._total

    def leaves(self, pruning: Pruning | None = None) -> dict[int, pa.Table]:
        """The leaf tables of each spec that a predicate keeps, in the order of their values.

        Each table has the `LEAF_COLUMNS`, and the fields of its spec by their ids.
        """
        self._check_spec_versions()
        if self._leaves is None and self._is_worth_keeping(pruning):
            self._leaves = by_spec(self._found("object_type = 'table'"), self.properties.specs)
        if self._leaves is None:
            assert pruning is not None
            self._asked += 1
            return by_spec(self._found(pruning.manifest_filter), self.properties.specs)
        if pruning is None:
            return self._leaves
        return {
            each.spec_id: filtered(
                self._leaves[each.spec_id], each.filter, self.properties.specs[each.spec_id]
            )
            for each in pruning.specs
        }

    def versions(self, names: Iterable[str] | None = None) -> dict[str, int | None]:
        """The versions to read of these leaves (all), by object id."""
        found: dict[str, int | None] = {}
        wanted = None if names is None else pa.array(names, pa.string())
        for leaves in self.leaves().values():
            if wanted is not None:
                leaves = leaves.filter(pc.is_in(leaves.column(OBJECT_ID), wanted))
            versions = leaves.column(READ_VERSION).to_pylist()
            found.update(zip(leaves.column(OBJECT_ID).to_pylist(), versions, strict=True))
        return found

    def with_staged(self, versions: Mapping[str, int], added: pa.Table | None = None) -> Manifest:
        """The same manifest as a transaction sees it: leaves in versions that it has staged.

        `added` has the manifest rows of partitions that it made, under the newest spec.
        """
        view = copy.copy(self)
        view._leaves = dict(self.leaves())
        if added is not None:
            spec = self.properties.spec
            tables = added.filter(pc.equal(added.column("object_type"), "table"))
            blank = pa.nulls(tables.num_rows, pa.uint64())
            new = of_spec(tables.append_column("read_version", blank), spec)
            view._leaves[spec.id] = in_order(pa.concat_tables([view._leaves[spec.id], new]))
        names = pa.array(versions, pa.string())
        staged = pa.array(versions.values(), pa.uint64())
        for number, leaves in view._leaves.items():
            places = pc.index_in(leaves.column(OBJECT_ID), names)
            column = pc.coalesce(staged.take(places), leaves.column(READ_VERSION))
            place = leaves.column_names.index(READ_VERSION)
            view._leaves[number] = leaves.set_column(place, READ_VERSION, column)
        view._total = sum(leaves.num_rows for leaves in view._leaves.values())
        return view

    def rows_of(self, object_ids: Iterable[str]) -> pa.Table:
        """The rows with these ids, all their columns."""
        names = list(object_ids)
        if len(names) > _MOST_LISTED:
            rows = self.dataset.to_table()
            return rows.filter(pc.is_in(rows.column("object_id"), pa.array(names, pa.string())))
        listed = ", ".join("'" + name.replace("'", "''") + "'" for name in names)
        return self.dataset.to_table(filter=f"object_id IN ({listed})" if listed else "false")

    def _found(self, condition: str) -> pa.Table:
        """The leaves under a condition, each with the version that its readers must read."""
        names = self._columns()
        stored = [name for name in names if name in self.dataset.schema.names]
        rows = self.dataset.to_table(columns=stored, filter=condition)
        place = names.index("read_version")
        if "read_version" not in stored:
            rows = rows.add_column(place, "read_version", pa.nulls(len(rows), pa.uint64()))
        versions = rows.column("read_version")
        if self.dataset.metadata.get(MODE) == "weak":
            # What a namespace that was strong has left there is over.
            return rows.set_column(place, "read_version", pa.nulls(len(rows), pa.uint64()))
        if not versions.null_count:
            return rows
        newest = self._newest_versions()
        listed = [newest.get(name) for name in rows.column("object_id").to_pylist()]
        filled = pc.coalesce(versions, pa.array(listed, pa.uint64()))
        return rows.set_column(place, "read_version", filled)

    def _newest_versions(self) -> dict[str, int]:
        """What the highest `table_version` row of each table says (format: Appendix C)."""
        rows = self.dataset.to_table(
            columns=["object_id", "read_version"], filter="object_type = 'table_version'"
        )
        found: dict[str, tuple[int, int]] = {}
        for object_id, version in zip(
            *(column.to_pylist() for column in rows.columns), strict=True
        ):
            table, _, number = object_id.rpartition(SEPARATOR)
            if number.isdecimal() and version is not None:
                found[table] = max(found.get(table, (-1, 0)), (int(number), version))
        return {table: version for table, (_, version) in found.items()}

    def _is_worth_keeping(self, pruning: Pruning | None) -> bool:
        return pruning is None or self._asked > 0 or self.dataset.count_rows() <= _FEW_ROWS

    def _columns(self) -> list[str]:
        fields = {field.column for spec in self.properties.specs.values() for field in spec.fields}
        return [*STORED_COLUMNS, *sorted(fields)]

    def _check_spec_versions(self) -> None:
        """Refuse data under a spec that has no definition: it would be left out in silence."""
        if self._total is not None:
            return
        known = " OR ".join(
            f"object_id LIKE '{spec_namespace(number)}$%'" for number in self.properties.specs
        )
        unknown = self.dataset.to_table(
            columns=["object_id"], filter=f"object_type = 'table' AND NOT ({known})", limit=1
        )
        if unknown.num_rows:
            name = unknown.column(0)[0].as_py().split(SEPARATOR)[0]
            raise UnknownSpec(
                f"{self.root} holds data under {name}, but has no partition_spec_{name}: expected "
                f"one of {', '.join(map(spec_namespace, self.properties.specs))}. It was written "
                "by something else, or its properties were lost. Restore the property."
            )
        self._total = self.dataset.count_rows("object_type = 'table'")

    # ── writing ──────────────────────────────────────────────────────────────────────────────

    def missing(self, keys: pa.Table) -> pa.Table:
        """The partition keys, all of the newest spec, that no leaf table has."""
        return keys.filter(pa.array(self.places(keys) < 0))

    def places(self, keys: pa.Table, spec_id: int | None = None) -> npt.NDArray[np.int64]:
        """For each partition key of a spec (the newest) its row among the leaves; else −1."""
        number = self.properties.spec.id if spec_id is None else spec_id
        return positions(keys, self.keys_of_leaves(number, self.leaves()[number]))

    def keys_of_leaves(self, spec_id: int, leaves: pa.Table) -> pa.Table:
        """The partition keys of a spec's leaves."""
        names = [field.field_id for field in self.properties.specs[spec_id].fields]
        return key_columns(spec_id, leaves.select(names), leaves.num_rows)

    def insert(self, rows: pa.Table) -> None:
        """Add the rows that are not there, in one commit; a lost race if one is there by now."""
        ids = rows.column("object_id")
        assert len(pc.unique(ids)) == len(ids), "duplicate keys would both be inserted"
        # A promotion that was cut off has made a column wider than its field is yet.
        columns = pa.schema([self.dataset.schema.field(name) for name in rows.column_names])
        rows = pa.table(
            [rows.column(field.name).cast(field.type) for field in columns], schema=columns
        )
        merge = self.dataset.merge_insert("object_id").when_not_matched_insert_all()
        merge.use_index(False).conflict_retries(0).execute(rows)

    def upsert(self, rows: pa.Table) -> None:
        """Put rows in place, new or not, in one commit; a lost race if one was changed meanwhile.

        Columns that the rows do not have become NULL: those that are there come whole.
        """
        merge = self.dataset.merge_insert("object_id").when_matched_update_all()
        merge = merge.when_not_matched_insert_all().use_index(False).conflict_retries(0)
        merge.execute(self.completed(rows))

    def change(self, added: pa.Table, removed: npt.NDArray[np.uint64]) -> None:
        """Add rows, and remove those at some addresses of this version, in one commit.

        A lost race if others removed rows of the same fragments meanwhile.
        """
        location = self.root.child(DIRECTORY)
        change = deletion_by_address(self.dataset, removed)
        LanceDataset.commit(
            self.dataset,
            LanceOperation.Update(
                removed_fragment_ids=list(change.removed),
                updated_fragments=list(change.updated),
                new_fragments=list(
                    write(self.dataset, location, self.completed(added).to_reader())
                ),
            ),
            read_version=self.version,
            max_retries=0,
            **location.write_options,
        )

    def completed(self, rows: pa.Table) -> pa.Table:
        """The rows with all columns of the manifest, NULL where they have none."""
        ids = rows.column("object_id")
        assert len(pc.unique(ids)) == len(ids), "duplicate keys would both be inserted"
        schema = self.dataset.schema
        columns = [
            rows.column(field.name).cast(field.type)
            if field.name in rows.column_names
            else pa.nulls(rows.num_rows, field.type)
            for field in schema
        ]
        return pa.table(columns, schema=schema)

    def change_properties(self, properties: Properties) -> Manifest:
        """Put other properties in place; `CommitConflict` if someone else changed them first."""
        return self.put_properties(replace(properties, epoch=self.properties.epoch + 1))

    def put_properties(self, properties: Properties) -> Manifest:
        """The same, for a change that nobody needs to be told of."""
        try:
            self.dataset.update_metadata({**properties.to_metadata()})
        except OSError as error:
            if not is_lost_race(error):
                raise
            raise CommitConflict(
                f"Cannot change {self.root}: another writer changed its schema or its specs at "
                f"the same time ({EPOCH} {self.properties.epoch} is over). Look at the table as "
                "it is now, and try again."
            ) from None
        return Manifest.open(self.root)

    def add_columns(self, fields: Iterable[PartitionField]) -> None:
        """Give each partition field its column, where it has none."""
        present = {column.name: column.type for column in self.dataset.schema}
        # The column of a field that an earlier spec has too may be wider, never gone.
        used = {field.column for spec in self.properties.specs.values() for field in spec.fields}
        new = [
            field
            for field in fields
            if field.column not in used and present.get(field.column) != field.result_type
        ]
        # An evolution that lost its race may have left a column of another type behind.
        if stale := [field.column for field in new if field.column in present]:
            self.dataset.drop_columns(stale)
        if new:
            self.dataset.add_columns([_column(field) for field in new])

    def widen_columns(self, fields: Iterable[PartitionField]) -> None:
        """Give the column of each partition field the type the field now has."""
        for field in fields:
            if self.dataset.schema.field(field.column).type != field.result_type:
                change: Any = {"path": field.column, "data_type": field.result_type}
                self.dataset.alter_columns(change)


def _column(field: PartitionField) -> pa.Field:
    return pa.field(field.column, field.result_type)


def plain_rows(rows: list[tuple[str, str, str | None]]) -> pa.Table:
    """Manifest rows of namespaces and tables: id, type and location."""
    object_ids, kinds, locations = zip(*rows, strict=True)
    return pa.table(
        {
            "object_id": pa.array(object_ids, pa.string()),
            "object_type": pa.array(kinds, pa.string()),
            "location": pa.array(locations, pa.string()),
            "metadata": pa.repeat(pa.scalar("{}"), len(rows)),
        }
    )


def _exists(where: Location) -> bool:
    try:
        where.open()
    except (OSError, ValueError):
        return False
    return True
