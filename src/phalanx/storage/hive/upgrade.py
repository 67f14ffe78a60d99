"""Leaves of the Hive-style layout made fit for a manifest, and the manifest that lists them.

No data file is written anew: a leaf gets the columns that its path holds, as one more small file
for each of its own. Until the manifest is there the table is what it was; with it, it is of the
newest format. Where a root has a manifest already, its properties make the difference.
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
from phalanx.model.schema.rows import plain_schema
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.hive_properties import PREFIX
from phalanx.model.specs.spec import PartitionField, PartitionSpec
from phalanx.planning.pruning.scan_plan import LOCATION
from phalanx.storage.commit import creation
from phalanx.storage.hive.files import HiveFiles
from phalanx.storage.hive.root import HiveRoot, manifest_properties
from phalanx.storage.lance.fault_points import Step, reach
from phalanx.storage.lance.location import Location, new_cache
from phalanx.storage.lance.parallel import in_parallel
from phalanx.storage.lance.retries import until_won
from phalanx.storage.lance.scanning import batches_of, table_of
from phalanx.storage.lance.schema import is_aligned, lance_schema, schema_of
from phalanx.storage.leaf.adoption import check_renumbering, renumber
from phalanx.storage.leaf.path_values import PathValues, check_stored, path_values
from phalanx.storage.leaf.reconcile import align
from phalanx.storage.manifest.changes import column_of, insert
from phalanx.storage.manifest.manifest import DIRECTORY, Manifest
from phalanx.storage.manifest.partition_rows import new_partitions
from phalanx.storage.state.properties import WRITER_FLAG, Properties

# Leaves that others make meanwhile are prepared in another round.
_MOST_ROUNDS = 20


def check_leaves(root: HiveRoot) -> None:
    """Refuse leaves that cannot become those of a manifest, before anything is changed."""
    schema = root.hive.schema
    if manifest_properties(root.root) is not None:
        _check_manifest(root.root)

    def check(leaf: tuple[Location, PathValues | None]) -> None:
        location, path = leaf
        dataset = location.open_leaf()
        check_stored(dataset, schema, root.hive.path_columns, location)
        _check_values(dataset, path, location)
        if not _has_ids(dataset, schema):
            check_renumbering(dataset, schema, location)

    in_parallel(check, _leaves(root))


def check_toward_zero(root: HiveRoot, field: PartitionField) -> None:
    """Refuse rows below zero that another writer has cut downward: the newest format looks for
    them elsewhere.
    """
    schema = root.hive.schema
    [source] = field.source_ids
    column = schema.path_of(source)
    assert column is not None
    leaves = root.leaves()[root.hive.spec.id]
    below = leaves.filter(pc.less(leaves.column(field.field_id), 0))

    def check(each: tuple[str, int]) -> None:
        location, value = each
        dataset = root.root.child(location).open_leaf()
        for batch in batches_of(dataset, columns=[column[0]]):
            cut = field.derivation.apply(batch.column(column[0]))
            if pc.any(pc.not_equal(cut, value)).as_py():
                raise PhalanxError(
                    f"Cannot upgrade {root.root}: its partition {location} has numbers in "
                    f"{column[0]!r} that were cut down to {value}, and the newest format cuts "
                    "toward zero: it would look for them in another partition. Import the table "
                    "instead."
                )

    pairs = zip(
        below.column(LOCATION).to_pylist(), below.column(field.field_id).to_pylist(), strict=True
    )
    in_parallel(check, list(pairs))


def _check_manifest(root: Location) -> None:
    """Refuse a manifest that lists tables already: in the newest format all are partitions."""
    others = "object_type = 'table' AND NOT object_id LIKE 'v1$%'"
    manifest = root.own(DIRECTORY).open(cache=new_cache())
    found = table_of(manifest, columns=["object_id"], filter=others)
    if found.num_rows:
        raise PhalanxError(
            f"Cannot upgrade {root}: its manifest lists tables of stock clients, such as "
            f"{found.column(0)[0].as_py()!r}, and the newest format takes partitions only. "
            "Create another table, and append the rows of this one."
        )


def _check_values(dataset: lance.LanceDataset, path: PathValues | None, location: Location) -> None:
    """Refuse a leaf that has a column of its path too, with other values."""
    assert path is not None
    for name in path.values.keys() & set(dataset.schema.names):
        value = path.values[name]
        for stored in pc.unique(table_of(dataset, columns=[name]).column(name)):
            if not stored.equals(value):
                raise PhalanxError(
                    f"Cannot upgrade the partition at {location}: its column {name!r} holds "
                    f"{stored.as_py()!r}, and its path says {value.as_py()!r}. Drop the column "
                    "there: the layout has it in the path only."
                )


def prepare_leaves(root: HiveRoot) -> HiveRoot:
    """Give every leaf all columns, under the field ids of the table; the root that has no others.

    Others may write meanwhile: what they write to such a leaf has all columns too.
    """
    schema = root.hive.schema
    for _ in range(_MOST_ROUNDS):
        behind = [each for each in _leaves(root) if not is_aligned(each[0].open_leaf(), schema)]
        if not behind:
            return root
        in_parallel(lambda each: _prepare(each[0], each[1], schema), behind)
        now = root.latest()
        if not isinstance(now, HiveRoot):
            return root
        root = now
    raise CommitConflict(
        f"Cannot upgrade {root.root}: other writers make leaves faster than they can be prepared. "
        "Try again while fewer write."
    )


def switch(root: HiveRoot, spec: PartitionSpec) -> None:
    """The one step that makes a table of the newest format; another may have done it."""
    properties = Properties(root.hive.schema, {spec.id: spec}, "weak", _salt(root), 0, None)
    leaves = root.leaves()[spec.id]
    locations = iter(leaves.column(LOCATION).to_pylist())
    staged = creation.staged_manifest(root.root, properties)
    keys = root.keys_of_leaves(spec.id, leaves)
    rows = new_partitions(Manifest(root.root, staged), keys, lambda _: next(locations))
    reach(Step.COMMITTING)
    if manifest_properties(root.root) is not None:
        until_won(lambda: _switch_manifest(root.root, rows, properties))
        reach(Step.MANIFEST_CREATED)
        return
    _insert(staged, rows)
    creation.put_in_place(root.root, staged)


def _switch_manifest(root: Location, rows: pa.Table, properties: Properties) -> None:
    """Put the rows into a manifest that is there, and then, in one commit, the properties."""
    where = root.own(DIRECTORY)
    dataset = where.open(cache=new_cache())
    own = table_of(
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
        reach(Step.COLUMNS_CHANGED)
    _insert(where.open(cache=new_cache()), rows)
    reach(Step.MANIFEST_WRITTEN)
    switched: dict[str, str | None] = {**WRITER_FLAG, **properties.to_metadata()}
    where.open(cache=new_cache()).update_metadata(switched)


def _insert(manifest: lance.LanceDataset, rows: pa.Table) -> None:
    """Add the rows that are not there."""
    schema = manifest.schema
    columns = [
        rows.column(field.name).cast(field.type)
        if field.name in rows.column_names
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    merge = manifest.merge_insert("object_id").when_not_matched_insert_all()
    merge.use_index(False).conflict_retries(0).execute(pa.table(columns, schema=schema))


def sweep(root: Location, stated: Mapping[str, str]) -> None:
    """List the leaves that writers of the layout made after the manifest was put together.

    Whoever commits after the switch is told; whoever was just before it relies on this, and its
    rows are out of sight for that moment.
    """
    hive = HiveRoot(root, stated)

    def attempt() -> None:
        manifest = Manifest.open(root)
        spec_id = manifest.properties.spec.id
        known = [leaves.column(LOCATION) for leaves in manifest.leaves().values()]
        listed = pa.chunked_array([chunk for each in known for chunk in each.chunks], pa.string())
        leaves = hive.leaves()[hive.hive.spec.id]
        late = leaves.filter(pc.invert(pc.is_in(leaves.column(LOCATION), listed.combine_chunks())))
        if not late.num_rows:
            return
        keys = hive.keys_of_leaves(spec_id, late)
        if taken := [place for place in manifest.places(keys).tolist() if place >= 0]:
            other = manifest.leaves()[spec_id].column(LOCATION)[taken[0]].as_py()
            raise PhalanxError(
                f"Cannot finish the upgrade of {root}: the partition at {root.child(other)} has "
                f"rows in one of these as well: {', '.join(late.column(LOCATION).to_pylist())}. "
                "Append them with a table of their own, remove the folder, and upgrade again."
            )
        paths = path_values(late, hive.path_columns)
        locations = [root.child(place) for place in late.column(LOCATION).to_pylist()]
        for location, path in zip(locations, paths, strict=True):
            _prepare(location, path, hive.hive.schema)
        places = iter(late.column(LOCATION).to_pylist())
        insert(manifest, new_partitions(manifest, keys, lambda _: next(places)))

    until_won(attempt)


def tidy(root: Location) -> bool:
    """Remove the properties of the layout that was; whether there were any."""
    files = HiveFiles(root)
    found = files.read_properties() is not None
    if found:
        files.remove_properties()
    dataset = root.own(DIRECTORY).open(cache=new_cache())
    if old := [key for key in dataset.metadata if key.startswith(PREFIX)]:
        dataset.update_metadata(dict[str, str | None].fromkeys(old))
        found = True
    if found:
        reach(Step.PROPERTIES_CHANGED)
    return found


def _leaves(root: HiveRoot) -> Iterator[tuple[Location, PathValues | None]]:
    for leaves in root.leaves().values():
        locations = leaves.column(LOCATION).to_pylist()
        for location, path in zip(locations, path_values(leaves, root.path_columns), strict=True):
            yield root.root.child(location), path


def _prepare(location: Location, path: PathValues | None, schema: Schema) -> None:
    assert path is not None
    plain = plain_schema(schema)

    def attempt() -> None:
        dataset = location.open_leaf()
        missing = [name for name in plain.names if name not in dataset.schema.names]
        if not dataset.get_fragments():
            _commit_schema(dataset, schema, location)
        elif missing:
            added = pa.schema([plain.field(name) for name in missing])

            @lance.batch_udf(output_schema=added)
            def constants(batch: pa.RecordBatch) -> pa.RecordBatch:
                arrays = [pa.repeat(path.values[name], batch.num_rows) for name in missing]
                return pa.RecordBatch.from_arrays(arrays, schema=added)

            dataset.add_columns(constants, read_columns=[dataset.schema.names[0]])
            reach(Step.COLUMNS_CHANGED)
        dataset = location.open_leaf()
        if _has_ids(dataset, schema):
            align(location, schema, lambda: None)
        else:
            check_renumbering(dataset, schema, location)
            renumber(dataset, schema, location)
        reach(Step.LEAF_ALIGNED)

    until_won(attempt)


def _commit_schema(dataset: lance.LanceDataset, schema: Schema, location: Location) -> None:
    """Give a leaf without rows the schema as it is."""
    LanceDataset.commit(
        dataset,
        LanceOperation.Project(lance_schema(schema)),
        read_version=dataset.version,
        max_retries=0,
        **location.write_options,
    )


def _has_ids(dataset: lance.LanceDataset, schema: Schema) -> bool:
    """Whether the columns of a leaf have the table's ids already, in whatever order they are."""
    there = schema_of(dataset)
    paths = [there.path_of(number) for number in there.ids]
    return all(
        path is None or schema.path_of(number) == path
        for number, path in zip(there.ids, paths, strict=True)
    )


def _salt(root: HiveRoot) -> str:
    """The same whenever the upgrade is tried: so are the names of the partitions."""
    text = json.dumps([root.root.uri, sorted(root.stated.items())])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
