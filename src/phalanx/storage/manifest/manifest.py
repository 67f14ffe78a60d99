"""The manifest: `__manifest`, a Lance table that lists the namespaces and tables of a root.

One `Manifest` is one version of it, and never changes (format: Manifest Table Schema).
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping, Sequence
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
from phalanx.planning.pruning.leaf_columns import LEAF_OBJECT_ID, LEAF_VERSION, MANIFEST_ROW
from phalanx.planning.pruning.prune import Pruning
from phalanx.storage.lance.failures import summarize_error, translate_read_errors
from phalanx.storage.lance.location import Location, create_session
from phalanx.storage.lance.parallel import map_parallel
from phalanx.storage.lance.scanning import count_rows, scan_table, take_rows
from phalanx.storage.leaf.marks import Mark
from phalanx.storage.leaf.reconcile import AlignedLeaves
from phalanx.storage.manifest.cached_rows import CachedRows
from phalanx.storage.manifest.columns import READ_VERSION as STORED_VERSION
from phalanx.storage.manifest.columns import (
    check_required_columns,
    check_table_rows,
    normalize_types,
    select_columns,
)
from phalanx.storage.manifest.incremental_listing import CachedLeaves
from phalanx.storage.manifest.leaf_tables import (
    filter_leaves,
    sort_leaves,
    split_by_spec,
    to_leaves,
)
from phalanx.storage.manifest.pins import PIN_NAMES, PinnedTag, build_pin_filter, resolve_locations
from phalanx.storage.manifest.rows import LANCE_ROW_ADDRESS, RowAddresses
from phalanx.storage.state.naming import SEPARATOR, is_snapshot_number, spec_namespace
from phalanx.storage.state.properties import MODE, Properties, parse_properties
from phalanx.storage.state.table_state import LeafShape, TableState

MANIFEST_DIRECTORY = "__manifest"
# The version of a new manifest: a store refuses one of two concurrent creators.
FIRST_VERSION = 2
# The row that every strong commit changes.
HEAD_ROW_ID = "__phalanx_head"
# With more ids, reading all rows is cheaper than a filter.
_MAX_IDS_IN_FILTER = 1000


@dataclass(slots=True)
class _Shared:
    """State that all versions of one manifest share: the newest version loaded so far.

    The cache is not global, because a namespace may be deleted and created again at its path.
    """

    newest: Manifest | None = None
    cache: Any = field(default_factory=create_session)


class Manifest(TableState):
    """One version of a namespace's manifest."""

    def __init__(
        self,
        root: Location,
        dataset: lance.LanceDataset,
        earlier: Manifest | None = None,
        shared: _Shared | None = None,
        location: Location | None = None,
    ) -> None:
        self.root = root
        self._location = location
        self.dataset = dataset
        self.version: int = dataset.version
        check_required_columns(dataset.schema.names, root)
        self.properties: Properties = self._read_properties()
        self.root = replace(
            root.with_table(self.properties.salt), checksums=self.properties.checksums
        )
        self._leaves: dict[int, pa.Table] | None = None
        self._earlier_leaves = None if earlier is None else earlier._cached_leaves_for(self)
        self._earlier_rows = None if earlier is None else earlier._latest_cached_rows
        self._cached_rows: CachedRows | None = None
        self._has_read_cache = False
        self._total: int | None = None
        self._pruned_reads = 0
        self._shared: _Shared = shared or _Shared()
        self._is_staged = False
        self._tags: list[PinnedTag] = []
        self._rows: dict[str, pa.Table] = {}
        self._pinned: tuple[str, ...] | None = None

    @property
    def layout(self) -> str:
        """The layout: that of the newest format, or of a draft with a manifest."""
        return self.properties.layout

    @property
    def location(self) -> Location:
        """Where the manifest is stored: in the root, unless the namespace is being created."""
        return self._location or self.root.subfolder(MANIFEST_DIRECTORY)

    @property
    def base_version(self) -> int:
        """The manifest version that a snapshot records as the one it was committed on.

        A namespace that is being created is installed together with its first snapshot.
        """
        return self.version if self._location is None else FIRST_VERSION - 1

    @classmethod
    def open(
        cls, root: Location, earlier: Manifest | None = None, location: Location | None = None
    ) -> Manifest:
        """Open the newest version of a namespace's manifest.

        The leaves of `earlier` are reused, so that only changes are read. `location` is where the
        manifest of a namespace that is being created is stored.
        """
        shared = _Shared() if earlier is None else earlier._shared
        try:
            dataset = (location or root.subfolder(MANIFEST_DIRECTORY)).open(session=shared.cache)
        except (OSError, ValueError) as error:
            if "not found" not in str(error).lower():
                raise StorageFailure(f"Cannot open {root}: {summarize_error(error)}") from None
            raise NotPartitioned(
                f"Cannot open {root}: no partitioned namespace found (no {MANIFEST_DIRECTORY} "
                "table in it). Check the path, or create it with phalanx.create."
            ) from None
        return cls(root, dataset, earlier, shared, location)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle a manifest as its root and version, because Lance datasets cannot be pickled."""
        if self._is_staged:
            raise PhalanxError(
                f"Cannot pickle what a transaction sees of {self.root}: other processes cannot see "
                "it. Commit it first, or send the rows."
            )
        return _open_at, (self.root, self.version)

    def __copy__(self) -> Manifest:
        view = object.__new__(type(self))
        view.__dict__.update(self.__dict__)
        return view

    def at_version(self, version: int) -> Manifest:
        """Open another version of the same manifest."""
        shared = _Shared(cache=self._shared.cache)
        return Manifest(self.root, self._open_dataset(version), None, shared, self._location)

    def reopen_dataset(self) -> lance.LanceDataset:
        """Open this version as another dataset, which Lance may change."""
        return self._open_dataset(self.version)

    def _open_dataset(self, version: int) -> lance.LanceDataset:
        return self.location.open(version, self._shared.cache)

    def load_latest(self) -> Manifest:
        """Return the newest version, which is this one if nothing changed."""
        known = self._shared.newest
        newest = known or self
        with suppress(OSError, ValueError):
            # A tag can move without a change of the manifest.
            if newest.dataset.latest_version == newest.version and newest._are_tags_unchanged():
                return newest
        found = Manifest.open(self.root, newest, self._location)
        now = self._shared.newest
        # Another thread may have loaded a later version meanwhile.
        if now is known or now is None or now.version < found.version:
            self._shared.newest = found
        return found

    def remember_commit(
        self, committed: lance.LanceDataset, added: pa.Table, removed: RowAddresses
    ) -> None:
        """Keep the version that a commit made from this one, so that it need not be read again."""
        cached = self._cached_rows
        rows = None if cached is None else cached.change(committed, added, removed)
        known = self._shared.newest
        if rows is None or self._location is not None or (known or self) is not self:
            return
        made = Manifest(self.root, committed, self, self._shared)
        made._cached_rows, made._has_read_cache, made._earlier_rows = rows, True, None
        if self._shared.newest is known:
            self._shared.newest = made

    @property
    def transaction_id(self) -> str | None:
        """The id of the transaction that made this version; None if Lance does not record it."""
        with suppress(OSError, ValueError):
            transaction = self.dataset.read_transaction(self.version)
            return None if transaction is None else str(transaction.uuid)
        return None

    def check_current(self, latest: Manifest | None = None) -> None:
        """Refuse to continue if another writer changed the schema or the specs."""
        now, here = (latest or self.load_latest()).properties, self.properties
        if now.schema != here.schema or now.specs != here.specs:
            raise CommitConflict(
                f"Cannot write to {self.root}: another writer changed its schema or its specs "
                "meanwhile. Look at the table as it is now, and write again."
            )

    @property
    def shape(self) -> LeafShape:
        """Leaves that store all columns, with the namespace's field ids."""
        mark = str(Mark.of("weak", self.properties))
        return AlignedLeaves(self.properties.schema, self.check_current, mark)

    def _read_properties(self) -> Properties:
        metadata = self.dataset.metadata
        found = parse_properties(metadata, self.root.uri)
        # Other writers of the format do not record the mode: their rows show it.
        columns = self.dataset.schema.names
        written = (
            build_pin_filter(columns)
            if found.has_expression_specs
            else "object_type = 'table_version'"
        )
        if not metadata.get(MODE) and count_rows(self.dataset, written):
            return replace(found, mode="strong")
        return found

    def _are_tags_unchanged(self) -> bool:
        return all(map_parallel(lambda tag: tag.is_unchanged, self._tags))

    # ── reading ──────────────────────────────────────────────────────────────────────────────

    def read_rows(
        self,
        condition: str,
        columns: Sequence[str] | None = None,
        *,
        with_row_address: bool = False,
        limit: int | None = None,
        fragments: list[lance.LanceFragment] | None = None,
    ) -> pa.Table:
        """Return the rows that match a condition, with the format's columns in `COLUMN_TYPES`.

        A requested column that the manifest lacks is NULL. `select_rows` reads common sets of rows
        faster.
        """
        names = self.dataset.schema.names
        rows = self.scan_rows(
            columns=None if columns is None else [name for name in columns if name in names],
            filter=condition,
            with_row_address=with_row_address,
            limit=limit,
            fragments=fragments,
        )
        return self._present(rows, columns, with_row_address)

    def select_rows(
        self,
        kind: str | None = None,
        columns: Sequence[str] | None = None,
        *,
        ids: Collection[str] | None = None,
        prefix: str | None = None,
        with_row_address: bool = False,
    ) -> pa.Table:
        """Return the rows of an object type, with one of some ids, or with a prefix of the id.

        A small manifest is read once for all such calls. The columns are those of `read_rows`.
        """
        cached = self._load_cached_rows()
        if cached is None:
            condition = _build_condition(kind, ids, prefix)
            rows = self.read_rows(condition, columns, with_row_address=with_row_address)
            if ids is None or len(ids) <= _MAX_IDS_IN_FILTER:
                return rows
            return rows.filter(pc.is_in(rows.column("object_id"), pa.array(ids, pa.string())))
        rows = cached.select(kind, ids, prefix)
        if not with_row_address:
            rows = rows.drop_columns(LANCE_ROW_ADDRESS)
        if columns is not None:
            wanted = [*columns, LANCE_ROW_ADDRESS]
            rows = rows.select([name for name in rows.column_names if name in wanted])
        return self._present(rows, columns, with_row_address)

    def _present(
        self, rows: pa.Table, columns: Sequence[str] | None, with_row_address: bool
    ) -> pa.Table:
        rows = normalize_types(rows, self.root)
        if columns is None:
            return rows
        return select_columns(rows, [*columns, *([LANCE_ROW_ADDRESS] if with_row_address else [])])

    @property
    def is_small(self) -> bool:
        """Whether the manifest has so few rows that `select_rows` keeps all in memory."""
        return self._load_cached_rows() is not None

    def _load_cached_rows(self) -> CachedRows | None:
        """Return all rows of a small manifest; None if it has too many rows."""
        if not self._has_read_cache:
            # Another thread may be doing the same.
            found = CachedRows.read(self.dataset, self._earlier_rows)
            if found is not None:
                with translate_read_errors(f"read the manifest of {self.root}"):
                    # Damaged files may decode to invalid text.
                    found.rows.validate(full=True)
            self._cached_rows, self._has_read_cache = found, True
            self._earlier_rows = None
        return self._cached_rows

    @property
    def _latest_cached_rows(self) -> CachedRows | None:
        """The rows for a later version to begin with."""
        return self._cached_rows or self._earlier_rows

    @property
    def pinned_tables(self) -> tuple[str, ...]:
        """The sorted object ids of tables whose rows have a pin."""
        return () if self.has_stale_pins else self._list_pinned()

    @property
    def has_stale_pins(self) -> bool:
        """Whether rows still have pins of a strong mode that has ended."""
        return (
            self._stored_mode == "weak" and bool(self._list_pinned()) and self.has_stale_strong_rows
        )

    def _list_pinned(self) -> tuple[str, ...]:
        if self._pinned is None:
            stored = self.dataset.schema.names
            if not self.is_small:
                rows = self.read_rows(build_pin_filter(stored), ["object_id"])
            else:
                pins = [name for name in PIN_NAMES if name in stored]
                rows = self.select_rows("table", ["object_id", *pins])
                is_pinned = pa.array([False] * rows.num_rows, pa.bool_())
                for name in pins:
                    is_pinned = pc.or_(is_pinned, rows.column(name).is_valid())
                rows = rows.filter(is_pinned)
            self._pinned = tuple(sorted(rows.column("object_id").to_pylist()))
        return self._pinned

    @property
    def total_partitions(self) -> int:
        """The number of leaf tables under all specs."""
        if self._total is None and self.is_small:
            self.list_leaves()
        if self._total is None:
            self._check_spec_versions()
            self._total = count_rows(self.dataset, "object_type = 'table'")
        return self._total

    def list_leaves(self, pruning: Pruning | None = None) -> dict[int, pa.Table]:
        """Return the leaves of each spec that a predicate keeps, sorted by partition values.

        Each table has the `LEAF_COLUMNS`, and a column for each partition field of its spec.
        """
        if self._leaves is None and (self._earlier_leaves or self._should_cache_leaves(pruning)):
            self._leaves = self._list_leaves()
        if self._leaves is None:
            assert pruning is not None
            self._pruned_reads += 1
            self._check_spec_versions()
            rows = self.read_rows(
                pruning.manifest_filter, self._stored_leaf_columns(), with_row_address=True
            )
            rows, self._tags = self.resolve_pins(rows)
            return split_by_spec(rows, self.properties.specs)
        if pruning is None:
            return self._leaves
        return {
            each.spec_id: filter_leaves(
                self._leaves[each.spec_id], each.filter, self.properties.specs[each.spec_id]
            )
            for each in pruning.specs
        }

    def with_staged(self, versions: Mapping[str, int], added: pa.Table | None = None) -> Manifest:
        """Return this manifest as a transaction sees it, with the versions that it staged.

        `added` has the manifest rows of partitions that it created under the newest spec.
        """
        view = copy.copy(self)
        view._is_staged = True
        view._leaves = dict(self.list_leaves())
        if added is not None:
            spec = self.properties.spec
            tables = added.filter(pc.equal(added.column("object_type"), "table"))
            blank = pa.nulls(tables.num_rows, pa.uint64())
            tables = tables.append_column("read_version", blank).append_column(
                LANCE_ROW_ADDRESS, blank
            )
            new = to_leaves(tables, spec)
            view._leaves[spec.id] = sort_leaves(pa.concat_tables([view._leaves[spec.id], new]))
        names = pa.array(versions, pa.string())
        staged = pa.array(versions.values(), pa.uint64())
        for number, leaves in view._leaves.items():
            indices = pc.index_in(leaves.column(LEAF_OBJECT_ID), names)
            column = pc.coalesce(staged.take(indices), leaves.column(LEAF_VERSION))
            index = leaves.column_names.index(LEAF_VERSION)
            view._leaves[number] = leaves.set_column(index, LEAF_VERSION, column)
        view._total = sum(leaves.num_rows for leaves in view._leaves.values())
        return view

    def with_leaves(self, rows: pa.Table) -> Manifest:
        """Return this manifest with more tables, given by their rows and row addresses."""
        view = copy.copy(self)
        view._is_staged = True
        more = split_by_spec(rows, self.properties.specs)
        view._leaves = {
            number: sort_leaves(pa.concat_tables([leaves, more[number]]))
            for number, leaves in self.list_leaves().items()
        }
        view._total = sum(leaves.num_rows for leaves in view._leaves.values())
        return view

    def without_leaves(self, names: Iterable[str]) -> Manifest:
        """Return this manifest without the tables with these object ids."""
        gone = pa.array(names, pa.string())
        view = copy.copy(self)
        view._is_staged = True
        view._leaves = {
            number: leaves.filter(pc.invert(pc.is_in(leaves.column(LEAF_OBJECT_ID), gone)))
            for number, leaves in self.list_leaves().items()
        }
        view._total = sum(leaves.num_rows for leaves in view._leaves.values())
        return view

    def scan_rows(self, **options: Any) -> pa.Table:
        """Return stored rows; the options are those of Lance's scanner."""
        rows = scan_table(self.dataset, **options)
        with translate_read_errors(f"read the manifest of {self.root}"):
            # Damaged files may decode to invalid text.
            rows.validate(full=True)
        return rows

    def read_rows_by_id(self, object_ids: Iterable[str]) -> pa.Table:
        """Return the rows with these ids, with all columns."""
        return self.select_rows(ids=list(object_ids))

    def read_leaf_rows(self, leaves: pa.Table) -> pa.Table:
        """Return the rows that list these leaves, with all columns."""
        names = leaves.column(LEAF_OBJECT_ID).to_pylist()
        # If another writer enabled stable row ids, Lance takes row ids instead of addresses.
        if not names or self.is_small or self.dataset.has_stable_row_ids:
            return self.read_rows_by_id(names)
        return normalize_types(
            take_rows(self.dataset, leaves.column(MANIFEST_ROW).to_pylist()), self.root
        )

    def read_row(self, object_id: str) -> pa.Table:
        """Return the row with this id, if it exists, with all columns and its address.

        In a manifest that is not kept in memory, the search begins with the fragment that the last
        commit wrote.
        """
        if object_id not in self._rows and self.is_small:
            self._rows[object_id] = self.select_rows(ids=[object_id], with_row_address=True)
        if object_id not in self._rows:
            condition = _build_id_filter([object_id])
            newest = self.dataset.get_fragments()[-1:]
            found = self.read_rows(condition, with_row_address=True, fragments=newest)
            if not found.num_rows:
                found = self.read_rows(condition, with_row_address=True)
            self._rows[object_id] = found
        return self._rows[object_id]

    def _list_leaves(self) -> dict[int, pa.Table]:
        """Return all leaves, computed from those of an earlier version if possible."""
        # Another thread may be doing the same.
        known, self._earlier_leaves = self._earlier_leaves, None
        leaves = None
        if known is not None and not self.is_small:
            leaves = known.update_to(self.dataset, self._list_leaves_in)
        if leaves is None:
            leaves = self._list_leaves_in(None)
        self._total = sum(each.num_rows for each in leaves.values())
        return leaves

    def _cached_leaves_for(self, later: Manifest) -> CachedLeaves | None:
        """Return the leaves of this version for a later one to reuse, if it can."""
        if self._is_staged or self._stored_mode != later._stored_mode or self._tags:
            return None
        if self.properties.specs != later.properties.specs:
            return None
        return (
            self._earlier_leaves
            if self._leaves is None
            else CachedLeaves.of(self.dataset, self._leaves)
        )

    def _list_leaves_in(self, fragments: list[lance.LanceFragment] | None) -> dict[int, pa.Table]:
        """Return the leaves that these fragments (None: all) list."""
        stored = self._stored_leaf_columns()
        if fragments is None:
            rows = self.select_rows("table", stored, with_row_address=True)
        else:
            rows = self.read_rows(
                "object_type = 'table'", stored, fragments=fragments, with_row_address=True
            )
        rows, self._tags = self.resolve_pins(rows)
        self._check_partition_columns(rows)
        leaves = split_by_spec(rows, self.properties.specs)
        if sum(each.num_rows for each in leaves.values()) < rows.num_rows:
            self._check_spec_versions()
        return leaves

    def resolve_pins(self, rows: pa.Table) -> tuple[pa.Table, list[PinnedTag]]:
        """Return `table` rows with the location and version to read, and the tags resolved.

        A pin counts in every layout and mode (format: Read Behavior). In strong mode a row
        without a pin is read at its highest `table_version` row (Appendix C).
        """
        pins = [name for name in PIN_NAMES if name in rows.column_names]
        is_pinned = any(rows.column(name).null_count < rows.num_rows for name in pins)
        if is_pinned and self.has_stale_strong_rows:
            # These pins are left over from strong mode.
            rows = rows.drop_columns(pins)
        rows, tags = resolve_locations(self.root, rows)
        check_table_rows(rows, self.root)
        versions = rows.column(STORED_VERSION)
        is_kept_by_rows = (
            self.properties.mode == "strong" and not self.properties.has_expression_specs
        )
        if not is_kept_by_rows or not versions.null_count:
            return rows, tags
        newest = self._read_newest_versions()
        listed = [newest.get(name) for name in rows.column("object_id").to_pylist()]
        filled = pc.coalesce(versions, pa.array(listed, pa.uint64()))
        index = rows.column_names.index(STORED_VERSION)
        return rows.set_column(index, STORED_VERSION, filled), tags

    @property
    def _stored_mode(self) -> str | None:
        """The mode in the properties; None if another writer created the manifest."""
        mode: str | None = self.dataset.metadata.get(MODE)
        return mode

    @property
    def has_stale_strong_rows(self) -> bool:
        """Whether the mode is weak, but rows of strong mode still remain.

        Pins are ignored then; otherwise they count in every mode.
        """
        return self._stored_mode == "weak" and self.read_row(HEAD_ROW_ID).num_rows > 0

    def _read_newest_versions(self) -> dict[str, int]:
        """Return the version in the highest `table_version` row of each table (Appendix C)."""
        rows = self.select_rows("table_version", ["object_id", STORED_VERSION])
        found: dict[str, tuple[int, int]] = {}
        for object_id, version in zip(
            *(column.to_pylist() for column in rows.columns), strict=True
        ):
            table, _, number = object_id.rpartition(SEPARATOR)
            if is_snapshot_number(number) and version is not None:
                found[table] = max(found.get(table, (-1, 0)), (int(number), version))
        return {table: version for table, (_, version) in found.items()}

    def _should_cache_leaves(self, pruning: Pruning | None) -> bool:
        if pruning is None or self._pruned_reads > 0 or not self._has_partition_columns():
            return True
        return self.is_small

    def _has_partition_columns(self) -> bool:
        """Whether the manifest has each partition field in its type, so that Lance can filter."""
        stored = {column.name: column.type for column in self.dataset.schema}
        return all(
            stored.get(field.column) == field.result_type
            for spec in self.properties.specs.values()
            for field in spec.fields
        )

    def _check_partition_columns(self, rows: pa.Table) -> None:
        """Refuse partitions if the columns with their values are missing."""
        for number, spec in self.properties.specs.items():
            missing = [each.column for each in spec.fields if each.column not in rows.column_names]
            if not missing:
                continue
            prefix = f"{spec_namespace(number)}{SEPARATOR}"
            if pc.any(pc.starts_with(rows.column("object_id"), prefix)).as_py():
                raise InvalidManifest(
                    f"The manifest of {self.root} lists partitions under {spec_namespace(number)}, "
                    f"and has no column {missing[0]!r} with their values. Another program wrote "
                    "it. Restore the column."
                )

    def _stored_leaf_columns(self) -> list[str]:
        fields = {field.column for spec in self.properties.specs.values() for field in spec.fields}
        columns = ["object_id", "location", *PIN_NAMES, *sorted(fields)]
        return [name for name in columns if name in self.dataset.schema.names]

    def _check_spec_versions(self) -> None:
        """Refuse leaves of a spec without a definition: scans would silently skip them."""
        known = " OR ".join(
            f"object_id LIKE '{spec_namespace(number)}$%'" for number in self.properties.specs
        )
        unknown = self.read_rows(f"object_type = 'table' AND NOT ({known})", ["object_id"], limit=1)
        if unknown.num_rows:
            name = unknown.column(0)[0].as_py().split(SEPARATOR)[0]
            raise UnknownSpec(
                f"{self.root} holds data under {name}, but has no partition_spec_{name}: expected "
                f"one of {', '.join(map(spec_namespace, self.properties.specs))}. Another program "
                "wrote it, or its properties were lost. Restore the property."
            )


def _open_at(root: Location, version: int) -> Manifest:
    """Open a version of a manifest, in the process that unpickles it."""
    shared = _Shared()
    try:
        return Manifest(
            root, root.subfolder(MANIFEST_DIRECTORY).open(version, shared.cache), shared=shared
        )
    except (OSError, ValueError) as error:
        raise StorageFailure(
            f"Cannot open {root} as it was when it was pickled: {summarize_error(error)} A vacuum "
            "removes old snapshots: open the table again."
        ) from None


def _build_condition(kind: str | None, ids: Collection[str] | None, prefix: str | None) -> str:
    """Build a filter for Lance; too many ids are left out."""
    conditions = []
    if kind is not None:
        conditions.append(f"object_type = '{kind}'")
    if ids is not None and len(ids) <= _MAX_IDS_IN_FILTER:
        conditions.append(_build_id_filter(ids))
    if prefix is not None:
        # A range, because names may contain the wildcards of LIKE.
        text, end = prefix.replace("'", "''"), chr(ord(prefix[-1]) + 1)
        conditions.append(f"object_id >= '{text}' AND object_id < '{text[:-1]}{end}'")
    return " AND ".join(conditions) or "true"


def _build_id_filter(object_ids: Iterable[str]) -> str:
    """Build a filter for rows with one of these ids."""
    listed = ", ".join("'" + name.replace("'", "''") + "'" for name in object_ids)
    return f"object_id IN ({listed})" if listed else "false"
