"""Upgrade of the Hive-style layout to the newest format, with a manifest.

No data file is rewritten: a leaf gets the columns in its path as one more small file for each of
its own. The table changes its layout in one step, when the manifest appears. If the root has a
manifest already, the step is the change of its properties.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping

import lance
import pyarrow as pa
import pyarrow.compute as pc
from lance import LanceDataset, LanceOperation

from phalanx.errors import CommitConflict, PhalanxError
from phalanx.model.schema.rows import to_row_schema
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.hive_properties import HIVE_PREFIX
from phalanx.model.specs.spec import PartitionField, PartitionSpec
from phalanx.planning.pruning.leaf_columns import LEAF_LOCATION
from phalanx.storage.commit import creation
from phalanx.storage.hive.files import HiveFiles
from phalanx.storage.hive.root import HiveRoot, read_manifest_properties
from phalanx.storage.lance.fault_points import FaultPoint, fault_point
from phalanx.storage.lance.location import Location, create_session
from phalanx.storage.lance.parallel import map_parallel
from phalanx.storage.lance.retries import retry_conflicts
from phalanx.storage.lance.scanning import scan_batches, scan_table
from phalanx.storage.lance.schema import is_aligned, read_lance_schema, to_lance_schema
from phalanx.storage.leaf.adoption import check_renumbering, renumber_fields
from phalanx.storage.leaf.path_values import PathValues, check_stored_columns, list_path_values
from phalanx.storage.leaf.reconcile import align_leaf
from phalanx.storage.manifest.changes import column_of, insert_rows
from phalanx.storage.manifest.manifest import MANIFEST_DIRECTORY, Manifest
from phalanx.storage.manifest.partition_rows import build_partition_rows
from phalanx.storage.state.properties import WRITER_FLAG, Properties

# Leaves that other writers create meanwhile are prepared in another round.
_MAX_ROUNDS = 20


def check_upgradable(root: HiveRoot) -> None:
    """Refuse leaves that cannot be upgraded, before anything changes."""
    schema = root.hive.schema
    if read_manifest_properties(root.root) is not None:
        _check_manifest(root.root)

    def check(leaf: tuple[Location, PathValues | None]) -> None:
        location, path = leaf
        dataset = location.open_leaf()
        check_stored_columns(dataset, schema, root.hive.path_columns, location)
        _check_values(dataset, path, location)
        if not _has_ids(dataset, schema):
            check_renumbering(dataset, schema, location)

    map_parallel(check, _list_leaves(root))


def check_truncation(root: HiveRoot, field: PartitionField) -> None:
    """Refuse negative values that another writer truncated downward.

    The newest format truncates toward zero, and would look for them in another partition.
    """
    schema = root.hive.schema
    [source] = field.source_ids
    column = schema.path_of(source)
    assert column is not None
    leaves = root.list_leaves()[root.hive.spec.id]
    below = leaves.filter(pc.less(leaves.column(field.field_id), 0))

    def check(each: tuple[str, int]) -> None:
        location, value = each
        dataset = root.root.leaf(location).open_leaf()
        for batch in scan_batches(dataset, columns=[column[0]]):
            cut = field.derivation.apply(batch.column(column[0]))
            if pc.any(pc.not_equal(cut, value)).as_py():
                raise PhalanxError(
                    f"Cannot upgrade {root.root}: its partition {location} has numbers in "
                    f"{column[0]!r} that were truncated down to {value}. The newest format "
                    "truncates toward zero, and would look for them in another partition. Import "
                    "the table instead."
                )

    pairs = zip(
        below.column(LEAF_LOCATION).to_pylist(),
        below.column(field.field_id).to_pylist(),
        strict=True,
    )
    map_parallel(check, list(pairs))


def _check_manifest(root: Location) -> None:
    """Refuse a manifest with other tables: in the newest format all tables are partitions."""
    others = "object_type = 'table' AND NOT object_id LIKE 'v1$%'"
    manifest = root.subfolder(MANIFEST_DIRECTORY).open(session=create_session())
    found = scan_table(manifest, columns=["object_id"], filter=others)
    if found.num_rows:
        raise PhalanxError(
            f"Cannot upgrade {root}: its manifest lists tables of stock clients, such as "
            f"{found.column(0)[0].as_py()!r}, and the newest format allows only partitions. "
            "Create another table, and append the rows of this one."
        )


def _check_values(dataset: lance.LanceDataset, path: PathValues | None, location: Location) -> None:
    """Refuse a leaf that also stores a column of its path, with other values."""
    assert path is not None
    for name in path.values.keys() & set(dataset.schema.names):
        value = path.values[name]
        for stored in pc.unique(scan_table(dataset, columns=[name]).column(name)):
            if not stored.equals(value):
                raise PhalanxError(
                    f"Cannot upgrade the partition at {location}: its column {name!r} holds "
                    f"{stored.as_py()!r}, but its path has {value.as_py()!r}. Drop the column "
                    "there: the layout stores it in the path only."
                )


def prepare_leaves(root: HiveRoot) -> HiveRoot:
    """Add all columns to every leaf, with the table's field ids; return the newest root.

    Concurrent writes to a prepared leaf have all columns too.
    """
    schema = root.hive.schema
    for _ in range(_MAX_ROUNDS):
        behind = [
            each for each in _list_leaves(root) if not is_aligned(each[0].open_leaf(), schema)
        ]
        if not behind:
            return root
        map_parallel(lambda each: _prepare_leaf(each[0], each[1], schema), behind)
        now = root.load_latest()
        if not isinstance(now, HiveRoot):
            return root
        root = now
    raise CommitConflict(
        f"Cannot upgrade {root.root}: other writers create leaves faster than they can be "
        "prepared. Try again when fewer writers are active."
    )


def switch_layout(root: HiveRoot, spec: PartitionSpec) -> None:
    """Switch the table to the newest format in one step; another writer may have done it."""
    properties = Properties(root.hive.schema, {spec.id: spec}, "weak", _derive_salt(root), 0, None)
    leaves = root.list_leaves()[spec.id]
    locations = iter(leaves.column(LEAF_LOCATION).to_pylist())
    staged = creation.build_manifest(root.root, properties)
    keys = root.leaf_keys(spec.id, leaves)
    rows = build_partition_rows(Manifest(root.root, staged), keys, lambda _: next(locations))
    fault_point(FaultPoint.COMMITTING)
    if read_manifest_properties(root.root) is not None:
        retry_conflicts(lambda: _switch_manifest(root.root, rows, properties))
        fault_point(FaultPoint.MANIFEST_CREATED)
        return
    _insert_missing(staged, rows)
    creation.install_manifest(root.root, staged)


def _switch_manifest(root: Location, rows: pa.Table, properties: Properties) -> None:
    """Add the rows to an existing manifest, and then change its properties in one commit."""
    where = root.subfolder(MANIFEST_DIRECTORY)
    dataset = where.open(session=create_session())
    own = scan_table(
        dataset, columns=["object_id"], filter="object_id = 'v1' OR object_id LIKE 'v1$%'"
    )
    ours = pc.is_in(own.column("object_id"), rows.column("object_id").combine_chunks())
    if own.num_rows and not pc.all(ours).as_py():
        raise PhalanxError(
            f"Cannot upgrade {root}: its manifest has a namespace 'v1' of its own, and the newest "
            "format needs that name. Move it elsewhere first."
        )
    columns = [pa.field("read_version", pa.uint64()), *map(column_of, properties.spec.fields)]
    if new := [column for column in columns if column.name not in dataset.schema.names]:
        dataset.add_columns(new)
        fault_point(FaultPoint.COLUMNS_CHANGED)
    _insert_missing(where.open(session=create_session()), rows)
    fault_point(FaultPoint.MANIFEST_WRITTEN)
    switched: dict[str, str | None] = {**WRITER_FLAG, **properties.to_metadata()}
    where.open(session=create_session()).update_metadata(switched)


def _insert_missing(manifest: lance.LanceDataset, rows: pa.Table) -> None:
    """Insert the rows whose ids are new."""
    schema = manifest.schema
    columns = [
        rows.column(field.name).cast(field.type)
        if field.name in rows.column_names
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    merge = manifest.merge_insert("object_id").when_not_matched_insert_all()
    merge.use_index(False).conflict_retries(0).execute(pa.table(columns, schema=schema))


def add_late_leaves(root: Location, raw_properties: Mapping[str, str]) -> None:
    """Add the leaves that Hive-style writers created after the manifest was built.

    Writers that commit after the switch get an error. Rows of writers that committed just before
    it are invisible until this call.
    """
    hive = HiveRoot(root, raw_properties)

    def attempt() -> None:
        manifest = Manifest.open(root)
        spec_id = manifest.properties.spec.id
        known = [leaves.column(LEAF_LOCATION) for leaves in manifest.list_leaves().values()]
        listed = pa.chunked_array([chunk for each in known for chunk in each.chunks], pa.string())
        leaves = hive.list_leaves()[hive.hive.spec.id]
        late = leaves.filter(
            pc.invert(pc.is_in(leaves.column(LEAF_LOCATION), listed.combine_chunks()))
        )
        if not late.num_rows:
            return
        keys = hive.leaf_keys(spec_id, late)
        if taken := [row for row in manifest.find_leaf_rows(keys).tolist() if row >= 0]:
            other = manifest.list_leaves()[spec_id].column(LEAF_LOCATION)[taken[0]].as_py()
            folders = ", ".join(late.column(LEAF_LOCATION).to_pylist())
            raise PhalanxError(
                f"Cannot finish the upgrade of {root}: the partition at {root.leaf(other)} also "
                f"has rows in one of these folders: {folders}. Append its rows to the table, "
                "remove the folder, and upgrade again."
            )
        paths = list_path_values(late, hive.path_columns)
        locations = [root.leaf(folder) for folder in late.column(LEAF_LOCATION).to_pylist()]
        for location, path in zip(locations, paths, strict=True):
            _prepare_leaf(location, path, hive.hive.schema)
        folders_left = iter(late.column(LEAF_LOCATION).to_pylist())
        insert_rows(manifest, build_partition_rows(manifest, keys, lambda _: next(folders_left)))

    retry_conflicts(attempt)


def remove_hive_properties(root: Location) -> bool:
    """Remove the properties of the Hive-style layout; return whether there were any."""
    files = HiveFiles(root)
    found = files.read_properties() is not None
    if found:
        files.remove_properties()
    dataset = root.subfolder(MANIFEST_DIRECTORY).open(session=create_session())
    if old := [key for key in dataset.metadata if key.startswith(HIVE_PREFIX)]:
        dataset.update_metadata(dict[str, str | None].fromkeys(old))
        found = True
    if found:
        fault_point(FaultPoint.PROPERTIES_CHANGED)
    return found


def _list_leaves(root: HiveRoot) -> Iterator[tuple[Location, PathValues | None]]:
    for leaves in root.list_leaves().values():
        locations = leaves.column(LEAF_LOCATION).to_pylist()
        for location, path in zip(
            locations, list_path_values(leaves, root.path_columns), strict=True
        ):
            yield root.root.leaf(location), path


def _prepare_leaf(location: Location, path: PathValues | None, schema: Schema) -> None:
    assert path is not None
    plain = to_row_schema(schema)

    def attempt() -> None:
        dataset = location.open_leaf()
        missing = [name for name in plain.names if name not in dataset.schema.names]
        if not dataset.get_fragments():
            _set_schema(dataset, schema, location)
        elif missing:
            added = pa.schema([plain.field(name) for name in missing])

            @lance.batch_udf(output_schema=added)
            def constants(batch: pa.RecordBatch) -> pa.RecordBatch:
                arrays = [pa.repeat(path.values[name], batch.num_rows) for name in missing]
                return pa.RecordBatch.from_arrays(arrays, schema=added)

            dataset.add_columns(constants, read_columns=[dataset.schema.names[0]])
            fault_point(FaultPoint.COLUMNS_CHANGED)
        dataset = location.open_leaf()
        if _has_ids(dataset, schema):
            align_leaf(location, schema, lambda: None)
        else:
            check_renumbering(dataset, schema, location)
            renumber_fields(dataset, schema, location)
        fault_point(FaultPoint.LEAF_ALIGNED)

    retry_conflicts(attempt)


def _set_schema(dataset: lance.LanceDataset, schema: Schema, location: Location) -> None:
    """Set the schema of a leaf without rows."""
    LanceDataset.commit(
        dataset,
        LanceOperation.Project(to_lance_schema(schema)),
        read_version=dataset.version,
        max_retries=0,
        **location.write_options,
    )


def _has_ids(dataset: lance.LanceDataset, schema: Schema) -> bool:
    """Whether the columns of a leaf have the table's field ids, in any order."""
    there = read_lance_schema(dataset)
    paths = [there.path_of(number) for number in there.ids]
    return all(
        path is None or schema.path_of(number) == path
        for number, path in zip(there.ids, paths, strict=True)
    )


def _derive_salt(root: HiveRoot) -> str:
    """Derive the salt, so that each attempt gives the partitions the same names."""
    text = json.dumps([root.root.uri, sorted(root.raw_properties.items())])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
