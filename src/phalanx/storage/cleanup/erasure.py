"""Rows that the files of leaves hold, deleted ones included; and leaves written anew without them.

A delete only notes which rows of a file do not count. The values stay in the file, in those of
older versions, and in indexes, until all of these are gone.
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
from phalanx.model.predicates.evaluation import matches
from phalanx.model.predicates.predicate import TRUE, Predicate
from phalanx.model.schema.dictionaries import Unused, has_dictionaries
from phalanx.model.schema.rows import plain_schema
from phalanx.model.schema.schema import Schema
from phalanx.storage import commits
from phalanx.storage.cleanup.unlisted import name_of
from phalanx.storage.lance.fault_points import Step, reach
from phalanx.storage.lance.files import Folder, StoredFile
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.scanning import batches_of, count_of
from phalanx.storage.lance.schema import is_aligned, schema_of
from phalanx.storage.leaf import compaction as compacting
from phalanx.storage.leaf import leaf, staging
from phalanx.storage.leaf.indexes import dropped
from phalanx.storage.leaf.reading import columns_read
from phalanx.storage.leaf.reconcile import reconciled
from phalanx.storage.leaf_indexes import described

_DATA = "data"


@dataclass(frozen=True, slots=True)
class Held:
    """What a version of a leaf holds of the rows that match, deleted or not.

    `fragments` are the numbers of the fragments that have some, or values in dictionaries that may
    be of some; `rows` are how many they have, and `files` their data files. `in_indexes` says that
    an index may have values of such rows, or of some that the version does not have any more.
    """

    fragments: frozenset[int]
    rows: int
    files: frozenset[str]
    in_indexes: bool
    # All its data files.
    listed: frozenset[str] = frozenset()
    # Whether it has no other rows, apart from deleted ones.
    no_others: bool = False

    @property
    def anything(self) -> bool:
        """Whether there is something to erase."""
        return bool(self.fragments) or self.in_indexes


@dataclass(slots=True)
class Search:
    """Looks for the rows that match in files; each file is read once, however many versions do."""

    predicate: Predicate
    schema: Schema
    _rows: dict[tuple[str, tuple[str, ...]], int] = field(default_factory=dict)
    _stray: dict[tuple[str, tuple[str, ...]], bool] = field(default_factory=dict)
    _versions: dict[tuple[str, int], Held] = field(default_factory=dict)
    _unlisted: dict[str, bool] = field(default_factory=dict)

    @property
    def files_read(self) -> int:
        """How many data files were read."""
        return sum(len(files) for _, files in self._rows)

    def version(self, location: Location, version: int) -> Held:
        """What a version of a leaf holds."""
        key = location.uri, version
        if key not in self._versions:
            self._versions[key] = self._looked_at(location, version)
        return self._versions[key]

    def _looked_at(self, location: Location, version: int) -> Held:
        dataset = location.open_leaf(version)
        fragments = dataset.get_fragments()
        found = [
            (fragment.fragment_id, rows, files_of(fragment.metadata))
            for fragment in fragments
            if (rows := self._in_fragment(location, dataset, fragment))
        ]
        stray = {
            fragment.fragment_id
            for fragment in fragments
            if self._has_stray_values(location, dataset, fragment)
        }
        return Held(
            frozenset(stray.union(number for number, *_ in found)),
            sum(rows for _, rows, _ in found),
            frozenset(path for *_, files in found for path in files),
            self._in_indexes(dataset, {number for number, *_ in found}),
            frozenset(path for each in _all(dataset) for path in files_of(each)),
            self._has_no_others(dataset, sum(rows for _, rows, _ in found)),
        )

    def _has_no_others(self, dataset: lance.LanceDataset, matching: int) -> bool:
        if count_of(dataset) > matching:
            return False
        return not any(
            _count(matches(self.predicate, batch)) < batch.num_rows
            for fragment in dataset.get_fragments()
            for batch in self._stored(dataset, fragment, deleted=False)
        )

    def _in_fragment(
        self, location: Location, dataset: lance.LanceDataset, fragment: lance.LanceFragment
    ) -> int:
        key = location.uri, files_of(fragment.metadata)
        if key not in self._rows:
            batches = self._stored(dataset, fragment)
            self._rows[key] = sum(_count(matches(self.predicate, batch)) for batch in batches)
        return self._rows[key]

    def _has_stray_values(
        self, location: Location, dataset: lance.LanceDataset, fragment: lance.LanceFragment
    ) -> bool:
        """Whether dictionaries have values that no row has: nobody can tell whose they were."""
        columns = [field.name for field in dataset.schema if has_dictionaries(field.type)]
        key = location.uri, files_of(fragment.metadata)
        if columns and key not in self._stray:
            found = Unused()
            for batch in batches_of(
                dataset,
                columns=columns,
                fragments=[fragment],
                with_row_id=True,
                include_deleted_rows=True,
            ):
                found.add(batch)
            self._stray[key] = found.any
        return bool(columns) and self._stray[key]

    def _stored(
        self, dataset: lance.LanceDataset, fragment: lance.LanceFragment, *, deleted: bool = True
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a fragment as the table has them, the deleted ones included or not."""
        plain = is_aligned(dataset, self.schema)
        batches = batches_of(
            dataset,
            columns=columns_read(self.predicate, self.schema) if plain else None,
            fragments=[fragment],
            with_row_id=True,
            include_deleted_rows=deleted,
        )
        own = None if plain else schema_of(dataset)
        for batch in batches:
            yield batch if own is None else reconciled(batch, own, self.schema)

    def _in_indexes(self, dataset: lance.LanceDataset, fragments: Collection[int]) -> bool:
        # Values of rows that are gone stay in an index until it is made anew.
        present = {each.fragment_id for each in dataset.get_fragments()}
        return any(
            index.covered - present or index.covered & set(fragments)
            for index in described(dataset)
        )

    def unlisted(self, location: Location, files: Iterable[StoredFile]) -> bool:
        """Whether data files that no version lists may hold a row that matches.

        They go by the names of their columns alone: one that cannot be judged may hold one.
        """
        for file in files:
            uri = f"{location.uri}/{file.path}"
            if uri not in self._unlisted:
                self._unlisted[uri] = self._in_file(location, file.path)
            if self._unlisted[uri]:
                return True
        return False

    def _in_file(self, location: Location, path: str) -> bool:
        wanted = columns_read(self.predicate, self.schema)
        kinds = plain_schema(self.schema)
        try:
            reader = LanceFileReader(
                f"{location.uri}/{path}", storage_options=location.storage_options
            )
            if self.predicate == TRUE or not wanted:
                return True
            for batch in reader.read_all().to_batches():
                columns = [batch.column(name).cast(kinds.field(name).type) for name in wanted]
                rows = pa.RecordBatch.from_arrays(columns, names=wanted)
                if _count(matches(self.predicate, rows)):
                    return True
        except (OSError, ValueError, KeyError, RuntimeError, pa.ArrowException, PhalanxError):
            return True
        return False


@dataclass(frozen=True, slots=True)
class Cleaned:
    """A version of a leaf without the rows that match, and how many it had that counted."""

    version: int
    removed: int
    files_before: int
    files_after: int

    def then(self, rest: Cleaned) -> Cleaned:
        """This, and what was left to do when it was put on top of others' changes."""
        return Cleaned(
            rest.version,
            self.removed + rest.removed,
            self.files_before + rest.files_before,
            self.files_after + rest.files_after,
        )


def clean(
    location: Location, version: int, held: Held, predicate: Predicate, schema: Schema
) -> Cleaned:
    """A detached version of a leaf in which no file has a row that matches, nor an index."""
    dataset = location.open_leaf(version)
    before = {file for each in _all(dataset) for file in files_of(each)}
    staged = staging.stage(
        location,
        dataset,
        (),
        schema,
        lambda current: leaf.deletion(current, predicate, schema),
    )
    if staged is not None:
        dataset = location.open_leaf(staged.version)
    chosen = [each.id for each in _all(dataset) if each.id in held.fragments]
    if chosen and any(has_dictionaries(field.type) for field in dataset.schema):
        # Lance would copy the dictionaries, with the values of rows that are gone.
        dataset = location.open_leaf(staging.rewritten(location, dataset, chosen))
    elif chosen:
        # Lance writes a fragment anew without its deleted rows, whatever its columns are.
        results = [
            compacting.compact(location, dataset.version, [each], leaf.ROWS_PER_FILE)
            for each in chosen
        ]
        dataset = location.open_leaf(compacting.stage(location, dataset, results))
    if gone := dropped([index.name for index in described(dataset)], dataset):
        dataset = commits.commit(
            location, dataset, LanceOperation.CreateIndex([], list(gone)), detached=True
        )
        reach(Step.VERSION_STAGED)
    after = {file for each in _all(dataset) for file in files_of(each)}
    removed = 0 if staged is None else staged.removed
    return Cleaned(int(dataset.version), removed, len(before - after), len(after - before))


def data_files(location: Location) -> list[StoredFile]:
    """The data files in the folder of a leaf, listed by a version or not."""
    found = []
    for file in Folder(location).files():
        name = name_of(file.path)
        if name is not None and name.kind == _DATA and file.path.endswith(".lance"):
            found.append(file)
    return found


def files_of(fragment: FragmentMetadata) -> tuple[str, ...]:
    """The names of the files that hold the values of a fragment."""
    overlays = (overlay.data_file for overlay in fragment.overlays)
    return tuple(file.path for file in (*fragment.files, *overlays))


def rows_in(manifest: Location, path: str) -> pa.Table:
    """All rows that a file of a manifest holds, those included that no version lists any more."""
    reader = LanceFileReader(f"{manifest.uri}/{path}", storage_options=manifest.storage_options)
    return reader.read_all().to_table()


def _all(dataset: lance.LanceDataset) -> list[FragmentMetadata]:
    return [fragment.metadata for fragment in dataset.get_fragments()]


def _count(found: pa.BooleanArray) -> int:
    return int(pc.sum(found).as_py() or 0)


def merged(held: Mapping[int, Held]) -> int:
    """The most rows that one of several versions of a leaf holds."""
    return max((each.rows for each in held.values()), default=0)
