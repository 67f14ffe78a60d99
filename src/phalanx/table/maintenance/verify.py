"""Verification: whether everything that a table needs is there, and is what was written."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias, overload

import lance
import pyarrow as pa
from lance.file import LanceFileReader
from lance.fragment import FragmentMetadata

from phalanx.errors import PhalanxError
from phalanx.model.schema.grouping import positions
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.partition_key import keyed, keys_of
from phalanx.model.specs.spec import PartitionSpec
from phalanx.planning.pruning.scan_plan import LOCATION, OBJECT_ID, counted
from phalanx.storage.changes.updates import Updates
from phalanx.storage.cleanup.expiry import expired
from phalanx.storage.cleanup.unlisted import main_versions
from phalanx.storage.commit.history_rows import snapshots_in
from phalanx.storage.lance.checksums import (
    TableFiles,
    data_files,
    deletion_file,
    file_of,
    path_of,
    version_files,
)
from phalanx.storage.lance.failures import reading
from phalanx.storage.lance.files import Folder, StoredFile
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.parallel import in_parallel
from phalanx.storage.lance.scanning import table_of
from phalanx.storage.leaf.path_values import PathValues, path_values
from phalanx.storage.leaf.reading import LeafScan
from phalanx.storage.manifest.dropped import with_dropped
from phalanx.storage.manifest.manifest import DIRECTORY, Manifest
from phalanx.storage.manifest.pins import branch_of
from phalanx.storage.state.table_state import LeafListing
from phalanx.table.history import snapshots as history

Kind: TypeAlias = Literal[
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
Progress: TypeAlias = Callable[[int, int], None]
_NOTHING_EXPIRED = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Damage:
    """Something that is not as it was written: in which table of the namespace, and where.

    `path` is that of the file, where it is about one.
    """

    kind: Kind
    message: str
    location: str
    path: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The finding as JSON has it."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


@dataclass(frozen=True, slots=True, eq=False)
class Verified(Sequence[Damage]):
    """What was found: nothing where all is well; and how much was looked at."""

    findings: tuple[Damage, ...]
    tables: int
    versions: int
    files: int
    bytes: int
    checksums: int
    rows: int | None

    @overload
    def __getitem__(self, place: int) -> Damage: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Damage, ...]: ...
    def __getitem__(self, place: int | slice) -> Damage | tuple[Damage, ...]:
        return self.findings[place]

    def __len__(self) -> int:
        return len(self.findings)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Verified):
            return self.findings == other.findings
        return isinstance(other, list | tuple) and list(self.findings) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def to_dict(self) -> dict[str, Any]:
        """The findings as JSON has them."""
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
        looked = [
            counted(self.tables, "table"),
            counted(self.versions, "version"),
            f"{counted(self.files, 'file')} ({self.checksums:,} by their checksums)",
        ]
        if self.rows is not None:
            looked.append(counted(self.rows, "row"))
        verdict = "all is well" if not self.findings else counted(len(self.findings), "finding")
        lines = [*map(str, self.findings), f"{verdict}: {', '.join(looked)}"]
        if self.rows is None:
            lines.append("Not looked at: the rows (deep).")
        if without := self.files - self.checksums:
            lines.append(
                f"{counted(without, 'file')} without a checksum: another value in one would not be "
                "noticed (set_checksums; the hive layout has none)."
            )
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class _Stored:
    """A Lance table of the namespace, and the versions of it that are read; None is the newest.

    The manifest itself has no key.
    """

    location: Location
    versions: tuple[int | None, ...]
    spec: PartitionSpec | None = None
    key: pa.Table | None = None
    path: PathValues | None = None


@dataclass(slots=True)
class _Looked:
    """What one table showed."""

    findings: list[Damage]
    versions: int = 0
    files: int = 0
    bytes: int = 0
    checksums: int = 0
    rows: int = 0


def verify(listing: LeafListing, deep: bool = False, progress: Progress | None = None) -> Verified:
    """Look at every file that a retained snapshot needs; with `deep` also at every row."""
    findings = verify_manifest(listing.root)
    tables: list[_Stored] = []
    if not findings:
        tables, findings = _tables(listing)
    schema = listing.properties.schema
    done, lock = 0, threading.Lock()

    def look(table: _Stored) -> _Looked:
        nonlocal done
        found = _Table(table, schema, deep).look()
        with lock:
            done += 1
            if progress is not None:
                progress(done, len(tables))
        return found

    looked = in_parallel(look, tables)
    return Verified(
        (*findings, *(each for table in looked for each in table.findings)),
        len(looked),
        sum(each.versions for each in looked),
        sum(each.files for each in looked),
        sum(each.bytes for each in looked),
        sum(each.checksums for each in looked),
        sum(each.rows for each in looked) if deep else None,
    )


def verify_manifest(root: Location) -> list[Damage]:
    """What the checksums of the manifest tell, if it has any, without opening it."""
    place = root.own(DIRECTORY)
    files = {file.path for file in Folder(place).files()} if _is_there(place) else set()
    recorded = [path for each in files if (path := file_of(each)) is not None and path in files]
    store = TableFiles(place) if recorded else None

    def look(path: str) -> Damage | None:
        assert store is not None
        return _by_checksum(store, path)

    return [each for each in in_parallel(look, sorted(recorded)) if each is not None]


def _is_there(location: Location) -> bool:
    try:
        return bool(Folder(location).folders())
    except PhalanxError:
        return False


def _by_checksum(store: TableFiles, path: str) -> Damage | None:
    place = str(store.location)
    try:
        wrong = store.check(path)
    except PhalanxError as error:
        return Damage("unreadable", str(error), place, path)
    if wrong is None:
        return None
    return Damage("wrong-checksum", f"{place}/{path} is damaged: {wrong}. {_RESTORE}", place, path)


_RESTORE = "Restore it from a copy."


def _tables(listing: LeafListing) -> tuple[list[_Stored], list[Damage]]:
    """All tables with the versions that are read, and what is wrong with the history."""
    needed: Mapping[str, set[int]] = {}
    findings: list[Damage] = []
    tables: list[_Stored] = []
    whole = listing
    if isinstance(listing, Manifest):
        versions = {listing.version}
        if listing.properties.mode == "strong":
            whole = with_dropped(listing)
            over = expired(listing, _NOTHING_EXPIRED)
            needed = over.versions
            findings += _updates(listing.root, over.updates)
            of_snapshots, lost = _manifest_versions(listing)
            versions |= of_snapshots
            findings += lost
        tables.append(_Stored(listing.root.own(DIRECTORY), tuple(sorted(versions))))
    schema, versions_now = listing.properties.schema, whole.versions()
    for number, leaves in whole.leaves().items():
        spec = listing.properties.specs[number]
        told = tuple(
            field
            for field in spec.fields
            if all(schema.path_of(source) is not None for source in field.source_ids)
        )
        gone = [field.field_id for field in spec.fields if field not in told]
        keys = whole.keys_of_leaves(number, leaves).drop_columns(gone)
        paths = path_values(leaves, listing.path_columns)
        names, places = (leaves.column(name).to_pylist() for name in (OBJECT_ID, LOCATION))
        for row, (name, place, path) in enumerate(zip(names, places, paths, strict=True)):
            read = {versions_now.get(name)}
            # Versions of a branch are in its own folder.
            if branch_of(place.partition("/tree/")[0], place) is None:
                read |= needed.get(name, set())
            if len(read) > 1:
                read.discard(None)
            tables.append(
                _Stored(
                    listing.root.child(place),
                    tuple(sorted(read, key=lambda version: version or 0)),
                    dataclasses.replace(spec, fields=told),
                    keys.slice(row, 1),
                    path,
                )
            )
    return tables, findings


def _updates(root: Location, names: frozenset[str]) -> list[Damage]:
    def look(name: str) -> Damage | None:
        try:
            Updates.read(root, name)
        except PhalanxError as error:
            return Damage("updates", str(error), str(root), name)
        return None

    return [each for each in in_parallel(look, sorted(names)) if each is not None]


def _manifest_versions(manifest: Manifest) -> tuple[set[int], list[Damage]]:
    """The versions of the manifest that snapshots are read by."""

    def look(number: int) -> int | Damage:
        try:
            return history.at(manifest, number).version
        except PhalanxError as error:
            return Damage("manifest", f"Snapshot {number}: {error}", str(manifest.root))

    found = in_parallel(look, [int(each["id"]) for each in snapshots_in(manifest)])
    return (
        {each for each in found if isinstance(each, int)},
        [each for each in found if isinstance(each, Damage)],
    )


class _Table:
    """One Lance table that is looked at."""

    def __init__(self, table: _Stored, schema: Schema, deep: bool) -> None:
        self.table, self.schema, self.deep = table, schema, deep
        # No cache may answer for what is stored.
        self.place = dataclasses.replace(table.location, has_reused_paths=True)
        self.found = _Looked([])
        self.files: dict[str, int] = {}
        self.store = TableFiles(table.location)
        # Which files are as they should be, and the fragments that were read.
        self.sound: dict[str, bool] = {}
        self.read: set[tuple[object, ...]] = set()

    def look(self) -> _Looked:
        """Everything that its versions need."""
        try:
            listed = Folder(self.place).files()
        except PhalanxError as error:
            self._tell("missing-table", str(error))
            return self.found
        self.files = {file.path: file.bytes for file in listed}
        newest = max(main_versions(listed), default=None)
        self._look_for_newer(listed, newest or 0)
        for version in self.table.versions:
            wanted = newest if version is None else version
            if wanted is None:
                self._tell("missing-table", f"{self.place} has no version. {_RESTORE}")
                continue
            self.found.versions += 1
            self._look_at(wanted, is_last=version == self.table.versions[-1])
        return self.found

    def _look_for_newer(self, listed: Sequence[StoredFile], newest: int) -> None:
        """A version that was there: without it Lance takes the one before for the newest."""
        recorded = main_versions(
            dataclasses.replace(file, path=path)
            for file in listed
            if (path := file_of(file.path)) is not None
        )
        known = max([*recorded, self.store.hinted_version()])
        if known > newest:
            path = version_files(known)[0]
            self._tell(
                "missing-file",
                f"Version {known} of {self.place} was there, and the newest is {newest}: an older "
                f"state is read in its place. {_RESTORE}",
                path,
            )

    def _look_at(self, version: int, is_last: bool) -> None:
        there = [path for path in version_files(version) if path in self.files]
        if not there:
            path = version_files(version)[0]
            self._tell("missing-file", f"Version {version} of {self.place} is gone.", path)
            return
        if not self._is_sound(there[0], None):
            return
        try:
            with reading(f"open {self.place} in version {version}"):
                dataset = self.place.open_leaf(version)
                fragments = [each.metadata for each in dataset.get_fragments()]
                indexes = list(dataset.describe_indices()) if dataset.has_index else []
        except PhalanxError as error:
            self._tell("unreadable", str(error), there[0])
            return
        sound = [fragment for fragment in fragments if self._has_files(fragment)]
        for fragment in sound:
            self._read(dataset, fragment)
        for index in indexes:
            # What an index covers is counted without deleted rows.
            self._look_at_index(dataset, fragments, index, is_last and len(sound) == len(fragments))

    # ── files ────────────────────────────────────────────────────────────────────────────────

    def _has_files(self, fragment: FragmentMetadata) -> bool:
        """Whether the files of a fragment are there, with the right size, content and rows."""
        sizes = {f"data/{file.path}": file.file_size_bytes for file in fragment.files}
        all_sound = True
        for path in data_files([fragment]):
            first = path not in self.sound
            is_sound = self._is_sound(path, sizes.get(path))
            if is_sound and first:
                self.sound[path] = is_sound = self._opens(path, fragment)
            all_sound &= is_sound
        if (path := deletion_file(fragment) or "") and self._is_sound(path, None):
            self.sound[path] = self._has_deletions(path, fragment)
        return all_sound and self.sound.get(path, True)

    def _has_deletions(self, path: str, fragment: FragmentMetadata) -> bool:
        """Whether a file of deleted rows is one: Lance aborts the process over some others."""
        if not path.endswith(".arrow"):
            return True
        try:
            with reading(f"read {self.place}/{path}"):
                rows = pa.ipc.open_file(pa.py_buffer(self.store.content(path))).read_all()
                rows.validate(full=True)
        except PhalanxError as error:
            self._tell("unreadable", str(error), path)
            return False
        if rows.num_rows != fragment.num_deletions:
            self._tell(
                "wrong-row-count",
                f"{self.place}/{path} deletes {counted(rows.num_rows, 'row')}, expected "
                f"{fragment.num_deletions:,}. {_RESTORE}",
                path,
            )
            return False
        return True

    def _is_sound(self, path: str, size: int | None) -> bool:
        """Whether a file is there, and is what was written as far as anybody can tell."""
        if path in self.sound:
            return self.sound[path]
        self.found.files += 1
        self.found.bytes += self.files.get(path, 0)
        self.sound[path] = False
        if path not in self.files:
            self._tell("missing-file", f"{self.place}/{path} is gone. {_RESTORE}", path)
        elif size not in (None, 0, self.files[path]):
            self._tell(
                "wrong-size",
                f"{self.place}/{path} has {self.files[path]:,} bytes, expected {size:,}. "
                f"{_RESTORE}",
                path,
            )
        elif path_of(path) in self.files:
            self.found.checksums += 1
            damage = _by_checksum(self.store, path)
            if damage is None:
                self.sound[path] = True
            else:
                self.found.findings.append(damage)
        else:
            self.sound[path] = True
            # Versions are only read by Lance as a whole, and those of stock clients have none.
            if self.place.checksums and not path.startswith("_versions/"):
                self._tell(
                    "no-checksum",
                    f"{self.place}/{path} has no checksum: a writer without them wrote it, or one "
                    "died before. Write what is missing with set_checksums(True).",
                    path,
                )
        return self.sound[path]

    def _opens(self, path: str, fragment: FragmentMetadata) -> bool:
        try:
            with reading(f"open {self.place}/{path}"):
                reader = LanceFileReader(
                    f"{self.place.uri}/{path}", storage_options=self.place.storage_options
                )
                rows = int(reader.metadata().num_rows)
        except PhalanxError as error:
            self._tell("unreadable", str(error), path)
            return False
        if rows != fragment.physical_rows:
            self._tell(
                "wrong-row-count",
                f"{self.place}/{path} has {counted(rows, 'row')}, expected "
                f"{fragment.physical_rows:,}. {_RESTORE}",
                path,
            )
            return False
        return True

    def _look_at_index(
        self,
        dataset: lance.LanceDataset,
        fragments: Sequence[FragmentMetadata],
        index: Any,
        is_last: bool,
    ) -> None:
        """The files of an index; and with `deep`, in the newest version, whether it can be used."""
        all_sound = True
        for segment in index.segments:
            folder = f"_indices/{segment.uuid}/"
            if segment.base_id is not None:
                continue
            paths = [path for path in self.files if path.startswith(folder)]
            size = sum(self.files[path] for path in paths)
            if not paths or (segment.size_bytes and size != segment.size_bytes):
                all_sound = False
                if folder not in self.sound:
                    self._tell(
                        "index",
                        f"The index {index.name} of {self.place} has {size:,} bytes in {folder}, "
                        f"expected {segment.size_bytes or 0:,}. Drop the index, and create it "
                        "again.",
                        folder,
                    )
                self.sound[folder] = False
            for path in paths:
                all_sound &= self._is_sound(path, None)
        if not (self.deep and is_last and all_sound):
            return
        try:
            with reading(f"read the index {index.name} of {self.place}"):
                said = dataset.stats.index_stats(index.name)
                known = int(said["num_indexed_rows"]) + int(said["num_unindexed_rows"])
        except PhalanxError as error:
            self._tell("index", str(error))
            return
        if known != sum(each.num_rows for each in fragments):
            self._tell(
                "index",
                f"The index {index.name} of {self.place} knows {counted(known, 'row')}, expected "
                f"{sum(each.num_rows for each in fragments):,}. Drop it, and create it again.",
            )

    # ── rows ─────────────────────────────────────────────────────────────────────────────────

    def _read(self, dataset: lance.LanceDataset, fragment: FragmentMetadata) -> None:
        """The rows of a fragment: which are deleted; with `deep` all of them."""
        contents = (*data_files([fragment]), deletion_file(fragment))
        if contents in self.read:
            return
        self.read.add(contents)
        try:
            if self.deep and self.table.spec is not None:
                rows = self._read_rows(dataset.version, fragment)
                self.found.rows += rows
            elif self.deep or fragment.deletion_file is not None:
                chosen = [dataset.get_fragment(fragment.id)]
                columns: list[str] | None = None if self.deep else []
                found = table_of(dataset, columns=columns, fragments=chosen, with_row_address=True)
                with reading(f"read {self.place}"):
                    found.validate(full=True)
                rows = found.num_rows
            else:
                return
        except PhalanxError as error:
            self._tell("unreadable", f"Fragment {fragment.id}: {error}", contents[0])
            return
        if rows != fragment.num_rows:
            self._tell(
                "wrong-row-count",
                f"Fragment {fragment.id} of version {dataset.version} of {self.place} has "
                f"{counted(rows, 'row')}, expected {fragment.num_rows:,}. {_RESTORE}",
                contents[0],
            )

    def _read_rows(self, version: int, fragment: FragmentMetadata) -> int:
        table, rows = self.table, 0
        assert table.spec is not None
        assert table.key is not None
        scan = LeafScan(
            self.place,
            version,
            self.schema,
            self.schema.names,
            fragments=(fragment.id,),
            path=table.path,
        )
        told = False
        for batch in scan.batches():
            rows += batch.num_rows
            with reading(f"read {self.place}"):
                batch.validate(full=True)
                keys = keyed(table.spec, batch, self.schema).keys
                strangers = positions(keys, table.key) < 0
            if strangers.any() and not told:
                told = True
                first, *_ = keys_of(keys.filter(pa.array(strangers)))
                [own] = keys_of(table.key)
                self._tell(
                    "wrong-partition",
                    f"Fragment {fragment.id} of {self.place} has rows of the partition "
                    f"{first.values}, expected {own.values} alone. A scan that prunes leaves them "
                    "out: delete them there, and append them again.",
                    next(data_files([fragment]), None),
                )
        return rows

    def _tell(self, kind: Kind, message: str, path: str | None = None) -> None:
        self.found.findings.append(Damage(kind, message, str(self.place), path))


def stored_versions(listing: LeafListing) -> Iterator[tuple[Location, int | None]]:
    """Every table of a namespace, with every version of it that is read."""
    for table in _tables(listing)[0]:
        for version in table.versions:
            yield table.location, version
