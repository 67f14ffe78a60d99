"""Verification: check that every file a table needs exists and is unchanged since its write."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias, overload

import lance
import pyarrow as pa
from lance.file import LanceFileReader
from lance.fragment import FragmentMetadata

from phalanx.arguments import ProgressCallback
from phalanx.errors import PhalanxError
from phalanx.model.schema.grouping import find_positions
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.partition_key import group_by_partition, read_keys
from phalanx.model.specs.spec import PartitionSpec
from phalanx.planning.formatting import format_count
from phalanx.planning.pruning.leaf_columns import LEAF_LOCATION, LEAF_OBJECT_ID
from phalanx.storage.changes.updates import Updates
from phalanx.storage.cleanup.expiry import plan_expiry
from phalanx.storage.cleanup.unlisted import list_main_versions
from phalanx.storage.commit.history_rows import list_snapshots
from phalanx.storage.lance.checksums import (
    TableFiles,
    checksum_path,
    checksummed_path,
    data_file_paths,
    deletion_file_path,
    record_missing,
    version_file_paths,
)
from phalanx.storage.lance.failures import translate_read_errors
from phalanx.storage.lance.files import Folder, StoredFile
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.parallel import map_parallel
from phalanx.storage.lance.scanning import scan_table
from phalanx.storage.leaf.path_values import PathValues, list_path_values
from phalanx.storage.leaf.reading import LeafScan
from phalanx.storage.manifest.changes import write_properties
from phalanx.storage.manifest.dropped import include_dropped
from phalanx.storage.manifest.manifest import MANIFEST_DIRECTORY, Manifest
from phalanx.storage.manifest.pins import branch_of
from phalanx.storage.state.table_state import TableState
from phalanx.table.history import snapshots as history

DamageKind: TypeAlias = Literal[
    "manifest",
    "missing-table",
    "missing-file",
    "wrong-size",
    "wrong-checksum",
    "no-checksum",
    "unreadable",
    "wrong-row-count",
    "wrong-partition",
    "index",
    "updates",
]
_LOGGER = logging.getLogger("phalanx.table")
_BEGINNING_OF_TIME = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Damage:
    """A difference between what was written and what is stored.

    Attributes:
        kind: What differs, such as "missing-file" or "wrong-checksum".
        message: The difference in a sentence, with what to do about it.
        location: The path or URI of the Lance table affected.
        path: The file in it; None if the finding is not about a single file.
    """

    kind: DamageKind
    message: str
    location: str
    path: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as JSON values."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


@dataclass(frozen=True, slots=True, eq=False)
class Verified(Sequence[Damage]):
    """The findings of a verification, empty if all is well, and how much was checked.

    Attributes:
        findings: The differences found.
        tables: The number of Lance tables checked: the manifest and the leaves.
        versions: The number of their versions.
        files: The number of files.
        bytes: The size of these files.
        checksums: The number of files that were compared with a checksum.
        rows: The number of rows read; None without `deep`.
    """

    findings: tuple[Damage, ...]
    tables: int
    versions: int
    files: int
    bytes: int
    checksums: int
    rows: int | None

    @overload
    def __getitem__(self, index: int) -> Damage: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Damage, ...]: ...
    def __getitem__(self, index: int | slice) -> Damage | tuple[Damage, ...]:
        return self.findings[index]

    def __len__(self) -> int:
        return len(self.findings)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Verified):
            return self.findings == other.findings
        return isinstance(other, list | tuple) and list(self.findings) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def to_dict(self) -> dict[str, Any]:
        """Return the findings as JSON values."""
        return {
            "findings": [each.to_dict() for each in self.findings],
            "tables": self.tables,
            "versions": self.versions,
            "files": self.files,
            "bytes": self.bytes,
            "checksums": self.checksums,
            "rows": self.rows,
        }

    def __str__(self) -> str:
        checked = [
            format_count(self.tables, "table"),
            format_count(self.versions, "version"),
            f"{format_count(self.files, 'file')} ({self.checksums:,} by their checksums)",
        ]
        if self.rows is not None:
            checked.append(format_count(self.rows, "row"))
        verdict = (
            "all is well" if not self.findings else format_count(len(self.findings), "finding")
        )
        lines = [*map(str, self.findings), f"{verdict}: {', '.join(checked)}"]
        if self.rows is None:
            lines.append("Not checked: the rows (use deep).")
        if without := self.files - self.checksums:
            lines.append(
                f"{format_count(without, 'file')} without a checksum: a changed value in one would "
                "go unnoticed (see set_checksums; the hive layout has none)."
            )
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class _StoredTable:
    """A Lance table of the namespace and the versions of it that snapshots read.

    Version None is the newest. The manifest has no spec and no key.
    """

    location: Location
    versions: tuple[int | None, ...]
    spec: PartitionSpec | None = None
    key: pa.Table | None = None
    path: PathValues | None = None


@dataclass(slots=True)
class _TableReport:
    """The findings and counts of one Lance table."""

    findings: list[Damage]
    versions: int = 0
    files: int = 0
    bytes: int = 0
    checksums: int = 0
    rows: int = 0


def verify(
    state: TableState, deep: bool = False, progress: ProgressCallback | None = None
) -> Verified:
    """Check every file that a retained snapshot needs; with `deep`, also read every row."""
    findings = verify_manifest(state.root)
    tables: list[_StoredTable] = []
    if not findings:
        tables, findings = _list_tables(state)
    schema = state.properties.schema
    done, lock = 0, threading.Lock()

    def verify_table(table: _StoredTable) -> _TableReport:
        nonlocal done
        found = _TableVerifier(table, schema, deep).verify()
        with lock:
            done += 1
            if progress is not None:
                progress(done, len(tables))
        return found

    reports = map_parallel(verify_table, tables)
    return Verified(
        (*findings, *(each for table in reports for each in table.findings)),
        len(reports),
        sum(each.versions for each in reports),
        sum(each.files for each in reports),
        sum(each.bytes for each in reports),
        sum(each.checksums for each in reports),
        sum(each.rows for each in reports) if deep else None,
    )


def verify_manifest(root: Location) -> list[Damage]:
    """Check the files of the manifest that have a checksum, without opening the manifest."""
    location = root.subfolder(MANIFEST_DIRECTORY)
    files = {file.path for file in Folder(location).list_files()} if _exists(location) else set()
    recorded = [
        path for each in files if (path := checksummed_path(each)) is not None and path in files
    ]
    store = TableFiles(location) if recorded else None

    def check(path: str) -> Damage | None:
        assert store is not None
        return _check_checksum(store, path)

    return [each for each in map_parallel(check, sorted(recorded)) if each is not None]


def _exists(location: Location) -> bool:
    try:
        return bool(Folder(location).list_folders())
    except PhalanxError:
        return False


def _check_checksum(store: TableFiles, path: str) -> Damage | None:
    location = str(store.location)
    try:
        wrong = store.check(path)
    except PhalanxError as error:
        return Damage("unreadable", str(error), location, path)
    if wrong is None:
        return None
    return Damage(
        "wrong-checksum", f"{location}/{path} is damaged: {wrong}. {_RESTORE}", location, path
    )


_RESTORE = "Restore it from a copy."


def _list_tables(state: TableState) -> tuple[list[_StoredTable], list[Damage]]:
    """Return all tables with the versions that are read, and what is wrong with the history."""
    needed: Mapping[str, set[int]] = {}
    findings: list[Damage] = []
    tables: list[_StoredTable] = []
    whole = state
    if isinstance(state, Manifest):
        versions = {state.version}
        if state.properties.mode == "strong":
            whole = include_dropped(state)
            expiry = plan_expiry(state, _BEGINNING_OF_TIME)
            needed = expiry.versions
            findings += _check_updates(state.root, expiry.updates)
            snapshot_versions, lost = _find_manifest_versions(state)
            versions |= snapshot_versions
            findings += lost
        tables.append(
            _StoredTable(state.root.subfolder(MANIFEST_DIRECTORY), tuple(sorted(versions)))
        )
    schema, versions_now = state.properties.schema, whole.leaf_versions()
    for number, leaves in whole.list_leaves().items():
        spec = state.properties.specs[number]
        fields = tuple(
            field
            for field in spec.fields
            if all(schema.path_of(source) is not None for source in field.source_ids)
        )
        dropped_ids = [field.field_id for field in spec.fields if field not in fields]
        keys = whole.leaf_keys(number, leaves).drop_columns(dropped_ids)
        paths = list_path_values(leaves, state.path_columns)
        names, locations = (
            leaves.column(name).to_pylist() for name in (LEAF_OBJECT_ID, LEAF_LOCATION)
        )
        for row, (name, location, path) in enumerate(zip(names, locations, paths, strict=True)):
            read = {versions_now.get(name)}
            # Versions of a branch are in its own folder.
            if branch_of(location.partition("/tree/")[0], location) is None:
                read |= needed.get(name, set())
            if len(read) > 1:
                read.discard(None)
            tables.append(
                _StoredTable(
                    state.root.leaf(location),
                    tuple(sorted(read, key=lambda version: version or 0)),
                    dataclasses.replace(spec, fields=fields),
                    keys.slice(row, 1),
                    path,
                )
            )
    return tables, findings


def _check_updates(root: Location, names: frozenset[str]) -> list[Damage]:
    def check(name: str) -> Damage | None:
        try:
            Updates.read(root, name)
        except PhalanxError as error:
            return Damage("updates", str(error), str(root), name)
        return None

    return [each for each in map_parallel(check, sorted(names)) if each is not None]


def _find_manifest_versions(manifest: Manifest) -> tuple[set[int], list[Damage]]:
    """Return the versions of the manifest that snapshots are read from."""

    def find(number: int) -> int | Damage:
        try:
            return history.open_snapshot(manifest, number).version
        except PhalanxError as error:
            return Damage("manifest", f"Snapshot {number}: {error}", str(manifest.root))

    found = map_parallel(find, [int(each["id"]) for each in list_snapshots(manifest)])
    return (
        {each for each in found if isinstance(each, int)},
        [each for each in found if isinstance(each, Damage)],
    )


class _TableVerifier:
    """The verification of one Lance table."""

    def __init__(self, table: _StoredTable, schema: Schema, deep: bool) -> None:
        self.table, self.schema, self.deep = table, schema, deep
        # Read from storage, never from a cache.
        self.location = dataclasses.replace(table.location, has_reused_paths=True)
        self.report = _TableReport([])
        self.files: dict[str, int] = {}
        self.store = TableFiles(table.location)
        # The files checked so far with their results, and the fragments read so far.
        self.is_sound_by_path: dict[str, bool] = {}
        self.checked_fragments: set[tuple[object, ...]] = set()

    def verify(self) -> _TableReport:
        """Check everything that the versions of the table need."""
        try:
            listed = Folder(self.location).list_files()
        except PhalanxError as error:
            self._add_finding("missing-table", str(error))
            return self.report
        self.files = {file.path: file.bytes for file in listed}
        newest = max(list_main_versions(listed), default=None)
        self._check_newest_version(listed, newest or 0)
        for version in self.table.versions:
            wanted = newest if version is None else version
            if wanted is None:
                self._add_finding("missing-table", f"{self.location} has no version. {_RESTORE}")
                continue
            self.report.versions += 1
            self._check_version(wanted, is_last=version == self.table.versions[-1])
        return self.report

    def _check_newest_version(self, listed: Sequence[StoredFile], newest: int) -> None:
        """Report a lost newest version: Lance would silently read the one before it."""
        recorded = list_main_versions(
            dataclasses.replace(file, path=path)
            for file in listed
            if (path := checksummed_path(file.path)) is not None
        )
        known = max([*recorded, self.store.read_version_hint()])
        if known > newest:
            path = version_file_paths(known)[0]
            self._add_finding(
                "missing-file",
                f"Version {known} of {self.location} is gone, so readers see version {newest}. "
                f"{_RESTORE}",
                path,
            )

    def _check_version(self, version: int, is_last: bool) -> None:
        existing = [path for path in version_file_paths(version) if path in self.files]
        if not existing:
            path = version_file_paths(version)[0]
            self._add_finding(
                "missing-file", f"Version {version} of {self.location} is gone.", path
            )
            return
        if not self._is_sound(existing[0], None):
            return
        try:
            with translate_read_errors(f"open {self.location} in version {version}"):
                dataset = self.location.open_leaf(version)
                fragments = [each.metadata for each in dataset.get_fragments()]
                indexes = list(dataset.describe_indices()) if dataset.has_index else []
        except PhalanxError as error:
            self._add_finding("unreadable", str(error), existing[0])
            return
        sound = [fragment for fragment in fragments if self._has_sound_files(fragment)]
        for fragment in sound:
            self._check_fragment(dataset, fragment)
        for index in indexes:
            # The statistics of an index do not count deleted rows.
            self._check_index(dataset, fragments, index, is_last and len(sound) == len(fragments))

    # ── files ────────────────────────────────────────────────────────────────────────────────

    def _has_sound_files(self, fragment: FragmentMetadata) -> bool:
        """Return whether all files of a fragment exist with the right size, content and rows."""
        sizes = {f"data/{file.path}": file.file_size_bytes for file in fragment.files}
        all_sound = True
        for path in data_file_paths([fragment]):
            first = path not in self.is_sound_by_path
            is_sound = self._is_sound(path, sizes.get(path))
            if is_sound and first:
                self.is_sound_by_path[path] = is_sound = self._is_sound_data_file(path, fragment)
            all_sound &= is_sound
        if (path := deletion_file_path(fragment) or "") and self._is_sound(path, None):
            self.is_sound_by_path[path] = self._is_sound_deletion_file(path, fragment)
        return all_sound and self.is_sound_by_path.get(path, True)

    def _is_sound_deletion_file(self, path: str, fragment: FragmentMetadata) -> bool:
        """Return whether a deletion file is valid: Lance aborts the process on some damage."""
        if not path.endswith(".arrow"):
            return True
        try:
            with translate_read_errors(f"read {self.location}/{path}"):
                rows = pa.ipc.open_file(pa.py_buffer(self.store.read_bytes(path))).read_all()
                rows.validate(full=True)
        except PhalanxError as error:
            self._add_finding("unreadable", str(error), path)
            return False
        if rows.num_rows != fragment.num_deletions:
            self._add_finding(
                "wrong-row-count",
                f"{self.location}/{path} deletes {format_count(rows.num_rows, 'row')}, expected "
                f"{fragment.num_deletions:,}. {_RESTORE}",
                path,
            )
            return False
        return True

    def _is_sound(self, path: str, size: int | None) -> bool:
        """Return whether a file exists with the right size and, if it has a checksum, content."""
        if path in self.is_sound_by_path:
            return self.is_sound_by_path[path]
        self.report.files += 1
        self.report.bytes += self.files.get(path, 0)
        self.is_sound_by_path[path] = False
        if path not in self.files:
            self._add_finding("missing-file", f"{self.location}/{path} is gone. {_RESTORE}", path)
        elif size not in (None, 0, self.files[path]):
            self._add_finding(
                "wrong-size",
                f"{self.location}/{path} has {self.files[path]:,} bytes, expected {size:,}. "
                f"{_RESTORE}",
                path,
            )
        elif checksum_path(path) in self.files:
            self.report.checksums += 1
            damage = _check_checksum(self.store, path)
            if damage is None:
                self.is_sound_by_path[path] = True
            else:
                self.report.findings.append(damage)
        else:
            self.is_sound_by_path[path] = True
            # Lance reads version files as a whole, and stock clients write no checksums of them.
            if self.location.checksums and not path.startswith("_versions/"):
                self._add_finding(
                    "no-checksum",
                    f"{self.location}/{path} has no checksum: its writer does not write checksums, "
                    "or died before it did. Write the missing ones with set_checksums(True).",
                    path,
                )
        return self.is_sound_by_path[path]

    def _is_sound_data_file(self, path: str, fragment: FragmentMetadata) -> bool:
        try:
            with translate_read_errors(f"open {self.location}/{path}"):
                reader = LanceFileReader(
                    f"{self.location.uri}/{path}", storage_options=self.location.storage_options
                )
                rows = int(reader.metadata().num_rows)
        except PhalanxError as error:
            self._add_finding("unreadable", str(error), path)
            return False
        if rows != fragment.physical_rows:
            self._add_finding(
                "wrong-row-count",
                f"{self.location}/{path} has {format_count(rows, 'row')}, expected "
                f"{fragment.physical_rows:,}. {_RESTORE}",
                path,
            )
            return False
        return True

    def _check_index(
        self,
        dataset: lance.LanceDataset,
        fragments: Sequence[FragmentMetadata],
        index: Any,
        is_last: bool,
    ) -> None:
        """Check the files of an index and, with `deep` in the newest version, its row count."""
        all_sound = True
        for segment in index.segments:
            folder = f"_indices/{segment.uuid}/"
            if segment.base_id is not None:
                continue
            paths = [path for path in self.files if path.startswith(folder)]
            size = sum(self.files[path] for path in paths)
            if not paths or (segment.size_bytes and size != segment.size_bytes):
                all_sound = False
                if folder not in self.is_sound_by_path:
                    self._add_finding(
                        "index",
                        f"The index {index.name} of {self.location} has {size:,} bytes in "
                        f"{folder}, expected {segment.size_bytes or 0:,}. Drop the index and "
                        "create it again.",
                        folder,
                    )
                self.is_sound_by_path[folder] = False
            for path in paths:
                all_sound &= self._is_sound(path, None)
        if not (self.deep and is_last and all_sound):
            return
        try:
            with translate_read_errors(f"read the index {index.name} of {self.location}"):
                stats = dataset.stats.index_stats(index.name)
                known = int(stats["num_indexed_rows"]) + int(stats["num_unindexed_rows"])
        except PhalanxError as error:
            self._add_finding("index", str(error))
            return
        if known != sum(each.num_rows for each in fragments):
            self._add_finding(
                "index",
                f"The index {index.name} of {self.location} counts {format_count(known, 'row')}, "
                f"expected {sum(each.num_rows for each in fragments):,}. Drop it and create it "
                "again.",
            )

    # ── rows ─────────────────────────────────────────────────────────────────────────────────

    def _check_fragment(self, dataset: lance.LanceDataset, fragment: FragmentMetadata) -> None:
        """Check which rows of a fragment are deleted; with `deep`, read all of them."""
        contents = (*data_file_paths([fragment]), deletion_file_path(fragment))
        if contents in self.checked_fragments:
            return
        self.checked_fragments.add(contents)
        try:
            if self.deep and self.table.spec is not None:
                rows = self._check_rows(dataset.version, fragment)
                self.report.rows += rows
            elif self.deep or fragment.deletion_file is not None:
                chosen = [dataset.get_fragment(fragment.id)]
                columns: list[str] | None = None if self.deep else []
                found = scan_table(
                    dataset, columns=columns, fragments=chosen, with_row_address=True
                )
                with translate_read_errors(f"read {self.location}"):
                    found.validate(full=True)
                rows = found.num_rows
            else:
                return
        except PhalanxError as error:
            self._add_finding("unreadable", f"Fragment {fragment.id}: {error}", contents[0])
            return
        if rows != fragment.num_rows:
            self._add_finding(
                "wrong-row-count",
                f"Fragment {fragment.id} of version {dataset.version} of {self.location} has "
                f"{format_count(rows, 'row')}, expected {fragment.num_rows:,}. {_RESTORE}",
                contents[0],
            )

    def _check_rows(self, version: int, fragment: FragmentMetadata) -> int:
        table, rows = self.table, 0
        assert table.spec is not None
        assert table.key is not None
        scan = LeafScan(
            self.location,
            version,
            self.schema,
            self.schema.names,
            fragments=(fragment.id,),
            path=table.path,
        )
        is_reported = False
        for batch in scan.read_batches():
            rows += batch.num_rows
            with translate_read_errors(f"read {self.location}"):
                batch.validate(full=True)
                keys = group_by_partition(table.spec, batch, self.schema).keys
                misplaced = find_positions(keys, table.key) < 0
            if misplaced.any() and not is_reported:
                is_reported = True
                first, *_ = read_keys(keys.filter(pa.array(misplaced)))
                [own] = read_keys(table.key)
                self._add_finding(
                    "wrong-partition",
                    f"Fragment {fragment.id} of {self.location} has rows of the partition "
                    f"{first.values}, expected only {own.values}. A scan that prunes misses them: "
                    "delete them there and append them again.",
                    next(data_file_paths([fragment]), None),
                )
        return rows

    def _add_finding(self, kind: DamageKind, message: str, path: str | None = None) -> None:
        self.report.findings.append(Damage(kind, message, str(self.location), path))


def list_stored_versions(state: TableState) -> Iterator[tuple[Location, int | None]]:
    """Yield every table of a namespace with every version of it that is read."""
    for table in _list_tables(state)[0]:
        for version in table.versions:
            yield table.location, version


def set_checksums(load_manifest: Callable[[], Manifest], enabled: bool) -> int:
    """Turn checksums on or off; on, write those that are missing and return their number."""
    now = load_manifest()
    if now.properties.checksums != enabled:
        write_properties(now, replace(now.properties, checksums=bool(enabled)))
        _LOGGER.info("Turned checksums of %s %s", now.root, "on" if enabled else "off")
    if not enabled:
        return 0

    def record(versions: list[tuple[Location, int | None]]) -> int:
        # Sequentially, because versions of a table share files.
        return sum(
            record_missing(location, location.open_leaf(each)) for location, each in versions
        )

    # Writers that start now see the property and write checksums themselves.
    by_table: defaultdict[str, list[tuple[Location, int | None]]] = defaultdict(list)
    for location, version in list_stored_versions(load_manifest()):
        by_table[location.uri].append((location, version))
    return sum(map_parallel(record, by_table.values()))
