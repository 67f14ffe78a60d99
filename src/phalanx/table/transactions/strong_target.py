"""The changes of one transaction: staged as detached versions, committed as one snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from phalanx.errors import CommitConflict, PhalanxError, StorageFailure, UnknownOutcome
from phalanx.model.specs.partition_key import PartitionKey
from phalanx.planning.pruning.leaf_columns import LEAF_LOCATION, LEAF_OBJECT_ID, LEAF_VERSION
from phalanx.storage.changes.update_recorder import UpdateRecorder
from phalanx.storage.commit import head
from phalanx.storage.commit.head import Head, LeafVersion, open_with_head, read_head, retry_commit
from phalanx.storage.commit.history_rows import (
    Marker,
    find_committed_marker,
    read_leaf_changes,
    read_leaf_versions,
)
from phalanx.storage.commit.new_partitions import build_leaf_rows, create_partitions
from phalanx.storage.commit.publishing import (
    check_main,
    locations_of,
    mark_published,
    publish,
    tolerate_publish_failures,
)
from phalanx.storage.commit.writing import (
    MAX_NAMED_PARTITIONS,
    Footprint,
    LeafWrite,
    ReadFootprint,
    attach_partition,
    format_partitions,
    plan_emptying,
    remove_unlisted_leaves,
)
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.parallel import map_parallel
from phalanx.storage.lance.retries import is_commit_conflict
from phalanx.storage.leaf.leaf import LeafCreator
from phalanx.storage.leaf.replacements import (
    PreparedReplacement,
    select_applicable_replacements,
    stage_replacements,
)
from phalanx.storage.leaf.staging import (
    StagedVersion,
    rebase_staged,
    stage_change,
    stage_moved_rows,
)
from phalanx.storage.manifest.dropped import DROP_OPERATION as DROP
from phalanx.storage.manifest.dropped import DroppedLeaf, read_dropped_leaves, split_by_id
from phalanx.storage.manifest.manifest import Manifest
from phalanx.storage.state.table_state import Leaves
from phalanx.table.transactions.strong_mode import TransactionStart

# Operations that do not replace rows: they add rows, remove rows or change none.
_KEEPS_ROWS = frozenset({"append", "delete", "index", DROP})


class StrongTarget:
    """The staged changes of a transaction, on top of the snapshot that it started from."""

    def __init__(self, start: TransactionStart, isolation: str = "snapshot") -> None:
        self.began, self.base, self.head = start.began, start.base, start.head
        self.state = self.base
        self._serializable = isolation == "serializable"
        self._read_footprints: list[Footprint] = []
        self._replaced_footprints: list[Footprint] = []
        self._read_sets: list[ReadFootprint] = []
        self._leaves: dict[str, StagedLeaf] = {}
        self._new_keys: list[pa.Table] = []
        self._new_leaves: list[StagedLeaf] = []
        self._created: list[str] = []
        self._operations: list[str] = []
        # The dropped leaves, with the versions that they had.
        self._dropped: dict[str, int] = {}
        # Open leaves that files were written for, by location and version.
        self._open_leaves: dict[tuple[str, int | None], lance.LanceDataset] = {}
        self._rebased: dict[tuple[str, int], int] = {}
        # Like `_rebased`, for leaves dropped at that version: their old rows are gone.
        self._relisted: dict[tuple[str, int], int] = {}
        self._recording = UpdateRecorder()
        self.is_repeated = False
        """Whether the marker was committed before, so that this transaction was not committed."""

    # ── statements ───────────────────────────────────────────────────────────────────────────

    def ensure_partitions(self, keys: pa.Table, new: LeafCreator) -> None:
        """Create the missing partitions of the newest spec, visible to this transaction only."""
        missing = self.state.select_missing_keys(keys)
        if not missing.num_rows:
            return
        created = create_partitions(self.base, self.state, missing, new, self._dropped)
        for each in created.leaves:
            found = StagedLeaf(each.key, each.location, None, each.version, each.main)
            self._leaves[each.object_id] = found
            if each.dropped is None and new.job is None:
                self._created.append(self._location_in_manifest(each.location))
            if each.dropped is not None and self._dropped.pop(each.object_id, None) is not None:
                found.base, found.operations = each.dropped.version, [DROP]
                found.removed = each.dropped.count_rows()
            else:
                found.is_relisted = each.dropped is not None
                self._new_leaves.append(found)
                self._new_keys.append(each.key_row)
        self.state = self.state.with_staged(created.versions, created.rows)

    def drop(self, leaves: Leaves, advice: str) -> int:
        """Drop these leaves, and return their number.

        Leaves that this transaction has changed are emptied instead, and all leaves in drafts.
        """
        everything = self.state.properties.has_expression_specs
        changed, whole = split_by_id(leaves, None if everything else self._leaves)
        if any(some.num_rows for some in changed.values()):
            self.apply(plan_emptying(self.state, changed), DROP, advice)
        if whole:
            self._dropped |= whole
            self._operations.append(DROP)
            self.state = self.state.without_leaves(whole)
        return sum(some.num_rows for some in leaves.values())

    def open_leaf(self, location: Location, version: int | None) -> lance.LanceDataset:
        """Open a leaf to write files for, as the transaction sees it."""
        dataset = location.open_leaf(version)
        self._open_leaves[location.uri, version] = dataset
        return dataset

    def depend_on(self, footprint: Footprint, replaced: bool) -> None:
        """Record which leaves a statement depends on."""
        if self._serializable:
            self._read_footprints.append(footprint)
        if replaced:
            self._replaced_footprints.append(footprint)

    def record_read(self, read: ReadFootprint) -> None:
        """Record what the rows of a statement were computed from."""
        self._read_sets.append(read)

    def apply(self, writes: Sequence[LeafWrite], operation: str, advice: str) -> int:
        """Stage a change of each leaf, and return the number of rows removed."""
        schema = self.state.properties.schema

        def run(write: LeafWrite) -> tuple[StagedVersion, int] | None:
            assert write.version is not None
            known = self._leaves.get(write.object_id)
            main = 0
            if known is None:
                main = check_main(self.base, write.object_id, write.location, write.version)
            dataset = self._open_leaves.pop((write.location.uri, write.version), None)
            if dataset is None:
                dataset = write.location.open_leaf(write.version)
            new = (*write.fragments, *write.moved_in)
            with attach_partition(write.key):
                done = stage_change(write.location, dataset, new, schema, write.deletion)
            return None if done is None else (done, main)

        staged = {}
        removed = 0
        for write, result in zip(writes, map_parallel(run, writes), strict=True):
            if result is None:
                continue
            done, main = result
            found = self._leaves.get(write.object_id)
            if found is None:
                found = StagedLeaf(write.key, write.location, write.version, done.version, main)
                self._leaves[write.object_id] = found
            found.version = staged[write.object_id] = done.version
            found.operations.append(operation)
            found.added += done.added
            found.removed += done.removed
            removed += done.removed
        self._recording.add(writes)
        if staged:
            self._operations.append(operation)
            self.state = self.state.with_staged(staged)
        return removed

    def rewrite(self, rewrites: Sequence[LeafRewrite], operation: str = "rewrite") -> None:
        """Stage the prepared replacements of each leaf, as the only change of the transaction.

        Files from which another writer removes rows before the commit are not replaced.
        """

        def run(each: LeafRewrite) -> tuple[int, int]:
            main = check_main(self.base, each.object_id, each.location, each.version)
            dataset = each.location.open_leaf(each.version)
            return stage_replacements(each.location, dataset, each.replacements), main

        for each, (version, main) in zip(rewrites, map_parallel(run, rewrites), strict=True):
            self._leaves[each.object_id] = StagedLeaf(
                each.key,
                each.location,
                each.version,
                version,
                main,
                [operation],
                replacements=each.replacements,
            )
        self._operations.append(operation)

    @property
    def committed_replacements(self) -> dict[str, tuple[PreparedReplacement, ...]]:
        """The replacements of each leaf that were committed."""
        return {name: each.replacements for name, each in self._leaves.items()}

    # ── the commit ───────────────────────────────────────────────────────────────────────────

    def commit_snapshot(self, marker: Marker | None) -> int | None:
        """Commit all changes as one snapshot, and return its id, or None if nothing changed."""
        if not self._leaves and not self._dropped and marker is None:
            return None
        names: list[str] = []

        def attempt() -> int | None:
            latest = self.base.load_latest()
            now = self._check_epoch(latest, self.head if latest is self.base else read_head(latest))
            if marker is not None and (done := find_committed_marker(latest, marker)) is not None:
                # Its writer may have died before it published these leaves.
                names[:] = self._leaves
                self.is_repeated = True
                return done
            if latest is not self.base:
                self._check_reads(latest)
                self._check_replaced(latest)
            self._check_read_sets(latest)
            with self.detect_vacuum():
                leaves, new = self._rebase(latest)
                dropped = self._check_dropped(latest)
                staged = [(each.location, each.version) for each in self._leaves.values()]
                updates = self._recording.write(latest.root, staged)
            if not leaves and new is None and not dropped and marker is None:
                if self._dropped:
                    # Another writer dropped the same leaves.
                    return None
                why = "and changed every file that was rewritten"
                raise self._conflict(latest, set(self._leaves), why)
            names[:] = [each.object_id for each in leaves]
            operation = "+".join(dict.fromkeys(self._operations)) or "nothing"
            try:
                return head.commit(
                    latest,
                    now,
                    leaves,
                    operation,
                    new=new,
                    dropped=dropped,
                    marker=marker,
                    updates=updates,
                )
            except BaseException as error:
                if not is_commit_conflict(error):
                    # The commit may have succeeded, or may still succeed: keep the new leaves.
                    self._created.clear()
                if isinstance(error, UnknownOutcome):
                    error.partitions = tuple(keys)
                raise

        keys = [each.key for each in self._leaves.values()]
        keys += self.base.find_keys(islice(self._dropped, MAX_NAMED_PARTITIONS))
        change = f"the change of partition {format_partitions(keys)}"
        number = retry_commit(attempt, self.base, change, partitions=keys)
        if number is not None:
            self._publish(number, names)
        return number

    def _publish(self, number: int, names: Iterable[str]) -> None:
        """Publish these leaves, and remove the created leaves that the manifest does not list."""
        with tolerate_publish_failures(number):
            outdated_mains = {name: each.main for name, each in self._leaves.items()}
            latest = publish(self.base, names, outdated_mains)
            if number == self.head.sequence + 1:
                mark_published(latest, replace(self.head, sequence=number))
            remove_unlisted_leaves(latest, self._created)

    def discard(self) -> None:
        """Remove the created leaves; other staged files are orphans, which vacuum removes."""
        if self._created:
            with suppress(OSError, ValueError, StorageFailure):
                remove_unlisted_leaves(self.base.load_latest(), self._created)

    def _check_epoch(self, latest: Manifest, found: Head | None) -> Head:
        before, now = self.base.properties, latest.properties
        if found is None or found.epoch != self.head.epoch or now.epoch != before.epoch:
            raise CommitConflict(
                f"Cannot commit to {latest.root}: another writer changed its schema, its specs or "
                "its mode meanwhile. Check the table as it is now, and write again.",
                snapshot=None if found is None else found.sequence,
            )
        if found.was_vacuumed(self.head, self.began):
            raise vacuum_conflict(latest, self.began, found)
        return replace(found, published=max(found.published, self.head.published))

    @contextmanager
    def detect_vacuum(self) -> Iterator[None]:
        """Turn a failure before the commit into a retryable conflict if a vacuum caused it."""
        try:
            yield
        except (PhalanxError, OSError, ValueError):
            latest = self.base.load_latest()
            found = None if latest is self.base else read_head(latest)
            if found is not None and found.was_vacuumed(self.head, self.began):
                raise vacuum_conflict(latest, self.began, found) from None
            raise

    @property
    def horizon(self) -> str:
        """The vacuum horizon; files staged under an earlier one may be gone."""
        return self.head.horizon

    def _check_reads(self, latest: Manifest) -> None:
        """Serializable isolation: refuse if rows that the transaction read have changed.

        Their location does not matter: a compaction changes no row.
        """
        touched: set[str] | None = None
        for footprint in self._read_footprints:
            before, now = footprint(self.base), footprint(latest)
            if changed := {name for name, _ in before.items() ^ now.items()}:
                touched = self._find_changed_leaves(latest) if touched is None else touched
                if changed := changed & touched:
                    raise self._conflict(latest, changed, "and this one has read it")

    def _find_changed_leaves(self, latest: Manifest) -> set[str]:
        """Return the leaves whose rows later snapshots changed, or may have changed."""
        newest = read_head(latest)
        assert newest is not None
        found = read_leaf_changes(latest, self.head.sequence, newest.sequence)
        known = self.base.leaf_versions().items() ^ latest.leaf_versions().items()
        silent = {name for name, _ in known} - {each.object_id for each in found}
        return silent | {each.object_id for each in found if each.version_row.may_change_rows}

    def _check_replaced(self, latest: Manifest) -> None:
        """Refuse if another snapshot replaced the same rows: both new versions would remain."""
        for footprint in self._replaced_footprints:
            before, now = footprint(self.base), footprint(latest)
            for name in {name for name, _ in now.items() - before.items()}:
                entries = read_leaf_versions(latest, name, self.head.sequence)
                if any(
                    each.may_change_rows and set(each.operation.split("+")) - _KEEPS_ROWS
                    for each in entries
                ):
                    raise self._conflict(latest, {name}, "and both replace rows there")

    def _check_read_sets(self, latest: Manifest) -> None:
        """Refuse if a read set changed, except by appends that read no rows themselves."""
        for reading in self._read_sets:
            if reading.version == latest.version:
                continue
            found = open_with_head(latest, reading.version)
            if found is None or found[0].properties.epoch != latest.properties.epoch:
                raise CommitConflict(
                    f"Cannot commit to {latest.root}: another writer changed its schema, its specs "
                    "or its mode, or vacuumed it, after the statement read it. Run it again."
                )
            base, since = found
            before, now = reading.footprint(base), reading.footprint(latest)
            changed = {name for name, _ in before.items() ^ now.items()}
            if changed := changed - self._find_append_only_leaves(latest, since):
                raise change_conflict(latest, changed, since, "and this one has read it")

    def _find_append_only_leaves(self, latest: Manifest, since: Head) -> set[str]:
        """Return the leaves that later snapshots changed only by appends that read no rows."""
        newest = read_head(latest)
        assert newest is not None
        is_append_only: dict[str, bool] = {}
        for each in read_leaf_changes(latest, since.sequence, newest.sequence):
            is_blind = (
                not each.version_row.may_change_rows or each.version_row.operation == "append"
            )
            is_append_only[each.object_id] = is_append_only.get(each.object_id, True) and is_blind
        return {name for name, is_only in is_append_only.items() if is_only}

    def _rebase(self, latest: Manifest) -> tuple[list[LeafVersion], pa.Table | None]:
        """Rebase the staged versions, and return them with the rows of missing partitions."""
        self._recording.begin_attempt()
        found: list[LeafVersion] = []
        old = {name: each for name, each in self._leaves.items() if each.base is not None}
        current = latest.leaf_versions(old)
        read_from = locations_of(latest, old)
        new_keys, new = list(self._new_keys), list(self._new_leaves)
        for name, each in old.items():
            version = each.version
            if name not in current and each.is_append_only:
                new_keys.append(self._key_of(name, each))
                new.append(self._relist(latest, name, each))
                continue
            if read_from.get(name, each.location) != each.location:
                raise self._conflict(latest, {name}, "and it is read from another branch now")
            if current.get(name) != each.base:
                version = self._rebase_leaf(latest, name, each, current.get(name))
            if version == current.get(name):
                continue
            found.append(LeafVersion(name, version, each.operation, each.added, each.removed))
        if not new_keys:
            return found, None
        keys = pa.concat_tables(new_keys)
        places = latest.find_leaf_rows(keys)
        existing = latest.list_leaves()[latest.properties.spec.id]
        for place, each in zip(places.tolist(), new, strict=True):
            if place >= 0:
                row = existing.slice(place, 1).to_pylist()[0]
                found.append(self._move_to_existing(latest, each, row))
        missing = np.flatnonzero(places < 0)
        if not len(missing):
            return found, None
        ours = [new[place] for place in missing]
        missing_keys = keys.take(pa.array(missing))
        rows, names = build_leaf_rows(
            latest, missing_keys, [self._location_in_manifest(each.location) for each in ours]
        )
        fresh = [name for name, each in zip(names, ours, strict=True) if not each.is_relisted]
        if dropped := read_dropped_leaves(latest, fresh):
            # An object id keeps its location, and with it its history.
            ours = [
                self._move_to_dropped(latest, each, dropped[name]) if name in dropped else each
                for name, each in zip(names, ours, strict=True)
            ]
            rows, names = build_leaf_rows(
                latest, missing_keys, [self._location_in_manifest(each.location) for each in ours]
            )
        again = {name for name, each in zip(names, ours, strict=True) if each.is_relisted}
        if again - read_dropped_leaves(latest, again).keys():
            # Its files may be dropped: the next attempt creates a new leaf.
            raise RetryableConflict(
                f"A vacuum removed a dropped partition of {latest.root}. Try again."
            )
        for name, each in zip(names, ours, strict=True):
            found.append(
                LeafVersion(name, each.version, each.operation, each.added, each.removed, each.main)
            )
        return found, rows

    def _relist(self, latest: Manifest, name: str, each: StagedLeaf) -> StagedLeaf:
        """Stage only our rows in a leaf that another writer dropped."""
        dropped = read_dropped_leaves(latest, [name]).get(name)
        if dropped is None or each.base is None:
            raise self._conflict(latest, {name}, "and removed it")
        if (name, dropped.version) not in self._relisted:
            empty = dropped.stage_empty(latest.properties.schema)
            self._relisted[name, dropped.version] = rebase_staged(
                each.location, each.base, each.version, empty
            )
        version = self._relisted[name, dropped.version]
        self._recording.record_rebase(
            each.location, each.version, each.location, dropped.version, version
        )
        return replace(each, version=version, is_relisted=True)

    def _move_to_dropped(
        self, latest: Manifest, each: StagedLeaf, dropped: DroppedLeaf
    ) -> StagedLeaf:
        """Move our new partition into the leaf that another writer created and then dropped."""
        name = dropped.object_id
        if (name, dropped.version) not in self._relisted:
            schema = latest.properties.schema
            self._relisted[name, dropped.version] = stage_moved_rows(
                each.location, each.version, dropped.location, dropped.stage_empty(schema), schema
            )
        version = self._relisted[name, dropped.version]
        self._recording.record_rebase(
            each.location, each.version, dropped.location, dropped.version, version
        )
        main = check_main(latest, name, dropped.location, dropped.version)
        return replace(
            each, location=dropped.location, version=version, main=main, is_relisted=True
        )

    def _key_of(self, name: str, each: StagedLeaf) -> pa.Table:
        """Return the partition key of a leaf that existed when the transaction started."""
        number = each.key.spec_id
        leaves = self.base.list_leaves()[number]
        own = leaves.filter(pc.equal(leaves.column(LEAF_OBJECT_ID), name))
        return self.base.leaf_keys(number, own)

    def _location_in_manifest(self, location: Location) -> str:
        """Return the location of a leaf as the manifest stores it."""
        return location.uri.removeprefix(f"{self.base.root.uri}/")

    def _check_dropped(self, latest: Manifest) -> list[str]:
        """Return the leaves to drop that are still listed; refuse if one of them changed."""
        if latest is self.base or not self._dropped:
            return list(self._dropped)
        current = latest.leaf_versions(self._dropped)
        for name, version in current.items():
            if version != self._dropped[name]:
                raise self._conflict(latest, {name}, "and this one drops it")
        return list(current)

    def _rebase_leaf(
        self, latest: Manifest, name: str, each: StagedLeaf, current: int | None
    ) -> int:
        if current is None or each.base is None:
            raise self._conflict(latest, {name}, "and removed it")
        if each.replacements:
            return self._rebase_replacements(each, current)
        if (name, current) not in self._rebased:
            try:
                version = rebase_staged(each.location, each.base, each.version, current)
            except CommitConflict:
                why = "and both remove rows of the same file"
                raise self._conflict(latest, {name}, why) from None
            self._rebased[name, current] = version
        version = self._rebased[name, current]
        self._recording.record_rebase(each.location, each.version, each.location, current, version)
        return version

    def _rebase_replacements(self, each: StagedLeaf, current: int) -> int:
        """Stage the replacements on another version, or return that version if none applies."""
        dataset = each.location.open_leaf(current)
        each.replacements = select_applicable_replacements(dataset, each.replacements)
        if not each.replacements:
            return current
        return stage_replacements(each.location, dataset, each.replacements)

    def _move_to_existing(
        self, latest: Manifest, each: StagedLeaf, row: dict[str, object]
    ) -> LeafVersion:
        """Move our new partition into the one that another writer created concurrently."""
        name, current = str(row[LEAF_OBJECT_ID]), row[LEAF_VERSION]
        if not isinstance(current, int):
            raise RetryableConflict(
                f"Cannot commit to {latest.root}: a writer that began in weak mode created the "
                f"partition {format_partitions([each.key])} at the same time. Start the "
                "transaction again.",
                partitions=[each.key],
            )
        target = latest.root.leaf(str(row[LEAF_LOCATION]))
        if (name, current) not in self._rebased:
            self._rebased[name, current] = stage_moved_rows(
                each.location, each.version, target, current, latest.properties.schema
            )
        version = self._rebased[name, current]
        self._recording.record_rebase(each.location, each.version, target, current, version)
        return LeafVersion(name, version, each.operation, each.added, each.removed)

    def _conflict(self, latest: Manifest, names: set[str], why: str) -> RetryableConflict:
        return change_conflict(latest, names, self.head, why)


class RetryableConflict(CommitConflict):
    """Another snapshot changed the same rows; running the statements again may succeed."""


def change_conflict(latest: Manifest, names: set[str], head: Head, why: str) -> RetryableConflict:
    """Return the error for leaves that another snapshot changed since the transaction's head."""
    entries = read_leaf_versions(latest, min(names), head.sequence)
    other = entries[-1].snapshot if entries else "another"
    keys = latest.find_keys(names)
    return RetryableConflict(
        f"Cannot commit to {latest.root}: snapshot {other} changed partition "
        f"{format_partitions(keys)} since snapshot {head.sequence}, {why}. Start the transaction "
        "again.",
        partitions=keys,
        snapshot=entries[-1].snapshot if entries else None,
    )


def vacuum_conflict(latest: Manifest, began: datetime, found: Head) -> RetryableConflict:
    """Return the error for a transaction that began before the horizon of a vacuum."""
    return RetryableConflict(
        f"Cannot commit to {latest.root}: the transaction began at {began.isoformat()}, and a "
        f"vacuum removed files from before {found.horizon}, which may be its own. Start it again.",
        snapshot=found.sequence,
    )


@dataclass(frozen=True, slots=True)
class LeafRewrite:
    """Prepared replacements for files or indexes of a leaf at one version."""

    key: PartitionKey
    object_id: str
    location: Location
    version: int
    replacements: tuple[PreparedReplacement, ...]


@dataclass(slots=True)
class StagedLeaf:
    """A leaf with staged changes; without a base if this transaction created or relisted it."""

    key: PartitionKey
    location: Location
    base: int | None
    version: int
    main: int
    operations: list[str] = field(default_factory=list)
    added: int = 0
    removed: int = 0
    replacements: tuple[PreparedReplacement, ...] = ()
    is_relisted: bool = False

    @property
    def is_append_only(self) -> bool:
        """Whether rows were only appended, so that no other change of the leaf conflicts."""
        return bool(self.operations) and set(self.operations) == {"append"} and not self.removed

    @property
    def operation(self) -> str:
        return "+".join(dict.fromkeys(self.operations)) or "create"
