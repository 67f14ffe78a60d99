"""Writes to leaves, and how weak mode applies them: each leaf by itself (format: Transaction)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lance import LanceDataset
from lance.fragment import FragmentMetadata

from phalanx.errors import CommitConflict, InvalidManifest, PartialWrite, PhalanxError
from phalanx.model.predicates.predicate import TRUE, Predicate
from phalanx.model.schema.grouping import find_positions
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.partition_key import PartitionKey, group_by_partition, read_keys
from phalanx.model.specs.spec import PartitionSpec
from phalanx.planning.formatting import format_count
from phalanx.planning.pruning.fields import list_source_columns
from phalanx.planning.pruning.leaf_columns import LEAF_LOCATION, LEAF_OBJECT_ID, list_leaf_versions
from phalanx.storage.commit.late_commits import includes_versions, was_strong_since
from phalanx.storage.commit.publishing import publish
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.parallel import WRITE_THREADS, collect_outcomes, map_parallel
from phalanx.storage.lance.retries import retry_conflicts
from phalanx.storage.lance.scanning import scan_batches
from phalanx.storage.leaf import leaf
from phalanx.storage.leaf.leaf import (
    AppliedChange,
    Deletion,
    FragmentChange,
    LeafCreator,
    create_leaf_once,
)
from phalanx.storage.leaf.path_values import PathValues
from phalanx.storage.manifest.changes import has_required_columns, insert_rows, upgrade_columns
from phalanx.storage.manifest.dropped import include_dropped
from phalanx.storage.manifest.manifest import Manifest
from phalanx.storage.manifest.partition_rows import build_partition_rows
from phalanx.storage.state.table_state import Leaves, TableState
from phalanx.storage.streams.shuffle import ShuffledRows

# Returns the leaves that a statement depends on in a table state, with their versions.
Footprint = Callable[[TableState], dict[str, int | None]]
_LOGGER = logging.getLogger("phalanx.storage")


@dataclass(frozen=True, slots=True)
class ReadFootprint:
    """The leaves that a statement has read, and the manifest version in which it read them."""

    footprint: Footprint
    version: int


LeafOpener = Callable[[Location, int | None], lance.LanceDataset]
MAX_NAMED_PARTITIONS = 20


@dataclass(frozen=True, slots=True)
class RowReplacement:
    """Files whose rows replace other rows one by one; `old` has those in the same order.

    Its columns are `leaf`, an index into `leaves` (object ids), and `address`, that of the row in
    the version of the leaf that the change was made for. Both are NULL for a row that replaces
    none. Without replacements, the change feed reports rows as deleted and inserted.
    """

    fragments: tuple[FragmentMetadata, ...]
    leaves: tuple[str, ...]
    old: pa.Table


@dataclass(slots=True)
class LeafWrite:
    """A planned change of one leaf: files to add, and rows to delete.

    `moved_in` are files with rows that leave other leaves (`moves_rows_out`) in the same
    statement; they are added here before they are removed there. `is_edit` means that the deletion
    also adds replacements for the rows it removes; it ignores rows that others add meanwhile.
    """

    key: PartitionKey
    object_id: str
    location: Location
    version: int | None
    fragments: tuple[FragmentMetadata, ...] = ()
    deletion: Deletion | None = field(default=None)
    moved_in: tuple[FragmentMetadata, ...] = ()
    is_edit: bool = False
    moves_rows_out: bool = False
    # The new files whose rows replace others.
    replacements: tuple[RowReplacement, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether it changes nothing."""
        return not (self.fragments or self.moved_in or self.deletion is not None)


def ensure_partitions(manifest: Manifest, keys: pa.Table, new: LeafCreator) -> Manifest:
    """Create the missing partitions of the newest spec; return a manifest that lists all.

    A leaf is created before its row. If two writers create the same partition, the loser uses the
    winner's leaf and removes its own. Raise `CommitConflict` if the schema or the specs changed,
    because the keys would be wrong.
    """
    made: dict[str, str] = {}
    current = manifest

    def attempt() -> Manifest:
        nonlocal current
        current = current.load_latest()
        manifest.check_current(current)
        _check_weak(current)
        missing = current.select_missing_keys(keys)
        if not missing.num_rows:
            return current
        if not has_required_columns(current):
            upgrade_columns(current)
            current = current.load_latest()
        rows = build_partition_rows(
            current, missing, lambda leaf: made.get(leaf) or new.choose_directory(leaf)
        )
        fresh = [
            (object_id, location)
            for object_id, location in zip(
                rows.column("object_id").to_pylist(),
                rows.column("location").to_pylist(),
                strict=True,
            )
            if location is not None and object_id not in made
        ]
        schema = current.properties.schema
        map_parallel(lambda each: new.create(current.root.leaf(each[1]), schema), fresh)
        made.update(fresh)
        insert_rows(current, rows)
        found = current.load_latest()
        manifest.check_current(found)
        # Lance lets the insert and a change of the mode both succeed.
        _check_weak(found)
        _check_listed(found, rows, keys)
        return found

    try:
        found = retry_conflicts(attempt)
        manifest.check_current(found)
    except CommitConflict:
        if new.job is None:
            remove_unlisted_leaves(manifest.load_latest(), made.values())
        raise
    if made and new.job is None:
        # The leaves of a job have files that it may still need.
        remove_unlisted_leaves(found, made.values())
    return found


def _check_weak(manifest: Manifest) -> None:
    """Refuse a weak write to a table in strong mode, which would miss or hide other commits."""
    if manifest.properties.mode != "weak":
        raise CommitConflict(
            f"Cannot write to {manifest.root}: it changed to {manifest.properties.mode} mode "
            "during the write. Write again."
        )


def _check_listed(manifest: Manifest, rows: pa.Table, keys: pa.Table) -> None:
    """Refuse to continue if other objects already have the ids of the new partitions."""
    missing = manifest.select_missing_keys(keys)
    if not missing.num_rows:
        return
    tables = rows.filter(pc.equal(rows.column("object_type"), "table")).column("object_id")
    [key, *_] = read_keys(missing)
    names = ", ".join(tables.to_pylist()[:MAX_NAMED_PARTITIONS])
    raise InvalidManifest(
        f"Cannot create the partition {key.values} of {manifest.root}: the manifest lists other "
        f"objects under its id, one of {names}. Another program wrote it. Correct the partition "
        "values of these rows."
    )


def write_rows(
    state: TableState,
    rows: ShuffledRows,
    open_leaf: LeafOpener,
    written: dict[str, tuple[FragmentMetadata, ...]],
) -> list[LeafWrite]:
    """Write rows to files of their leaves, which must exist, without committing.

    `written` caches the files by the URI of their leaf, so that a retry does not write them again.
    """
    spec = state.properties.spec
    leaves = state.list_leaves()[spec.id].take(pa.array(state.find_leaf_rows(rows.keys)))
    writes = list(plan_leaf_writes(state, spec.id, leaves, [None] * leaves.num_rows))

    def write(index: int) -> LeafWrite:
        found = writes[index]
        if found.location.uri not in written:
            dataset = open_leaf(found.location, found.version)
            written[found.location.uri] = leaf.write_files(
                dataset, found.location, rows.read_partition(index, dataset.schema.names)
            )
        found.fragments = written[found.location.uri]
        return found

    return map_parallel(write, range(len(writes)), WRITE_THREADS)


def plan_leaf_writes(
    state: TableState, spec_id: int, leaves: pa.Table, deletions: Sequence[Deletion | None]
) -> Iterator[LeafWrite]:
    """Plan a write with one deletion for each leaf of a spec."""
    keys = read_keys(state.leaf_keys(spec_id, leaves))
    names = leaves.column(LEAF_OBJECT_ID).to_pylist()
    for key, name, (location, version), removal in zip(
        keys, names, list_leaf_versions(leaves), deletions, strict=True
    ):
        yield LeafWrite(key, name, state.root.leaf(location), version, (), removal)


def plan_emptying(state: TableState, leaves: Leaves) -> list[LeafWrite]:
    """Plan the deletion of all rows of these leaves."""
    everything = build_deletion(TRUE, state.properties.schema)
    return [
        write
        for number, some in leaves.items()
        for write in plan_leaf_writes(state, number, some, [everything] * some.num_rows)
    ]


@dataclass(slots=True)
class WeakTarget:
    """Applies writes in weak mode: each goes to a leaf's main branch and is visible at once."""

    state: TableState
    # Completes a change of the mode that is under way.
    complete_mode_change: Callable[[Manifest], Manifest]
    # Weak writers check no horizon: a write must commit within the `older_than` of any vacuum.
    horizon: str = ""

    def ensure_partitions(self, keys: pa.Table, new: LeafCreator) -> None:
        """Create the missing partitions of the newest spec."""
        assert isinstance(self.state, Manifest)
        self.state = ensure_partitions(self.state, keys, new)

    def open_leaf(self, location: Location, version: int | None) -> lance.LanceDataset:
        """Open a leaf to write files for, in the namespace's schema."""
        return self.state.shape.open_newest(location)

    def depend_on(self, footprint: Footprint, replaced: bool) -> None:
        """Ignore it: weak mode does not isolate statements."""

    def record_read(self, read: ReadFootprint) -> None:
        """Ignore it: weak mode does not isolate statements."""

    def drop(self, leaves: Leaves, advice: str) -> int:
        """Empty each leaf without reading data; return their number.

        They stay in the manifest, so that concurrent writes to them are not lost. A leaf that
        another program removed is created again, without rows.
        """
        writes = plan_emptying(self.state, leaves)
        if isinstance(self.state, Manifest):
            schema = self.state.properties.schema
            map_parallel(lambda write: create_leaf_once(write.location, schema), writes)
        self.apply(writes, "drop_partitions", advice)
        return len(writes)

    def apply(self, writes: Sequence[LeafWrite], operation: str, advice: str) -> int:
        """Apply each write; return the number of rows removed. `PartialWrite` says what failed."""
        try:
            return self._apply(writes, operation, advice)
        except PartialWrite as error:
            counts = f"{len(error.written):,} written, {len(error.not_written):,} not written"
            if error.unknown:
                counts += f", {len(error.unknown):,} unknown"
            _LOGGER.info(
                "Changed partitions of %s only in part: %s, %s",
                *(self.state.root, operation, counts),
            )
            raise

    def _apply(self, writes: Sequence[LeafWrite], operation: str, advice: str) -> int:
        done = apply_to_leaves(writes, self.state, advice)
        removed = sum(each.removed for each in done.values())
        if count := sum(bool(each.versions) for each in done.values()):
            _LOGGER.info(
                "Changed %s of %s: %s, %s removed",
                *(format_count(count, "partition"), self.state.root, operation),
                format_count(removed, "row"),
            )
        now = self.state.load_latest() if writes else self.state
        if now.layout != self.state.layout:
            raise PartialWrite(
                f"{self.state.root} was upgraded while these partitions were written: "
                f"{format_partitions([write.key for write in writes])}. New ones may be missing "
                "from its manifest. Look at the table, and write again what is missing.",
                unknown=[write.key for write in writes],
            )
        before = self.state
        if not (isinstance(now, Manifest) and isinstance(before, Manifest)):
            return removed
        if was_strong_since(before, now):
            self._check_included(writes, done, self.complete_mode_change(now))
        elif now is not before and now.pinned_tables and writes:
            raise PartialWrite(
                f"Another writer pinned the version to read of {now.pinned_tables[0]!r} in "
                f"{now.root} while these partitions were written: "
                f"{format_partitions([write.key for write in writes])}. The rows are on their main "
                "branches, but readers may not see them. Look at the table, and write again what "
                "is missing.",
                unknown=[write.key for write in writes],
            )
        return removed

    def _check_included(
        self, writes: Sequence[LeafWrite], done: Mapping[str, AppliedChange], now: Manifest
    ) -> None:
        """Raise if the table changed to strong mode without every commit of this write.

        Publishing, by this writer or the next one, removes the others from the main branches.
        """
        root, made = now.root, {name: each.versions for name, each in done.items()}
        changed = [write for write in writes if made.get(write.object_id)]
        if now.properties.mode != "strong":
            raise PartialWrite(
                f"{root} changed to strong mode and back while these partitions were written: "
                f"{format_partitions([write.key for write in changed])}. Each of them may or may "
                "not have the change. Check the table, and write what is missing again.",
                unknown=[write.key for write in changed],
            )
        shown = now.leaf_versions(made)
        late = [
            write
            for write in changed
            if not includes_versions(
                write.location, shown.get(write.object_id), made[write.object_id]
            )
        ]
        if not late:
            return
        with suppress(OSError, ValueError, PhalanxError):
            publish(now, [write.object_id for write in late])
        kept = [write.key for write in changed if write not in late]
        missing = [write.key for write in late]
        raise PartialWrite(
            f"{root} changed to strong mode during the write. Written: {format_partitions(kept)}. "
            f"Not written: {format_partitions(missing)}. Write what is missing again.",
            written=kept,
            not_written=missing,
        )


def apply_to_leaves(
    writes: Sequence[LeafWrite], state: TableState, advice: str
) -> dict[str, AppliedChange]:
    """Apply each write to its main branch; return the changes by object id.

    All deletions are computed before the first change, so that a predicate that fails on some rows
    changes nothing. Moved rows are added to their new leaves before any row is removed. Raise
    `PartialWrite` if some writes fail.
    """
    writes = [write for write in writes if not write.is_empty]
    shape = state.shape
    prepared = map_parallel(
        lambda write: leaf.prepare_change(write.location, shape, write.deletion), writes
    )
    applied = _add_moved_rows(writes, state)
    ready = [
        (write, found)
        for write, found in zip(writes, prepared, strict=True)
        if write.fragments or write.deletion is not None
    ]
    done = collect_outcomes(lambda each: _apply_write(*each, state), ready)
    failures = [result for result in done if isinstance(result, Exception)]
    if not failures:
        for (write, _), result in zip(ready, done, strict=True):
            assert isinstance(result, AppliedChange)
            before = applied.get(write.object_id, AppliedChange(0))
            applied[write.object_id] = AppliedChange(
                result.removed, (*before.versions, *result.versions)
            )
        return applied
    written: list[PartitionKey] = []
    missing: list[PartitionKey] = []
    doubled: list[PartitionKey] = []
    for (write, _), result in zip(ready, done, strict=True):
        (missing if isinstance(result, Exception) else written).append(write.key)
        if write.moves_rows_out and isinstance(result, Exception):
            doubled.append(write.key)
    cause = failures[0]
    if not written and not doubled and isinstance(cause, PhalanxError):
        raise cause
    twice = (
        f" Rows that move out of {format_partitions(doubled)} exist twice, old and new."
        if doubled
        else ""
    )
    raise PartialWrite(
        f"Wrote {len(written)} of {len(ready)} partitions. Written: {format_partitions(written)}. "
        f"Not written: {format_partitions(missing)}.{twice} The first failure: {cause} {advice}",
        written=written,
        not_written=missing,
        duplicated=doubled,
    ) from cause


def _add_moved_rows(writes: Sequence[LeafWrite], state: TableState) -> dict[str, AppliedChange]:
    """Add moved rows to their new leaves, all or none; return the changes by object id."""
    arriving = [write for write in writes if write.moved_in]
    shape = state.shape

    def add_rows(write: LeafWrite) -> AppliedChange:
        with attach_partition(write.key):
            ready = leaf.prepare_change(write.location, shape, None)
            return leaf.apply_change(write.location, write.moved_in, shape, None, ready)

    done = collect_outcomes(add_rows, arriving) if arriving else []
    failures = [result for result in done if isinstance(result, Exception)]
    if not failures:
        return {
            write.object_id: result
            for write, result in zip(arriving, done, strict=True)
            if isinstance(result, AppliedChange)
        }
    cause = failures[0]
    added = [
        write
        for write, result in zip(arriving, done, strict=True)
        if not isinstance(result, Exception)
    ]
    back = collect_outcomes(
        lambda write: leaf.revert_fragments(write.location, write.moved_in, shape.mark), added
    )
    left = [
        write.key
        for write, result in zip(added, back, strict=True)
        if isinstance(result, Exception)
    ]
    if not left and isinstance(cause, PhalanxError):
        raise cause
    twice = (
        f" {format_partitions(left)} already got such rows, which now exist twice." if left else ""
    )
    raise PartialWrite(
        f"Cannot add rows to the partitions that they move to, and changed nothing else.{twice} "
        f"The first failure: {cause}",
        not_written=[write.key for write in writes],
        duplicated=left,
    ) from cause


def _apply_write(
    write: LeafWrite, prepared: leaf.PreparedChange, state: TableState
) -> AppliedChange:
    with attach_partition(write.key):
        return leaf.apply_change(
            write.location,
            write.fragments,
            state.shape,
            write.deletion,
            prepared,
            replaces_matching=not write.is_edit,
        )


@contextmanager
def attach_partition(key: PartitionKey) -> Iterator[None]:
    """Add a partition to a `CommitConflict` that names none."""
    try:
        yield
    except CommitConflict as error:
        error.partitions = error.partitions or (key,)
        raise


def format_partitions(keys: Sequence[PartitionKey]) -> str:
    """Format partitions by spec and values for a message, the first `MAX_NAMED_PARTITIONS`."""
    shown = ", ".join(f"v{key.spec_id}{key.values}" for key in keys[:MAX_NAMED_PARTITIONS])
    return (shown or "none") + (", …" if len(keys) > MAX_NAMED_PARTITIONS else "")


def build_deletion(
    predicate: Predicate, schema: Schema, path: PathValues | None = None
) -> Deletion:
    """Return the deletion of the rows that match a predicate."""
    return lambda dataset: leaf.write_deletions(dataset, predicate, schema, path)


def build_key_deletion(touched: pa.Table, spec: PartitionSpec, schema: Schema) -> Deletion:
    """Return the deletion of the rows of these partitions of a spec, in whichever leaf."""
    columns = list_source_columns(spec, schema)

    def find(dataset: lance.LanceDataset) -> FragmentChange:
        found = [np.empty(0, np.uint64)]
        rows = scan_batches(dataset, columns=columns, with_row_address=True, scan_in_order=True)
        for batch in rows:
            groups = group_by_partition(spec, batch, schema)
            is_touched = find_positions(groups.keys, touched) >= 0
            found.append(batch.column("_rowaddr").to_numpy()[is_touched[groups.codes]])
        return leaf.write_deletions_at(dataset, np.concatenate(found))

    return find


def merge_writes(
    writes: Sequence[LeafWrite], deletions: Mapping[str, LeafWrite]
) -> list[LeafWrite]:
    """Merge additions and deletions into one write for each leaf."""
    by_uri = dict(deletions)
    for write in writes:
        if (other := by_uri.get(write.location.uri)) is not None:
            write.deletion, write.is_edit = other.deletion, other.is_edit
        by_uri[write.location.uri] = write
    return list(by_uri.values())


def remove_unlisted_leaves(manifest: Manifest, locations: Iterable[str]) -> None:
    """Remove the leaves that the manifest does not list; one that stays is harmless.

    Dropped leaves stay, because older snapshots read them.
    """
    if not (made := set(locations)):
        return
    listed = {
        location
        for leaves in include_dropped(manifest).list_leaves().values()
        for location in leaves.filter(
            pc.is_in(leaves.column(LEAF_LOCATION), pa.array(made, pa.string()))
        )
        .column(LEAF_LOCATION)
        .to_pylist()
    }
    for location in made - listed:
        with suppress(OSError, ValueError):
            where = manifest.root.leaf(location)
            LanceDataset.drop(where.uri, where.storage_options)
