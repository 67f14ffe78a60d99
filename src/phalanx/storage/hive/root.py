"""The Hive-style layout: leaves that folders list, and no manifest does.

Its columns go by their names, and those of identity fields are in the paths only. It is written
in weak mode: each leaf is committed for itself (draft: 5, Atomicity).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import lance
import pyarrow as pa
from lance.fragment import FragmentMetadata

from phalanx.errors import CommitConflict, NotPartitioned, PhalanxError, StorageFailure
from phalanx.model.hive_names import TABLE_SUFFIX, folder_name
from phalanx.model.schema.grouping import group
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.hive_paths import text_in_path, values_in_paths
from phalanx.model.specs.hive_properties import IS_PARTITIONED, PREFIX, HiveProperties
from phalanx.model.specs.partition_key import keys_of
from phalanx.planning.pruning.prune import Pruning
from phalanx.planning.pruning.scan_plan import LEAF_COLUMNS, OBJECT_ID
from phalanx.storage.hive.files import HiveFiles
from phalanx.storage.lance.failures import plain_reason
from phalanx.storage.lance.location import Location, new_cache
from phalanx.storage.lance.parallel import in_parallel
from phalanx.storage.lance.scanning import table_of
from phalanx.storage.lance.schema import all_ids
from phalanx.storage.leaf.path_values import check_stored
from phalanx.storage.manifest.leaf_tables import filtered, in_order
from phalanx.storage.manifest.manifest import DIRECTORY, Manifest
from phalanx.storage.state.naming import SEPARATOR
from phalanx.storage.state.properties import Properties
from phalanx.storage.state.table_state import LeafListing, LeafShape


@dataclass(frozen=True, slots=True)
class StoredColumns:
    """Leaves that hold the columns which are not in their paths; while they are upgraded all."""

    schema: Schema
    in_path: Collection[str]
    # There is no strong mode in this layout.
    mark: None = None

    def opened(self, location: Location) -> lance.LanceDataset:
        """The newest version of a leaf."""
        dataset = location.open_leaf()
        check_stored(dataset, self.schema, self.in_path, location)
        return dataset

    def check(
        self, dataset: lance.LanceDataset, files: Sequence[FragmentMetadata], location: Location
    ) -> None:
        """Refuse files that lack a column which the leaf has: an upgrade adds some."""
        # Files list those fields that hold values: of a struct, say, only what is inside.
        columns = [set(all_ids([field])) for field in dataset.lance_schema.fields()]
        for fragment in files:
            written = {number for file in fragment.files for number in file.fields}
            if not all(column & written for column in columns):
                raise CommitConflict(
                    f"Cannot write to {location}: the table is being upgraded. Write again."
                )


class HiveRoot(LeafListing):
    """The leaves of a table in the Hive-style layout, as they are when they are first asked for."""

    layout = "hive"

    def __init__(
        self,
        root: Location,
        stated: Mapping[str, str],
        overrides: Mapping[str, str] | None = None,
        has_manifest: bool = False,
    ) -> None:
        self.root = replace(root, has_reused_paths=True, table=None)
        self.stated = dict(stated)
        self.overrides = overrides
        self._has_manifest = has_manifest
        self.hive = HiveProperties.read(self.stated, root.uri)
        schema, spec = self.hive.schema, self.hive.spec
        self.properties = Properties(schema, {spec.id: spec}, "weak", "", 0, None)
        self.path_columns = self.hive.path_columns
        self.files = HiveFiles(self.root)
        self._listed: pa.Table | None = None
        self._whole: pa.Table | None = None

    def latest(self) -> LeafListing:
        """The table as it is now: perhaps another layout."""
        return _current(self.root, self.overrides)

    def check_current(self) -> None:
        """Refuse to go on with a table that was upgraded, or has other properties."""
        now = self.latest()
        if not isinstance(now, HiveRoot) or now.hive != self.hive:
            raise CommitConflict(
                f"Cannot write to {self.root}: it was upgraded, or its properties were changed "
                "meanwhile. Look at the table as it is now, and write again."
            )

    @property
    def shape(self) -> LeafShape:
        """Leaves without the columns in their paths."""
        return StoredColumns(self.hive.schema, self.hive.path_columns)

    @property
    def total_partitions(self) -> int:
        """How many leaves there are."""
        return int(self._all().num_rows)

    def leaves(self, pruning: Pruning | None = None) -> dict[int, pa.Table]:
        """The leaves that a predicate keeps, in the order of their values."""
        spec = self.hive.spec
        if pruning is None:
            if self._whole is None:
                self._whole = self._existing(self._all())
            return {spec.id: self._whole}
        (projection,) = pruning.specs
        return {spec.id: self._existing(filtered(self._all(), projection.filter, spec))}

    def new_leaves(self, keys: pa.Table) -> list[str]:
        """The locations of the leaves with these partition keys."""
        found = []
        columns = [keys.column(field.field_id) for field in self.hive.spec.fields]
        for place in range(keys.num_rows):
            names = [
                folder_name(field.field_id, text_in_path(field, column[place]))
                for field, column in zip(self.hive.spec.fields, columns, strict=True)
            ]
            found.append(self.files.uri_path("/".join(names) + TABLE_SUFFIX))
        return found

    def _all(self) -> pa.Table:
        """Every folder of a leaf, whether there is a table in it or not."""
        if self._listed is None:
            fields = self.hive.spec.fields
            listed = self.files.leaves([field.field_id for field in fields])
            listed += self._in_manifest({path for path, _ in listed})
            paths = [path for path, _ in listed]
            shown = [f"{self.root}/{path}" for path in paths]
            unknown = pa.nulls(len(paths), pa.uint64())
            values = [
                values_in_paths(field, [texts[level] for _, texts in listed], shown)
                for level, field in enumerate(fields)
            ]
            columns = [
                pa.array(paths, pa.string()),
                pa.array(map(self.files.uri_path, paths), pa.string()),
                unknown,
                unknown,
                *values,
            ]
            names = [*LEAF_COLUMNS, *(field.field_id for field in fields)]
            self._listed = in_order(pa.table(columns, names=names))
            self._check_keys(self._listed)
        return self._listed

    def _in_manifest(self, known: Collection[str]) -> list[tuple[str, list[str | None]]]:
        """The leaves that stock clients have made: their manifest names them like folders."""
        if not self._has_manifest:
            return []
        tables = table_of(
            self.root.own(DIRECTORY).open(),
            columns=["object_id", "location"],
            filter="object_type = 'table'",
        )
        keys = [field.field_id for field in self.hive.spec.fields]
        found = []
        for row in tables.to_pylist():
            names = row["object_id"].removesuffix(TABLE_SUFFIX).split(SEPARATOR)
            names[-1] += TABLE_SUFFIX
            texts = self.files.values(names, keys)
            if texts is not None and row["location"] not in known:
                found.append((row["location"], texts))
        return found

    def _check_keys(self, leaves: pa.Table) -> None:
        """Refuse two folders of one partition, such as `month=8` and `month=08`."""
        spec = self.hive.spec
        keys = self.keys_of_leaves(spec.id, leaves)
        if group(keys, keys.num_rows).count == keys.num_rows:
            return
        seen: dict[object, str] = {}
        for key, path in zip(keys_of(keys), leaves.column(OBJECT_ID).to_pylist(), strict=True):
            if (other := seen.setdefault(key, path)) != path:
                raise PhalanxError(
                    f"Cannot read {self.root}: {other} and {path} are the same partition "
                    f"{key.values}. Append the rows of one to the other, and remove it."
                )

    def _existing(self, leaves: pa.Table) -> pa.Table:
        """The leaves in which there is a table."""
        found = in_parallel(self.files.has_version, leaves.column(OBJECT_ID).to_pylist())
        return leaves if all(found) else leaves.filter(pa.array(found, pa.bool_()))


def open_root(root: Location, overrides: Mapping[str, str] | None = None) -> LeafListing:
    """The table at a location, in whichever layout it is.

    `overrides` are properties of the Hive-style layout that count instead of those stored.
    """
    found = _current(root, overrides)
    if overrides and isinstance(found, Manifest):
        raise PhalanxError(
            f"Cannot open {root} with properties: it has the namespace layout, and they are for "
            "the hive layout. Leave them out."
        )
    return found


def _current(root: Location, overrides: Mapping[str, str] | None) -> LeafListing:
    try:
        return Manifest.open(replace(root, has_reused_paths=False))
    except NotPartitioned:
        in_manifest = manifest_properties(root)
        stored = in_manifest or HiveFiles(root).read_properties() or {}
        stated = {**stored, **(overrides or {})}
        if IS_PARTITIONED not in stated:
            raise
        return HiveRoot(root, stated, overrides, in_manifest is not None)


def stored_properties(root: Location) -> dict[str, str] | None:
    """The properties of the Hive-style layout: of the manifest if there is one, else of a file."""
    return manifest_properties(root) or HiveFiles(root).read_properties()


def manifest_properties(root: Location) -> dict[str, str] | None:
    """Those among the properties of a manifest that are of the Hive-style layout."""
    try:
        metadata = root.own(DIRECTORY).open(cache=new_cache()).metadata
    except (OSError, ValueError) as error:
        if "not found" not in str(error).lower():
            raise StorageFailure(f"Cannot open {root}: {plain_reason(error)}") from None
        return None
    return {key: text for key, text in metadata.items() if key.startswith(PREFIX)}
