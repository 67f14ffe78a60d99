"""The state of a table in the Hive-style layout, whose leaves are listed by folders.

Columns are matched by name, and columns of identity fields exist only in the paths. Writes are
weak: each leaf is changed by itself (draft: 5, Atomicity).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import lance
import pyarrow as pa
from lance.fragment import FragmentMetadata

from phalanx.errors import (
    CommitConflict,
    InvalidArgument,
    NotPartitioned,
    PhalanxError,
    StorageFailure,
)
from phalanx.model.schema.grouping import group_rows
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.hive_paths import (
    TABLE_SUFFIX,
    format_folder_name,
    format_path_value,
    parse_path_values,
)
from phalanx.model.specs.hive_properties import HIVE_IS_PARTITIONED, HIVE_PREFIX, HiveProperties
from phalanx.model.specs.partition_key import read_keys
from phalanx.planning.pruning.leaf_columns import LEAF_COLUMNS, LEAF_OBJECT_ID
from phalanx.planning.pruning.prune import Pruning
from phalanx.storage.hive.files import HiveFiles
from phalanx.storage.lance.failures import summarize_error
from phalanx.storage.lance.location import Location, create_session
from phalanx.storage.lance.parallel import map_parallel
from phalanx.storage.lance.scanning import scan_table
from phalanx.storage.lance.schema import list_field_ids
from phalanx.storage.leaf.path_values import check_stored_columns
from phalanx.storage.manifest.leaf_tables import filter_leaves, sort_leaves
from phalanx.storage.manifest.manifest import MANIFEST_DIRECTORY, Manifest
from phalanx.storage.state.naming import SEPARATOR
from phalanx.storage.state.properties import Properties
from phalanx.storage.state.table_state import LeafShape, TableState


@dataclass(frozen=True, slots=True)
class HiveLeafShape:
    """Leaves that store the columns not in their paths; during an upgrade, all columns."""

    schema: Schema
    path_columns: Collection[str]
    # This layout has no strong mode.
    mark: None = None

    def open_newest(self, location: Location) -> lance.LanceDataset:
        """Open the newest version of a leaf."""
        dataset = location.open_leaf()
        check_stored_columns(dataset, self.schema, self.path_columns, location)
        return dataset

    def check(
        self, dataset: lance.LanceDataset, files: Sequence[FragmentMetadata], location: Location
    ) -> None:
        """Refuse files that lack a column of the leaf, because an upgrade added it."""
        # Files list only the fields that have values: of a struct, only its children.
        columns = [set(list_field_ids([field])) for field in dataset.lance_schema.fields()]
        for fragment in files:
            written = {number for file in fragment.files for number in file.fields}
            if not all(column & written for column in columns):
                raise CommitConflict(
                    f"Cannot write to {location}: the table is being upgraded. Write again."
                )


class HiveRoot(TableState):
    """A table in the Hive-style layout, with the leaves that exist when they are first listed."""

    layout = "hive"

    def __init__(
        self,
        root: Location,
        raw_properties: Mapping[str, str],
        overrides: Mapping[str, str] | None = None,
        has_manifest: bool = False,
    ) -> None:
        self.root = replace(root, has_reused_paths=True, table=None)
        self.raw_properties = dict(raw_properties)
        self.overrides = overrides
        self._has_manifest = has_manifest
        self.hive = HiveProperties.from_properties(self.raw_properties, root.uri)
        schema, spec = self.hive.schema, self.hive.spec
        self.properties = Properties(schema, {spec.id: spec}, "weak", "", 0, None)
        self.path_columns = self.hive.path_columns
        self.files = HiveFiles(self.root)
        self._folders: pa.Table | None = None
        self._existing_leaves: pa.Table | None = None

    def load_latest(self) -> TableState:
        """Open the table as it is now, perhaps in another layout."""
        return _open_current(self.root, self.overrides)

    def check_current(self) -> None:
        """Refuse to continue if the table was upgraded or its properties changed."""
        now = self.load_latest()
        if not isinstance(now, HiveRoot) or now.hive != self.hive:
            raise CommitConflict(
                f"Cannot write to {self.root}: it was upgraded, or its properties were changed "
                "meanwhile. Look at the table as it is now, and write again."
            )

    @property
    def shape(self) -> LeafShape:
        """Leaves without the columns in their paths."""
        return HiveLeafShape(self.hive.schema, self.hive.path_columns)

    @property
    def total_partitions(self) -> int:
        """The number of leaf folders."""
        return int(self._list_folders().num_rows)

    def list_leaves(self, pruning: Pruning | None = None) -> dict[int, pa.Table]:
        """Return the leaves that a predicate keeps, sorted by partition values."""
        spec = self.hive.spec
        if pruning is None:
            if self._existing_leaves is None:
                self._existing_leaves = self._filter_existing(self._list_folders())
            return {spec.id: self._existing_leaves}
        (projection,) = pruning.specs
        return {
            spec.id: self._filter_existing(
                filter_leaves(self._list_folders(), projection.filter, spec)
            )
        }

    def locations_for(self, keys: pa.Table) -> list[str]:
        """Return the locations of the leaves with these partition keys."""
        found = []
        columns = [keys.column(field.field_id) for field in self.hive.spec.fields]
        for index in range(keys.num_rows):
            names = [
                format_folder_name(field.field_id, format_path_value(field, column[index]))
                for field, column in zip(self.hive.spec.fields, columns, strict=True)
            ]
            found.append(self.files.to_uri_path("/".join(names) + TABLE_SUFFIX))
        return found

    def _list_folders(self) -> pa.Table:
        """Return every leaf folder, with or without a Lance table in it."""
        if self._folders is None:
            fields = self.hive.spec.fields
            listed = self.files.list_leaves([field.field_id for field in fields])
            listed += self._list_manifest_leaves({path for path, _ in listed})
            paths = [path for path, _ in listed]
            shown = [f"{self.root}/{path}" for path in paths]
            unknown = pa.nulls(len(paths), pa.uint64())
            values = [
                parse_path_values(field, [texts[level] for _, texts in listed], shown)
                for level, field in enumerate(fields)
            ]
            columns = [
                pa.array(paths, pa.string()),
                pa.array(map(self.files.to_uri_path, paths), pa.string()),
                unknown,
                unknown,
                *values,
            ]
            names = [*LEAF_COLUMNS, *(field.field_id for field in fields)]
            self._folders = sort_leaves(pa.table(columns, names=names))
            self._check_unique_keys(self._folders)
        return self._folders

    def _list_manifest_leaves(self, known: Collection[str]) -> list[tuple[str, list[str | None]]]:
        """Return the leaves that stock clients created, which their manifest names like folders."""
        if not self._has_manifest:
            return []
        tables = scan_table(
            self.root.subfolder(MANIFEST_DIRECTORY).open(),
            columns=["object_id", "location"],
            filter="object_type = 'table'",
        )
        keys = [field.field_id for field in self.hive.spec.fields]
        found = []
        for row in tables.to_pylist():
            names = row["object_id"].removesuffix(TABLE_SUFFIX).split(SEPARATOR)
            names[-1] += TABLE_SUFFIX
            texts = self.files.parse_names(names, keys)
            if texts is not None and row["location"] not in known:
                found.append((row["location"], texts))
        return found

    def _check_unique_keys(self, leaves: pa.Table) -> None:
        """Refuse two folders of one partition, such as `month=8` and `month=08`."""
        spec = self.hive.spec
        keys = self.leaf_keys(spec.id, leaves)
        if group_rows(keys, keys.num_rows).count == keys.num_rows:
            return
        seen: dict[object, str] = {}
        for key, path in zip(
            read_keys(keys), leaves.column(LEAF_OBJECT_ID).to_pylist(), strict=True
        ):
            if (other := seen.setdefault(key, path)) != path:
                raise PhalanxError(
                    f"Cannot read {self.root}: {other} and {path} are the same partition "
                    f"{key.values}. Append the rows of one to the other, and remove it."
                )

    def _filter_existing(self, leaves: pa.Table) -> pa.Table:
        """Return the leaves whose folder has a Lance table."""
        found = map_parallel(self.files.has_versions, leaves.column(LEAF_OBJECT_ID).to_pylist())
        return leaves if all(found) else leaves.filter(pa.array(found, pa.bool_()))


def open_table_state(root: Location, overrides: Mapping[str, str] | None = None) -> TableState:
    """Open the table at a location, in any layout.

    `overrides` are properties of the Hive-style layout that override the stored ones.
    """
    found = _open_current(root, overrides)
    if overrides and isinstance(found, Manifest):
        raise InvalidArgument(
            f"Cannot open {root} with properties: it has the namespace layout, and they are for "
            "the hive layout. Leave them out."
        )
    return found


def _open_current(root: Location, overrides: Mapping[str, str] | None) -> TableState:
    try:
        return Manifest.open(replace(root, has_reused_paths=False))
    except NotPartitioned:
        in_manifest = read_manifest_properties(root)
        stored = in_manifest or HiveFiles(root).read_properties() or {}
        raw_properties = {**stored, **(overrides or {})}
        if HIVE_IS_PARTITIONED not in raw_properties:
            raise
        return HiveRoot(root, raw_properties, overrides, in_manifest is not None)


def read_stored_properties(root: Location) -> dict[str, str] | None:
    """Read the Hive-style properties from the manifest if there is one, else from their file."""
    return read_manifest_properties(root) or HiveFiles(root).read_properties()


def read_manifest_properties(root: Location) -> dict[str, str] | None:
    """Read the Hive-style properties of a manifest; None if there is no manifest."""
    try:
        metadata = root.subfolder(MANIFEST_DIRECTORY).open(session=create_session()).metadata
    except (OSError, ValueError) as error:
        if "not found" not in str(error).lower():
            raise StorageFailure(f"Cannot open {root}: {summarize_error(error)}") from None
        return None
    return {key: text for key, text in metadata.items() if key.startswith(HIVE_PREFIX)}
