"""The manifest: `__manifest`, a Lance table that lists the namespaces and tables of a root.

One `Manifest` is one version of it, and never changes (format: Manifest Table Schema).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc

from phalanx.errors import (
    CommitConflict,
    InvalidManifest,
    NotPartitioned,
    PhalanxError,
    StorageFailure,
    UnknownSpec,
)
from phalanx.planning.pruning.prune import Pruning
from phalanx.planning.pruning.scan_plan import OBJECT_ID, READ_VERSION, ROW_ADDRESS
from phalanx.storage.lance.failures import plain_reason, reading
from phalanx.storage.lance.location import Location, new_cache
from phalanx.storage.lance.parallel import in_parallel
from phalanx.storage.lance.scanning import count_of, rows_at, table_of
from phalanx.storage.leaf.marks import Mark
from phalanx.storage.leaf.reconcile import AlignedLeaves
from phalanx.storage.manifest.columns import READ_VERSION as STORED_VERSION
from phalanx.storage.manifest.columns import check_columns, check_tables, completed, plain
from phalanx.storage.manifest.incremental_listing import KnownLeaves
from phalanx.storage.manifest.leaf_tables import by_spec, filtered, in_order, of_spec
from phalanx.storage.manifest.pins import PINS, Tag, is_pinned, resolved
from phalanx.storage.manifest.rows import ADDRESS
from phalanx.storage.state.naming import SEPARATOR, is_number, spec_namespace
from phalanx.storage.state.properties import MODE, Properties, properties_of
from phalanx.storage.state.table_state import LeafListing, LeafShape

DIRECTORY = "__manifest"
# The version that a manifest has when it is made: of two that are, a store refuses one.
FIRST_VERSION = 2
# The row that every strong commit changes.
HEAD = "__phalanx_head"
# Up to here reading all rows costs no more than having Lance filter them.
_FEW_ROWS = 4096
# More ids than these are not put into a filter.
_MOST_LISTED = 1000


@dataclass(slots=True)
class _Shared:
    """What all versions of one manifest know: the newest that any of them was asked for.

    The cache is theirs alone: a namespace may be deleted and made anew at the same path.
    """

    newest: Manifest | None = None
    cache: Any = field(default_factory=new_cache)


class Manifest(LeafListing):
    """One version of a namespace's manifest."""

    def __init__(
        self,
        root: Location,
        dataset: lance.LanceDataset,
        earlier: Manifest | None = None,
        shared: _Shared | None = None,
        place: Location | None = None,
    ) -> None:
        self.root = root
        self._place = place
        self.dataset = dataset
        self.version: int = dataset.version
        check_columns(dataset.schema.names, root)
        self.properties: Properties = self._properties()
        self.root = replace(
            root.of_table(self.properties.salt), checksums=self.properties.checksums
        )
        self._leaves: dict[int, pa.Table] | None = None
        self._known = None if earlier is None else earlier._known_to(self)
        self._total: int | None = None
        self._asked = 0
        self._shared: _Shared = shared or _Shared()
        self._is_staged = False
        self._tags: list[Tag] = []
        self._rows: dict[str, pa.Table] = {}
        self._pinned: tuple[str, ...] | None = None

    @property
    def layout(self) -> str:
        """How the table is stored: the newest format, or a draft that has a manifest too."""
        return self.properties.layout

    @property
    def place(self) -> Location:
        """Where the manifest is stored: in the root, unless the namespace is just being made."""
        return self._place or self.root.own(DIRECTORY)

    @property
    def version_before(self) -> int:
        """What a snapshot notes as the version of the manifest that it was committed to.

        With the first snapshot of a namespace that is just being made it comes to its place.
        """
        return self.version if self._place is None else FIRST_VERSION - 1

    @classmethod
    def open(
        cls, root: Location, earlier: Manifest | None = None, place: Location | None = None
    ) -> Manifest:
        """The newest version of a namespace's manifest.

        What is known of an earlier version need not be read again. That of a namespace which is
        just being made is at another place than its root.
        """
        shared = _Shared() if earlier is None else earlier._shared
        try:
            dataset = (place or root.own(DIRECTORY)).open(cache=shared.cache)
        except (OSError, ValueError) as error:
            if "not found" not in str(error).lower():
                raise StorageFailure(f"Cannot open {root}: {plain_reason(error)}") from None
            raise NotPartitioned(
                f"Cannot open {root}: there is no partitioned namespace (no {DIRECTORY} table in "
                "it). Check the path, or create it with phalanx.create."
            ) from None
        return cls(root, dataset, earlier, shared, place)

    def __reduce__(self) -> tuple[Any, ...]:
        """A manifest is pickled as its place and version: what Lance holds cannot be."""
        if self._is_staged:
            raise PhalanxError(
                f"Cannot pickle what a transaction sees of {self.root}: nobody else sees it. "
                "Commit it first, or send the rows."
            )
        return _opened_at, (self.root, self.version)

    def __copy__(self) -> Manifest:
        view = object.__new__(type(self))
        view.__dict__.update(self.__dict__)
        return view

    def at_version(self, version: int) -> Manifest:
        """Another version of the same manifest."""
        shared = _Shared(cache=self._shared.cache)
        return Manifest(self.root, self._opened(version), None, shared, self._place)

    def opened_again(self) -> lance.LanceDataset:
        """This version as another object, for Lance to change."""
        return self._opened(self.version)

    def _opened(self, version: int) -> lance.LanceDataset:
        return self.place.open(version, self._shared.cache)

    def latest(self) -> Manifest:
        """The newest version; this one if nothing changed."""
        known = self._shared.newest
        newest = known or self
        with suppress(OSError, ValueError):
            # A tag can move without the manifest.
            if newest.dataset.latest_version == newest.version and newest._tags_stand():
                return newest
        found = Manifest.open(self.root, newest, self._place)
        now = self._shared.newest
        # Another thread may have found a later one meanwhile.
        if now is known or now is None or now.version < found.version:
            self._shared.newest = found
        return found

    @property
    def commit(self) -> str | None:
        """What names this version among all that ever were at its path; None if nothing does."""
        with suppress(OSError, ValueError):
            transaction = self.dataset.read_transaction(self.version)
            return None if transaction is None else str(transaction.uuid)
        return None

    def check_current(self, latest: Manifest | None = None) -> None:
        """Refuse to go on under a schema or specs that another writer has changed."""
        now, here = (latest or self.latest()).properties, self.properties
        if now.schema != here.schema or now.specs != here.specs:
            raise CommitConflict(
                f"Cannot write to {self.root}: another writer changed its schema or its specs "
                "meanwhile. Look at the table as it is now, and write again."
            )

    @property
    def shape(self) -> LeafShape:
        """Leaves that hold all columns, under the namespace's field ids."""
        mark = str(Mark.of("weak", self.properties))
        return AlignedLeaves(self.properties.schema, self.check_current, mark)

    def _properties(self) -> Properties:
        metadata = self.dataset.metadata
        found = properties_of(metadata, self.root.uri)
        # Another writer of the format says strong only by what it writes.
        columns = self.dataset.schema.names
        written = is_pinned(columns) if found.is_drafted else "object_type = 'table_version'"
        if not metadata.get(MODE) and count_of(self.dataset, written):
            return replace(found, mode="strong")
        return found

    def _tags_stand(self) -> bool:
        return all(in_parallel(lambda tag: tag.stands, self._tags))

    # ── reading ──────────────────────────────────────────────────────────────────────────────

    def table(
        self,
        condition: str,
        columns: Sequence[str] | None = None,
        *,
        with_row_address: bool = False,
        limit: int | None = None,
        fragments: list[lance.LanceFragment] | None = None,
    ) -> pa.Table:
        """Some rows, with the format's columns in the types that `manifest_columns` names.

        A column that is asked for and that the manifest lacks is NULL.
        """
        names = self.dataset.schema.names
        rows = self.read(
            columns=None if columns is None else [name for name in columns if name in names],
            filter=condition,
            with_row_address=with_row_address,
            limit=limit,
            fragments=fragments,
        )
        rows = plain(rows, self.root)
        if columns is None:
            return rows
        return completed(rows, [*columns, *([ADDRESS] if with_row_address else [])])

    @property
    def pinned(self) -> tuple[str, ...]:
        """The object ids of tables whose rows say what is read of them, in order."""
        return () if self.has_stale_pins else self._named_pins()

    @property
    def has_stale_pins(self) -> bool:
        """Whether rows name versions that only a strong mode which has ended had them name."""
        return bool(self._named_pins()) and self.has_left_strong

    def _named_pins(self) -> tuple[str, ...]:
        if self._pinned is None:
            rows = self.table(is_pinned(self.dataset.schema.names), ["object_id"])
            self._pinned = tuple(sorted(rows.column("object_id").to_pylist()))
        return self._pinned

    @property
    def total_partitions(self) -> int:
        """How many leaf tables there are, under all specs."""
        if self._total is None:
            self._check_spec_versions()
            self._total = count_of(self.dataset, "object_type = 'table'")
        return self._total

    def leaves(self, pruning: Pruning | None = None) -> dict[int, pa.Table]:
        """The leaf tables of each spec that a predicate keeps, in the order of their values.

        Each table has the `LEAF_COLUMNS`, and the fields of its spec by their ids.
        """
        if self._leaves is None and (self._known or self._is_worth_keeping(pruning)):
            self._leaves = self._all_leaves()
        if self._leaves is None:
            assert pruning is not None
            self._asked += 1
            self._check_spec_versions()
            return by_spec(self._listed(pruning.manifest_filter), self.properties.specs)
        if pruning is None:
            return self._leaves
        return {
            each.spec_id: filtered(
                self._leaves[each.spec_id], each.filter, self.properties.specs[each.spec_id]
            )
            for each in pruning.specs
        }

    def with_staged(self, versions: Mapping[str, int], added: pa.Table | None = None) -> Manifest:
        """The same manifest as a transaction sees it: leaves in versions that it has staged.

        `added` has the manifest rows of partitions that it made, under the newest spec.
        """
        view = copy.copy(self)
        view._is_staged = True
        view._leaves = dict(self.leaves())
        if added is not None:
            spec = self.properties.spec
            tables = added.filter(pc.equal(added.column("object_type"), "table"))
            blank = pa.nulls(tables.num_rows, pa.uint64())
            tables = tables.append_column("read_version", blank).append_column(ADDRESS, blank)
            new = of_spec(tables, spec)
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

    def with_leaves(self, rows: pa.Table) -> Manifest:
        """The same manifest, which lists other tables too: their rows, with their addresses."""
        view = copy.copy(self)
        view._is_staged = True
        more = by_spec(rows, self.properties.specs)
        view._leaves = {
            number: in_order(pa.concat_tables([leaves, more[number]]))
            for number, leaves in self.leaves().items()
        }
        view._total = sum(leaves.num_rows for leaves in view._leaves.values())
        return view

    def without_leaves(self, names: Iterable[str]) -> Manifest:
        """The same manifest, which does not list the tables with these object ids."""
        gone = pa.array(names, pa.string())
        view = copy.copy(self)
        view._is_staged = True
        view._leaves = {
            number: leaves.filter(pc.invert(pc.is_in(leaves.column(OBJECT_ID), gone)))
            for number, leaves in self.leaves().items()
        }
        view._total = sum(leaves.num_rows for leaves in view._leaves.values())
        return view

    def read(self, **options: Any) -> pa.Table:
        """Rows of the manifest; the options are those of Lance's scanner."""
        rows = table_of(self.dataset, **options)
        with reading(f"read the manifest of {self.root}"):
            # What Lance decodes of damaged bytes may be no text at all.
            rows.validate(full=True)
        return rows

    def rows_of(self, object_ids: Iterable[str]) -> pa.Table:
        """The rows with these ids, all their columns."""
        names = list(object_ids)
        if len(names) > _MOST_LISTED:
            rows = self.table("true")
            return rows.filter(pc.is_in(rows.column("object_id"), pa.array(names, pa.string())))
        return self.table(_named(names))

    def rows_of_leaves(self, leaves: pa.Table) -> pa.Table:
        """The rows that list these leaves, all their columns."""
        names = leaves.column(OBJECT_ID).to_pylist()
        if not names or self.dataset.has_stable_row_ids:
            # Another writer made the manifest: its rows go by other numbers than their addresses.
            return self.rows_of(names)
        return plain(rows_at(self.dataset, leaves.column(ROW_ADDRESS).to_pylist()), self.root)

    def row(self, object_id: str) -> pa.Table:
        """The row with this id, if there is one: all its columns, and its address.

        It is looked for where the last commit wrote first.
        """
        if object_id not in self._rows:
            condition = _named([object_id])
            newest = self.dataset.get_fragments()[-1:]
            found = self.table(condition, with_row_address=True, fragments=newest)
            if not found.num_rows:
                found = self.table(condition, with_row_address=True)
            self._rows[object_id] = found
        return self._rows[object_id]

    def _all_leaves(self) -> dict[int, pa.Table]:
        """The leaves of this version: read, or what is known of an earlier one and has changed."""
        # Another thread may be doing the same.
        known, self._known = self._known, None
        leaves = None if known is None else known.brought_to(self.dataset, self._listed_in)
        if leaves is None:
            leaves = self._listed_in(None)
        self._total = sum(each.num_rows for each in leaves.values())
        return leaves

    def _known_to(self, later: Manifest) -> KnownLeaves | None:
        """What this version knows of its leaves, for a later one."""
        if self._is_staged or self._mode != later._mode or self._tags:
            return None
        if self.properties.specs != later.properties.specs:
            return None
        return self._known if self._leaves is None else KnownLeaves.of(self.dataset, self._leaves)

    def _listed_in(self, fragments: list[lance.LanceFragment] | None) -> dict[int, pa.Table]:
        """The leaves that some fragments (all) list."""
        rows = self._listed("object_type = 'table'", fragments)
        self._check_fields(rows)
        leaves = by_spec(rows, self.properties.specs)
        if sum(each.num_rows for each in leaves.values()) < rows.num_rows:
            self._check_spec_versions()
        return leaves

    def _listed(
        self, condition: str, fragments: list[lance.LanceFragment] | None = None
    ) -> pa.Table:
        """The leaves under a condition, each with the version that its readers must read."""
        stored = [name for name in self._columns() if name in self.dataset.schema.names]
        rows = self.table(condition, stored, fragments=fragments, with_row_address=True)
        rows, self._tags = self.read_of(rows)
        return rows

    def read_of(self, rows: pa.Table) -> tuple[pa.Table, list[Tag]]:
        """Rows of tables with the location and version that are read; and the tags they go by.

        A pin is what is read, in every layout and mode (format: Read Behavior). In strong mode a
        row that names nothing is read as its highest `table_version` row says (Appendix C).
        """
        pins = [name for name in PINS if name in rows.column_names]
        is_pinned = any(rows.column(name).null_count < rows.num_rows for name in pins)
        if is_pinned and self.has_left_strong:
            # What a namespace that was strong has left there is over.
            rows = rows.drop_columns(pins)
        rows, tags = resolved(self.root, rows)
        check_tables(rows, self.root)
        versions = rows.column(STORED_VERSION)
        is_kept_by_rows = self.properties.mode == "strong" and not self.properties.is_drafted
        if not is_kept_by_rows or not versions.null_count:
            return rows, tags
        newest = self._newest_versions()
        listed = [newest.get(name) for name in rows.column("object_id").to_pylist()]
        filled = pc.coalesce(versions, pa.array(listed, pa.uint64()))
        place = rows.column_names.index(STORED_VERSION)
        return rows.set_column(place, STORED_VERSION, filled), tags

    @property
    def _mode(self) -> str | None:
        """The mode that a writer of Phalanx has set."""
        mode: str | None = self.dataset.metadata.get(MODE)
        return mode

    @property
    def has_left_strong(self) -> bool:
        """Whether the mode is weak, and what it was strong with has not been cleared away yet.

        Else what a row says is read counts in every mode.
        """
        return self._mode == "weak" and self.row(HEAD).num_rows > 0

    def _newest_versions(self) -> dict[str, int]:
        """What the highest `table_version` row of each table says (format: Appendix C)."""
        rows = self.table("object_type = 'table_version'", ["object_id", STORED_VERSION])
        found: dict[str, tuple[int, int]] = {}
        for object_id, version in zip(
            *(column.to_pylist() for column in rows.columns), strict=True
        ):
            table, _, number = object_id.rpartition(SEPARATOR)
            if is_number(number) and version is not None:
                found[table] = max(found.get(table, (-1, 0)), (int(number), version))
        return {table: version for table, (_, version) in found.items()}

    def _is_worth_keeping(self, pruning: Pruning | None) -> bool:
        if pruning is None or self._asked > 0 or not self._has_fields():
            return True
        return count_of(self.dataset) <= _FEW_ROWS

    def _has_fields(self) -> bool:
        """Whether Lance can prune: the manifest has each partition field, and in its type."""
        stored = {column.name: column.type for column in self.dataset.schema}
        return all(
            stored.get(field.column) == field.result_type
            for spec in self.properties.specs.values()
            for field in spec.fields
        )

    def _check_fields(self, rows: pa.Table) -> None:
        """Refuse partitions without the columns that hold their values."""
        for number, spec in self.properties.specs.items():
            missing = [each.column for each in spec.fields if each.column not in rows.column_names]
            if not missing:
                continue
            prefix = f"{spec_namespace(number)}{SEPARATOR}"
            if pc.any(pc.starts_with(rows.column("object_id"), prefix)).as_py():
                raise InvalidManifest(
                    f"The manifest of {self.root} lists partitions under {spec_namespace(number)}, "
                    f"and has no column {missing[0]!r} with their values. Something else has "
                    "written it. Restore the column."
                )

    def _columns(self) -> list[str]:
        fields = {field.column for spec in self.properties.specs.values() for field in spec.fields}
        return ["object_id", "location", *PINS, *sorted(fields)]

    def _check_spec_versions(self) -> None:
        """Refuse data under a spec that has no definition: it would be left out in silence."""
        known = " OR ".join(
            f"object_id LIKE '{spec_namespace(number)}$%'" for number in self.properties.specs
        )
        unknown = self.table(f"object_type = 'table' AND NOT ({known})", ["object_id"], limit=1)
        if unknown.num_rows:
            name = unknown.column(0)[0].as_py().split(SEPARATOR)[0]
            raise UnknownSpec(
                f"{self.root} holds data under {name}, but has no partition_spec_{name}: expected "
                f"one of {', '.join(map(spec_namespace, self.properties.specs))}. It was written "
                "by something else, or its properties were lost. Restore the property."
            )


def _opened_at(root: Location, version: int) -> Manifest:
    """A version of a manifest, in whichever process."""
    shared = _Shared()
    try:
        return Manifest(root, root.own(DIRECTORY).open(version, shared.cache), shared=shared)
    except (OSError, ValueError) as error:
        raise StorageFailure(
            f"Cannot open {root} as it was when it was pickled: {plain_reason(error)} A vacuum "
            "removes old snapshots: open the table again."
        ) from None


def _named(object_ids: Iterable[str]) -> str:
    """The condition that a row has one of these ids."""
    listed = ", ".join("'" + name.replace("'", "''") + "'" for name in object_ids)
    return f"object_id IN ({listed})" if listed else "false"
