"""Erasure: find matching rows in files of leaves, including deleted rows, and rewrite the leaves.

A delete only marks rows of a file as deleted. Their values stay in the file, in the files of older
versions and in indexes until all of these are removed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import lance
import pyarrow as pa
import pyarrow.compute as pc
from lance import LanceOperation
from lance.file import LanceFileReader
from lance.fragment import FragmentMetadata

from phalanx.errors import PhalanxError
from phalanx.model.predicates.evaluation import match_rows
from phalanx.model.predicates.predicate import TRUE, Predicate
from phalanx.model.schema.dictionaries import DictionaryUsage, has_dictionaries
from phalanx.model.schema.rows import to_row_schema
from phalanx.model.schema.schema import Schema
from phalanx.storage.cleanup.unlisted import parse_file_name
from phalanx.storage.lance.fault_points import FaultPoint, fault_point
from phalanx.storage.lance.files import Folder, StoredFile
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.scanning import count_rows, scan_batches
from phalanx.storage.lance.schema import is_aligned, read_lance_schema
from phalanx.storage.lance.versions import apply_operation
from phalanx.storage.leaf import compaction, leaf, staging
from phalanx.storage.leaf.indexes import list_segments, read_indexes
from phalanx.storage.leaf.reading import list_read_columns
from phalanx.storage.leaf.reconcile import reconcile_batch

_DATA_KIND = "data"


@dataclass(frozen=True, slots=True)
class LeafMatches:
    """The matching rows in a version of a leaf, deleted or not.

    `fragments` are the numbers of fragments that have matching rows, or dictionary values that may
    belong to some. `rows` is the number of matching rows, and `files` are their data files.
    `in_indexes` says that an index may have values of such rows, or of rows no longer in the
    version.
    """

    fragments: frozenset[int]
    rows: int
    files: frozenset[str]
    in_indexes: bool
    # All data files of the version.
    all_files: frozenset[str] = frozenset()
    # Whether all rows match, apart from deleted ones.
    has_no_others: bool = False

    @property
    def has_any(self) -> bool:
        """Whether there is something to erase."""
        return bool(self.fragments) or self.in_indexes


@dataclass(slots=True)
class MatchFinder:
    """Finds matching rows in files; reads each file once, however many versions list it."""

    predicate: Predicate
    schema: Schema
    _row_counts: dict[tuple[str, tuple[str, ...]], int] = field(default_factory=dict)
    _stray: dict[tuple[str, tuple[str, ...]], bool] = field(default_factory=dict)
    _versions: dict[tuple[str, int], LeafMatches] = field(default_factory=dict)
    _file_results: dict[str, bool] = field(default_factory=dict)

    @property
    def files_read(self) -> int:
        """The number of data files read."""
        return sum(len(files) for _, files in self._row_counts)

    def find_in_version(self, location: Location, version: int) -> LeafMatches:
        """Return the matching rows in a version of a leaf."""
        key = location.uri, version
        if key not in self._versions:
            self._versions[key] = self._search_version(location, version)
        return self._versions[key]

    def _search_version(self, location: Location, version: int) -> LeafMatches:
        dataset = location.open_leaf(version)
        fragments = dataset.get_fragments()
        found = [
            (fragment.fragment_id, rows, data_files_of(fragment.metadata))
            for fragment in fragments
            if (rows := self._count_in_fragment(location, dataset, fragment))
        ]
        stray = {
            fragment.fragment_id
            for fragment in fragments
            if self._has_stray_values(location, dataset, fragment)
        }
        return LeafMatches(
            frozenset(stray.union(number for number, *_ in found)),
            sum(rows for _, rows, _ in found),
            frozenset(path for *_, files in found for path in files),
            self._may_be_in_indexes(dataset, {number for number, *_ in found}),
            frozenset(path for each in _list_fragments(dataset) for path in data_files_of(each)),
            self._has_no_others(dataset, sum(rows for _, rows, _ in found)),
        )

    def _has_no_others(self, dataset: lance.LanceDataset, matching: int) -> bool:
        if count_rows(dataset) > matching:
            return False
        return not any(
            _count_true(match_rows(self.predicate, batch)) < batch.num_rows
            for fragment in dataset.get_fragments()
            for batch in self._read_stored(dataset, fragment, deleted=False)
        )

    def _count_in_fragment(
        self, location: Location, dataset: lance.LanceDataset, fragment: lance.LanceFragment
    ) -> int:
        key = location.uri, data_files_of(fragment.metadata)
        if key not in self._row_counts:
            batches = self._read_stored(dataset, fragment)
            self._row_counts[key] = sum(
                _count_true(match_rows(self.predicate, batch)) for batch in batches
            )
        return self._row_counts[key]

    def _has_stray_values(
        self, location: Location, dataset: lance.LanceDataset, fragment: lance.LanceFragment
    ) -> bool:
        """Whether dictionaries have values that no row uses, and that may be of erased rows."""
        columns = [field.name for field in dataset.schema if has_dictionaries(field.type)]
        key = location.uri, data_files_of(fragment.metadata)
        if columns and key not in self._stray:
            found = DictionaryUsage()
            for batch in scan_batches(
                dataset,
                columns=columns,
                fragments=[fragment],
                with_row_id=True,
                include_deleted_rows=True,
            ):
                found.add(batch)
            self._stray[key] = found.has_unused_values
        return bool(columns) and self._stray[key]

    def _read_stored(
        self, dataset: lance.LanceDataset, fragment: lance.LanceFragment, *, deleted: bool = True
    ) -> Iterator[pa.RecordBatch]:
        """Return the rows of a fragment in the table's schema, with or without deleted ones."""
        plain = is_aligned(dataset, self.schema)
        batches = scan_batches(
            dataset,
            columns=list_read_columns(self.predicate, self.schema) if plain else None,
            fragments=[fragment],
            with_row_id=True,
            include_deleted_rows=deleted,
        )
        own = None if plain else read_lance_schema(dataset)
        for batch in batches:
            yield batch if own is None else reconcile_batch(batch, own, self.schema)

    def _may_be_in_indexes(self, dataset: lance.LanceDataset, fragments: Collection[int]) -> bool:
        # Values of removed rows stay in an index until it is rebuilt.
        present = {each.fragment_id for each in dataset.get_fragments()}
        return any(
            index.covered_fragments - present or index.covered_fragments & set(fragments)
            for index in read_indexes(dataset)
        )

    def may_be_in_files(self, location: Location, files: Iterable[StoredFile]) -> bool:
        """Whether data files that no version lists may have a matching row.

        Only the names of their columns are known; a file that cannot be evaluated may match.
        """
        for file in files:
            uri = f"{location.uri}/{file.path}"
            if uri not in self._file_results:
                self._file_results[uri] = self._may_be_in_file(location, file.path)
            if self._file_results[uri]:
                return True
        return False

    def _may_be_in_file(self, location: Location, path: str) -> bool:
        wanted = list_read_columns(self.predicate, self.schema)
        kinds = to_row_schema(self.schema)
        try:
            reader = LanceFileReader(
                f"{location.uri}/{path}", storage_options=location.storage_options
            )
            if self.predicate == TRUE or not wanted:
                return True
            for batch in reader.read_all().to_batches():
                columns = [batch.column(name).cast(kinds.field(name).type) for name in wanted]
                rows = pa.RecordBatch.from_arrays(columns, names=wanted)
                if _count_true(match_rows(self.predicate, rows)):
                    return True
        except (OSError, ValueError, KeyError, RuntimeError, pa.ArrowException, PhalanxError):
            return True
        return False


@dataclass(frozen=True, slots=True)
class CleanedLeaf:
    """A version of a leaf without the matching rows, and how many live ones were removed."""

    version: int
    removed: int
    files_before: int
    files_after: int

    def combine(self, later: CleanedLeaf) -> CleanedLeaf:
        """Combine this with a later pass on top of concurrent changes."""
        return CleanedLeaf(
            later.version,
            self.removed + later.removed,
            self.files_before + later.files_before,
            self.files_after + later.files_after,
        )


def remove_matches(
    location: Location, version: int, found: LeafMatches, predicate: Predicate, schema: Schema
) -> CleanedLeaf:
    """Stage a version of a leaf in which no file and no index has a matching row."""
    dataset = location.open_leaf(version)
    before = {file for each in _list_fragments(dataset) for file in data_files_of(each)}
    staged = staging.stage_change(
        location,
        dataset,
        (),
        schema,
        lambda current: leaf.write_deletions(current, predicate, schema),
    )
    if staged is not None:
        dataset = location.open_leaf(staged.version)
    chosen = [each.id for each in _list_fragments(dataset) if each.id in found.fragments]
    if chosen and any(has_dictionaries(field.type) for field in dataset.schema):
        # Lance would copy the dictionaries with the values of removed rows.
        dataset = location.open_leaf(staging.stage_rewritten(location, dataset, chosen))
    elif chosen:
        # Lance rewrites a fragment without its deleted rows, regardless of its columns.
        results = [
            compaction.compact_fragments(location, dataset.version, [each], leaf.ROWS_PER_FILE)
            for each in chosen
        ]
        dataset = location.open_leaf(compaction.stage_compaction(location, dataset, results))
    if gone := list_segments([index.name for index in read_indexes(dataset)], dataset):
        dataset = apply_operation(
            location, dataset, LanceOperation.CreateIndex([], list(gone)), detached=True
        )
        fault_point(FaultPoint.VERSION_STAGED)
    after = {file for each in _list_fragments(dataset) for file in data_files_of(each)}
    removed = 0 if staged is None else staged.removed
    return CleanedLeaf(int(dataset.version), removed, len(before - after), len(after - before))


def list_data_files(location: Location) -> list[StoredFile]:
    """Return the data files in the folder of a leaf, whether a version lists them or not."""
    found = []
    for file in Folder(location).list_files():
        name = parse_file_name(file.path)
        if name is not None and name.kind == _DATA_KIND and file.path.endswith(".lance"):
            found.append(file)
    return found


def data_files_of(fragment: FragmentMetadata) -> tuple[str, ...]:
    """Return the paths of the data files of a fragment."""
    overlays = (overlay.data_file for overlay in fragment.overlays)
    return tuple(file.path for file in (*fragment.files, *overlays))


def read_manifest_file(manifest: Location, path: str) -> pa.Table:
    """Read all rows of a data file of a manifest, including those that no version lists."""
    reader = LanceFileReader(f"{manifest.uri}/{path}", storage_options=manifest.storage_options)
    return reader.read_all().to_table()


def _list_fragments(dataset: lance.LanceDataset) -> list[FragmentMetadata]:
    return [fragment.metadata for fragment in dataset.get_fragments()]


def _count_true(found: pa.BooleanArray) -> int:
    return int(pc.sum(found).as_py() or 0)


def max_matching_rows(matches_by_version: Mapping[int, LeafMatches]) -> int:
    """Return the largest number of matching rows in one of several versions of a leaf."""
    return max((each.rows for each in matches_by_version.values()), default=0)
