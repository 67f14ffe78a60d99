"""The table that a user holds: one logical table, made of many Lance tables."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast

import lance
import pyarrow as pa

from phalanx.errors import InvalidPredicate, PhalanxError, SchemaMismatch
from phalanx.model.binding import bind
from phalanx.model.evaluation import matches
from phalanx.model.evolution import next_spec
from phalanx.model.partition_by import PartitionBy
from phalanx.model.partition_key import PartitionKey, key_columns, keyed, keys_of
from phalanx.model.predicate import TRUE, Predicate, all_of, among
from phalanx.model.rows import conformed, plain_schema, reader_of
from phalanx.model.schema import Schema
from phalanx.model.spec import PartitionSpec
from phalanx.planning.fields import bound_fields
from phalanx.planning.pruning import prune
from phalanx.planning.residual import settled
from phalanx.planning.scan import LOCATION, READ_VERSION, ScanPlan
from phalanx.storage.failures import told
from phalanx.storage.leaf import check_storable
from phalanx.storage.location import Location
from phalanx.storage.manifest import Manifest
from phalanx.storage.naming import new_salt
from phalanx.storage.properties import Properties
from phalanx.storage.shuffle import Shuffled, shuffle
from phalanx.storage.writing import (
    Deletion,
    LeafWrite,
    commit_leaves,
    deleting,
    deleting_keys,
    ensure_partitions,
    merged,
    write_rows,
)
from phalanx.table import changes, inspection
from phalanx.table.adopt import adopt
from phalanx.table.scan import Scan, checked_columns, checked_limit

# How to finish what reached only some partitions.
_REPEAT = "Call it again with the same arguments: that gives the same table as one whole call."
_APPEND_THE_REST = (
    "Append the rows of the partitions not written; where these partitions held no other rows, "
    "overwrite_partitions with the same data does it too."
)


Method = TypeVar("Method", bound=Callable[..., Any])


def _tells(what: str) -> Callable[[Method], Method]:
    """Errors of the store below become one message that says what could not be done."""

    def wrap(method: Method) -> Method:
        @functools.wraps(method)
        def call(self: Table, *arguments: Any, **options: Any) -> Any:
            with told(f"{what} {self.uri}"):
                return method(self, *arguments, **options)

        return cast(Method, call)

    return wrap


class Table:
    """A partitioned namespace, as one table. Every call sees what is stored at its time."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest

    def __repr__(self) -> str:
        label = self.spec.label(self._properties.schema)
        return f"<phalanx.Table {self.uri} by {label or 'nothing'}>"

    # ── what it is ───────────────────────────────────────────────────────────────────────────

    @property
    def uri(self) -> str:
        """Where the table is."""
        return self._manifest.root.uri

    @property
    def schema(self) -> pa.Schema:
        """The columns, each with its `lance:field_id`."""
        return self._properties.schema.arrow

    @property
    def spec(self) -> PartitionSpec:
        """The newest spec, under which rows are written."""
        return self._properties.spec

    @property
    def specs(self) -> Mapping[int, PartitionSpec]:
        """All spec versions by their ids."""
        return dict(self._properties.specs)

    @property
    def mode(self) -> str:
        """Whether writes are atomic for each partition (weak) or for all (strong)."""
        return self._properties.mode

    @property
    def _properties(self) -> Properties:
        return self._refreshed().properties

    def _refreshed(self) -> Manifest:
        self._manifest = self._manifest.latest()
        return self._manifest

    # ── reading ──────────────────────────────────────────────────────────────────────────────

    @_tells("plan a scan of")
    def plan(self, where: str | None = None) -> ScanPlan:
        """Which partitions a predicate needs, and why."""
        manifest = self._refreshed()
        return _plan(manifest, _bound(where, manifest.properties.schema))

    def scan(
        self,
        where: str | None = None,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
    ) -> Scan:
        """The rows that match, in the order of spec, partition values (NULL last) and leaf."""
        manifest = self._refreshed()
        schema = manifest.properties.schema
        names = checked_columns(columns, schema)
        plan = _plan(manifest, _bound(where, schema))
        return Scan(plan, manifest.root, schema, names, checked_limit(limit))

    @_tells("open a partition of")
    def partition(self, **values: Any) -> lance.LanceDataset:
        """One leaf as an ordinary Lance table, by the values of all its partition fields."""
        manifest = self._refreshed()
        location, version = _leaf(manifest, values)
        return location.open_leaf(version)

    @_tells("list the partitions of")
    def partitions(self) -> pa.Table:
        """Every partition with its values, its location, rows and bytes."""
        return inspection.partitions(self._refreshed())

    @_tells("list the files of")
    def files(self) -> pa.Table:
        """Every fragment of every partition with its files, rows, deleted rows and bytes."""
        return inspection.files(self._refreshed())

    # ── writing ──────────────────────────────────────────────────────────────────────────────

    @_tells("append to")
    def append(self, data: Any) -> int:
        """Add rows, each to its partition under the newest spec; returns how many."""
        manifest = self._writable()
        with _shuffled(data, manifest) as rows:
            if rows.rows:
                manifest = ensure_partitions(manifest, rows.keys)
                commit_leaves(write_rows(manifest, rows), manifest, _APPEND_THE_REST)
            return rows.rows

    @_tells("overwrite")
    def overwrite(self, data: Any, where: str = "true") -> int:
        """Replace the rows that match `where` by rows that match it too; returns how many came."""
        manifest = self._writable()
        predicate = bind(where, manifest.properties.schema)
        with _shuffled(data, manifest, predicate, where) as rows:
            manifest = ensure_partitions(manifest, rows.keys)
            deletions = {write.location.uri: write for write in _deletions(manifest, predicate)}
            commit_leaves(merged(write_rows(manifest, rows), deletions), manifest, _REPEAT)
            return rows.rows

    @_tells("overwrite partitions of")
    def overwrite_partitions(self, data: Any) -> int:
        """Replace the partitions (under the newest spec) that the data touches, and nothing else.

        Rows of these partitions are replaced wherever they are stored, older specs included.
        Returns how many rows came.
        """
        manifest = self._writable()
        with _shuffled(data, manifest) as rows:
            if not rows.rows:
                return 0
            manifest = ensure_partitions(manifest, rows.keys)
            deletions = dict(_replaced(manifest, rows.keys))
            writes = merged(write_rows(manifest, rows), deletions)
            commit_leaves(writes, manifest, _REPEAT)
            return rows.rows

    @_tells("delete from")
    def delete(self, where: str) -> int:
        """Remove the rows that match; returns how many."""
        manifest = self._writable()
        schema = manifest.properties.schema
        deletions = list(_deletions(manifest, bind(where, schema)))
        return commit_leaves(deletions, manifest, _REPEAT)

    @_tells("adopt into")
    def adopt(self, uri: str | os.PathLike[str], /, **values: Any) -> PartitionKey:
        """Make an existing Lance table a partition, where it is and without a copy; its key.

        Its columns must be the table's (in any order), and all its rows of one partition of the
        newest spec that does not exist yet. `values` are that partition's, by field id: needed
        only for a table without rows. Its field ids become the namespace's: nobody else should
        write to it meanwhile, and indexes must be dropped first where ids change.

        Stock clients list it like every other partition. They can open it only if it is inside
        the root: they take every location for a path below it.
        """
        wanted = functools.partial(_named_key, values) if values else None
        return adopt(self._writable(), uri, wanted)

    def _writable(self) -> Manifest:
        return self._refreshed()

    # ── changing ─────────────────────────────────────────────────────────────────────────────

    @_tells("evolve")
    def evolve(self, partition_by: PartitionBy) -> PartitionSpec:
        """Write under another spec from now on; what is stored stays as it is."""
        self._manifest, spec = changes.evolve(self._refreshed(), partition_by)
        return spec

    def add_column(self, field: pa.Field) -> None:
        """Add a nullable column, NULL in every row there is."""
        if not isinstance(field, pa.Field):
            raise SchemaMismatch(f"Cannot add {field!r}: expected pa.field(name, type).")
        self._change(
            "add_column",
            {"name": field.name, "type": str(field.type)},
            lambda properties: changes.added(properties, field),
        )

    def drop_column(self, name: str) -> None:
        """Remove a column, which the newest spec must not need."""
        self._change(
            "drop_column", {"name": name}, lambda properties: changes.dropped(properties, name)
        )

    def rename_column(self, old: str, new: str) -> None:
        """Give a column another name; partitions do not change."""
        self._change(
            "rename_column",
            {"name": old, "new": new},
            lambda properties: changes.renamed(properties, old, new),
        )

    def promote_column(self, name: str, type: pa.DataType) -> None:
        """Give a column a wider type; partitions do not change."""
        self._change(
            "promote_column",
            {"name": str(name), "type": str(type)},
            lambda properties: changes.promoted(properties, name, type),
        )

    @_tells("change the schema of")
    def _change(
        self, name: str, arguments: Mapping[str, str], change: changes.SchemaChange
    ) -> None:
        self._manifest = changes.change_schema(self._refreshed(), name, arguments, change)


def create(
    uri: str | os.PathLike[str],
    schema: pa.Schema,
    partition_by: PartitionBy,
    *,
    transaction: str = "weak",
    layout: str = "namespace",
    storage_options: dict[str, str] | None = None,
) -> Table:
    """Make a partitioned namespace; an existing one is an error."""
    if transaction != "weak":
        raise PhalanxError(f"Cannot create a table with transaction={transaction!r}: use 'weak'.")
    if layout != "namespace":
        raise PhalanxError(f"Cannot create a table with layout={layout!r}: use 'namespace'.")
    numbered = Schema.of(schema)
    check_storable(numbered)
    spec = next_spec(partition_by, numbered, {})
    properties = Properties(numbered, {spec.id: spec}, transaction, new_salt(), 0, None)
    return Table(Manifest.create(Location.of(uri, storage_options), properties))


def open(uri: str | os.PathLike[str], *, storage_options: dict[str, str] | None = None) -> Table:
    """The partitioned namespace at a path or URI."""
    return Table(Manifest.open(Location.of(uri, storage_options)))


def _plan(manifest: Manifest, predicate: Predicate) -> ScanPlan:
    properties = manifest.properties
    schema, specs = properties.schema, properties.specs
    pruning = prune(predicate, specs, schema)
    kept = manifest.leaves(pruning)
    found = {
        spec.spec_id: settled(kept[spec.spec_id], spec, specs[spec.spec_id], schema)
        for spec in pruning.specs
    }
    leaves = {number: rows for number, (rows, _) in found.items()}
    return ScanPlan(
        root=manifest.root.uri,
        pruning=pruning,
        labels={number: spec.label(schema) for number, spec in specs.items()},
        leaves=leaves,
        residuals={number: residuals for number, (_, residuals) in found.items()},
        total_partitions=manifest.total_partitions,
        measure=functools.partial(inspection.sizes, manifest, leaves),
    )


def _bound(where: str | None, schema: Schema) -> Predicate:
    return TRUE if where is None else bind(where, schema)


def _shuffled(
    data: Any, manifest: Manifest, predicate: Predicate = TRUE, where: str = "true"
) -> Shuffled:
    """The rows by partition, every one of them valid; nothing is written yet."""
    schema, spec = manifest.properties.schema, manifest.properties.spec
    batches = conformed(reader_of(data), schema.arrow)
    if predicate != TRUE:
        batches = _all_matching(batches, predicate, where)
    return shuffle(
        batches,
        plain_schema(schema),
        lambda rows: keyed(spec, rows, schema),
        in_memory=isinstance(data, pa.Table | pa.RecordBatch),
    )


def _all_matching(
    batches: Iterator[pa.RecordBatch], predicate: Predicate, where: str
) -> Iterator[pa.RecordBatch]:
    done = 0
    for batch in batches:
        kept = matches(predicate, batch)
        if kept.true_count < batch.num_rows:
            row = kept.to_pylist().index(False)
            raise InvalidPredicate(
                f"Row {done + row} of the data does not match {where!r}, the rows to be replaced: "
                f"{batch.slice(row, 1).to_pylist()[0]}. Leave it out, or widen the predicate."
            )
        done += batch.num_rows
        yield batch


def _deletions(manifest: Manifest, predicate: Predicate) -> Iterator[LeafWrite]:
    """The removal of the matching rows from every leaf that may have some."""
    plan = _plan(manifest, predicate)
    schema = manifest.properties.schema
    for number, leaves in plan.leaves.items():
        residuals = plan.residuals[number]
        removals = [deleting(each, schema) for each in residuals.predicates]
        yield from _leaf_writes(
            manifest, number, leaves, [removals[place] for place in residuals.places.tolist()]
        )


def _replaced(manifest: Manifest, touched: pa.Table) -> Iterator[tuple[str, LeafWrite]]:
    """The removal of the rows in these partitions of the newest spec, wherever they are."""
    properties = manifest.properties
    spec, schema = properties.spec, properties.schema
    newest = manifest.leaves()[spec.id].take(pa.array(manifest.places(touched)))
    everything = [deleting(TRUE, schema)] * newest.num_rows
    for write in _leaf_writes(manifest, spec.id, newest, everything):
        yield write.location.uri, write
    older = {number: other for number, other in properties.specs.items() if number != spec.id}
    known = [
        among(field.term, touched.column(field.field.field_id).combine_chunks())
        for field in bound_fields(spec, schema)
        if field.term is not None
    ]
    pruning = prune(all_of(known), older, schema)
    leaves = manifest.leaves(pruning) if older else {}
    for number in older:
        removals = [deleting_keys(touched, spec, schema)] * leaves[number].num_rows
        for write in _leaf_writes(manifest, number, leaves[number], removals):
            yield write.location.uri, write


def _leaf_writes(
    manifest: Manifest, spec_id: int, leaves: pa.Table, removals: Sequence[Deletion]
) -> Iterator[LeafWrite]:
    keys = keys_of(manifest.keys_of_leaves(spec_id, leaves))
    locations = leaves.column(LOCATION).to_pylist()
    for key, location, removal in zip(keys, locations, removals, strict=True):
        yield LeafWrite(key, manifest.root.child(location), (), removal)


def _leaf(manifest: Manifest, values: Mapping[str, Any]) -> tuple[Location, int | None]:
    """The one leaf with these partition values, the newest spec's first."""
    specs = manifest.properties.specs
    for number in sorted(specs, reverse=True):
        spec = specs[number]
        if {field.field_id for field in spec.fields} != set(values):
            continue
        wanted = _one_key(spec, values)
        place = int(manifest.places(wanted, number)[0])
        if place >= 0:
            row = manifest.leaves()[number].slice(place, 1).to_pylist()[0]
            return manifest.root.child(row[LOCATION]), row[READ_VERSION]
    shown = ", ".join(f"{name}={value!r}" for name, value in values.items())
    fields = "; ".join(
        f"v{number}: {', '.join(field.field_id for field in spec.fields)}"
        for number, spec in sorted(specs.items())
    )
    raise PhalanxError(
        f"No partition has {shown or 'no values'}: expected a value for every field of a spec "
        f"({fields}) that some rows have. See partitions()."
    )


def _one_key(spec: PartitionSpec, values: Mapping[str, Any]) -> pa.Table:
    columns = []
    for field in spec.fields:
        value = values[field.field_id]
        try:
            column = pa.array([value], field.result_type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, OverflowError):
            raise PhalanxError(
                f"Partition field {field.field_id!r} has values of type {field.result_type}, "
                f"not {value!r}."
            ) from None
        columns.append(column)
    return key_columns(
        spec.id, pa.table(columns, names=[field.field_id for field in spec.fields]), 1
    )


def _named_key(values: Mapping[str, Any], spec: PartitionSpec) -> pa.Table:
    """The partition key of a spec that the values name, all of them and no others."""
    expected = [field.field_id for field in spec.fields]
    if set(values) != set(expected):
        raise PhalanxError(
            f"Cannot take {', '.join(values)} as partition values: expected exactly "
            f"{', '.join(expected) or 'none'}, the fields of spec v{spec.id}."
        )
    return _one_key(spec, values)
