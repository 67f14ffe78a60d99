"""The changes of one transaction: staged where nobody sees them, committed as one snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import islice

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from phalanx.errors import CommitConflict, PhalanxError, StorageFailure
from phalanx.planning.pruning.scan_plan import LOCATION, OBJECT_ID, READ_VERSION
from phalanx.storage.changes.update_recorder import Recording
from phalanx.storage.commit import head
from phalanx.storage.commit.head import Head, LeafVersion, head_of, until_committed, with_head
from phalanx.storage.commit.history_rows import (
    Marker,
    changes_between,
    committed_marker,
    entries_of,
)
from phalanx.storage.commit.new_partitions import made_partitions, rows_of_made
from phalanx.storage.commit.publishing import (
    check_main,
    locations_of,
    note_published,
    publish,
    standing,
)
from phalanx.storage.commit.writing import (
    MOST_NAMED,
    Footprint,
    LeafWrite,
    Reading,
    emptying,
    named,
    remove_unlisted,
)
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.parallel import in_parallel
from phalanx.storage.lance.retries import is_lost_race
from phalanx.storage.leaf import replacements as replacing
from phalanx.storage.leaf.replacements import Replacement
from phalanx.storage.leaf.staging import StagedVersion, moved, rebase, stage
from phalanx.storage.manifest.dropped import OPERATION as DROP
from phalanx.storage.manifest.dropped import DroppedLeaf, dropped_leaves, parted
from phalanx.storage.manifest.manifest import Manifest
from phalanx.storage.new_leaves import NewLeaves
from phalanx.storage.state.table_state import Leaves
from phalanx.table.overtaken import Overtaken, changed_since, vacuumed
from phalanx.table.read.keys import keys_named
from phalanx.table.staged_leaf import LeafRewrite, StagedLeaf
from phalanx.table.transactions.strong_mode import Start

# What leaves rows as they are, unless it takes them away.
_NO_REPLACEMENT = frozenset({"append", "delete", "index", DROP})


class StagedChanges:
    """What a transaction has done so far, on top of the snapshot that it began with."""

    def __init__(self, start: Start, isolation: str = "snapshot") -> None:
        self.began, self.base, self.head = start.began, start.base, start.head
        self.manifest = self.base
        self._serializable = isolation == "serializable"
        self._reads: list[Footprint] = []
        self._replaced: list[Footprint] = []
        self._readings: list[Reading] = []
        self._leaves: dict[str, StagedLeaf] = {}
        self._new_keys: list[pa.Table] = []
        self._new: list[StagedLeaf] = []
        self._made: list[str] = []
        self._operations: list[str] = []
        # The leaves that are not listed any more, with the versions that they had.
        self._dropped: dict[str, int] = {}
        # Leaves that files were written for, in the versions that get them.
        self._opened: dict[tuple[str, int | None], lance.LanceDataset] = {}
        self._rebased: dict[tuple[str, int], int] = {}
        # The same for leaves that were dropped in that version: there the rows are gone.
        self._relisted: dict[tuple[str, int], int] = {}
        self._updates = Recording()
        self.is_repeated = False
        """Whether another transaction with the same marker was committed, and this one was not."""

    # ── statements ───────────────────────────────────────────────────────────────────────────

    def ensure_partitions(self, keys: pa.Table, new: NewLeaves) -> None:
        """Create the partitions of the newest spec that are missing, for this transaction only."""
        missing = self.manifest.missing(keys)
        if not missing.num_rows:
            return
        made = made_partitions(self.base, self.manifest, missing, new, self._dropped)
        for each in made.leaves:
            found = StagedLeaf(each.key, each.location, None, each.version, each.main)
            self._leaves[each.object_id] = found
            if each.before is None and new.job is None:
                self._made.append(self._place(each.location))
            if each.before is not None and self._dropped.pop(each.object_id, None) is not None:
                found.base, found.operations = each.before.version, [DROP]
                found.removed = each.before.count_rows()
            else:
                found.is_again = each.before is not None
                self._new.append(found)
                self._new_keys.append(each.key_row)
        self.manifest = self.manifest.with_staged(made.versions, made.rows)

    def drop(self, leaves: Leaves, repair: str) -> int:
        """List these leaves no more; how many they are.

        Those that this transaction has changed already become empty instead, and in drafts all do.
        """
        everything = self.manifest.properties.is_drafted
        changed, whole = parted(leaves, None if everything else self._leaves)
        if any(some.num_rows for some in changed.values()):
            self.commit(emptying(self.manifest, changed), DROP, repair)
        if whole:
            self._dropped |= whole
            self._operations.append(DROP)
            self.manifest = self.manifest.without_leaves(whole)
        return sum(some.num_rows for some in leaves.values())

    def open_leaf(self, location: Location, version: int | None) -> lance.LanceDataset:
        """A leaf to write files for, as the transaction sees it."""
        dataset = location.open_leaf(version)
        self._opened[location.uri, version] = dataset
        return dataset

    def depend_on(self, footprint: Footprint, replaced: bool) -> None:
        """Remember which leaves a statement looked at."""
        if self._serializable:
            self._reads.append(footprint)
        if replaced:
            self._replaced.append(footprint)

    def has_read(self, reading: Reading) -> None:
        """Remember what the rows of a statement were computed from."""
        self._readings.append(reading)

    def commit(self, writes: Sequence[LeafWrite], operation: str, repair: str) -> int:
        """Stage a change of each leaf; the number of rows removed."""
        schema = self.manifest.properties.schema

        def run(write: LeafWrite) -> tuple[StagedVersion, int] | None:
            assert write.version is not None
            known = self._leaves.get(write.object_id)
            main = 0
            if known is None:
                main = check_main(self.base, write.object_id, write.location, write.version)
            dataset = self._opened.pop((write.location.uri, write.version), None)
            if dataset is None:
                dataset = write.location.open_leaf(write.version)
            new = (*write.fragments, *write.moved)
            done = stage(write.location, dataset, new, schema, write.deletion)
            return None if done is None else (done, main)

        staged = {}
        removed = 0
        for write, result in zip(writes, in_parallel(run, writes), strict=True):
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
        self._updates.add(writes)
        if staged:
            self._operations.append(operation)
            self.manifest = self.manifest.with_staged(staged)
        return removed

    def rewrite(self, rewrites: Sequence[LeafRewrite], operation: str = "rewrite") -> None:
        """Stage for each leaf what stands for something in it; it is all the transaction does.

        Where another writer removes rows of the same files before the commit, those stay.
        """

        def run(each: LeafRewrite) -> tuple[int, int]:
            main = check_main(self.base, each.object_id, each.location, each.version)
            dataset = each.location.open_leaf(each.version)
            return replacing.stage(each.location, dataset, each.results), main

        for each, (version, main) in zip(rewrites, in_parallel(run, rewrites), strict=True):
            self._leaves[each.object_id] = StagedLeaf(
                each.key,
                each.location,
                each.version,
                version,
                main,
                [operation],
                rewritten=each.results,
            )
        self._operations.append(operation)

    @property
    def rewritten(self) -> dict[str, tuple[Replacement, ...]]:
        """For each leaf what stands for something in it, as far as it was committed."""
        return {name: each.rewritten for name, each in self._leaves.items()}

    # ── the commit ───────────────────────────────────────────────────────────────────────────

    def commit_snapshot(self, marker: Marker | None) -> int | None:
        """Make all of it visible at once; the snapshot's id, None if there was nothing to do."""
        if not self._leaves and not self._dropped and marker is None:
            return None
        names: list[str] = []

        def attempt() -> int | None:
            latest = self.base.latest()
            now = self._check_epoch(latest, self.head if latest is self.base else head_of(latest))
            if marker is not None and (done := committed_marker(latest, marker)) is not None:
                # Who committed it may have died before main followed.
                names[:] = self._leaves
                self.is_repeated = True
                return done
            if latest is not self.base:
                self._check_reads(latest)
                self._check_replaced(latest)
            self._check_readings(latest)
            with self.unless_vacuumed():
                leaves, new = self._on_top_of(latest)
                dropped = self._still_listed(latest)
                staged = [(each.location, each.version) for each in self._leaves.values()]
                updates = self._updates.written(latest.root, staged)
            if not leaves and new is None and not dropped and marker is None:
                if self._dropped:
                    # Another writer has dropped the same.
                    return None
                why = "and changed every file that was rewritten"
                raise self._overtaken(latest, set(self._leaves), why)
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
                if not is_lost_race(error):
                    # The new leaves are perhaps listed, or soon will be: they stay.
                    self._made.clear()
                raise

        keys = [each.key for each in self._leaves.values()]
        changed = named([*keys, *keys_named(self.base, islice(self._dropped, MOST_NAMED))])
        number = until_committed(attempt, self.base, f"the change of partition {changed}")
        if number is not None:
            self._published(number, names)
        return number

    def _published(self, number: int, names: Iterable[str]) -> None:
        """Bring the mains of these leaves along, and remove what was made for nothing."""
        with standing(number):
            known = {name: each.main for name, each in self._leaves.items()}
            latest = publish(self.base, names, known)
            if number == self.head.sequence + 1:
                note_published(latest, replace(self.head, sequence=number))
            remove_unlisted(latest, self._made)

    def discard(self) -> None:
        """Remove the leaves that were made for nothing; what else was written nobody lists."""
        if self._made:
            with suppress(OSError, ValueError, StorageFailure):
                remove_unlisted(self.base.latest(), self._made)

    def _check_epoch(self, latest: Manifest, found: Head | None) -> Head:
        before, now = self.base.properties, latest.properties
        if found is None or found.epoch != self.head.epoch or now.epoch != before.epoch:
            raise CommitConflict(
                f"Cannot commit to {latest.root}: another writer changed its schema, its specs or "
                "its mode meanwhile. Look at the table as it is now, and write again."
            )
        if found.was_vacuumed(self.head, self.began):
            raise vacuumed(latest, self.began, found)
        return replace(found, published=max(found.published, self.head.published))

    @contextmanager
    def unless_vacuumed(self) -> Iterator[None]:
        """Before anything is committed: a file that a vacuum has removed is no failure."""
        try:
            yield
        except (PhalanxError, OSError, ValueError):
            latest = self.base.latest()
            found = None if latest is self.base else head_of(latest)
            if found is not None and found.was_vacuumed(self.head, self.began):
                raise vacuumed(latest, self.began, found) from None
            raise

    @property
    def horizon(self) -> str:
        """What a vacuum changes: files written under another one may be gone."""
        return self.head.horizon

    def _check_reads(self, latest: Manifest) -> None:
        """Serializable: the rows that the transaction looked at are as they were.

        Where they are stored does not matter: a compaction changes no row.
        """
        touched: set[str] | None = None
        for footprint in self._reads:
            before, now = footprint(self.base), footprint(latest)
            if changed := {name for name, _ in before.items() ^ now.items()}:
                touched = self._rows_changed(latest) if touched is None else touched
                if changed := changed & touched:
                    raise self._overtaken(latest, changed, "and this one has read it")

    def _rows_changed(self, latest: Manifest) -> set[str]:
        """The leaves whose rows other snapshots have changed, or whose changes nobody told."""
        newest = head_of(latest)
        assert newest is not None
        found = changes_between(latest, self.head.sequence, newest.sequence)
        known = self.base.versions().items() ^ latest.versions().items()
        silent = {name for name, _ in known} - {each.object_id for each in found}
        return silent | {each.object_id for each in found if each.entry.changes_rows}

    def _check_replaced(self, latest: Manifest) -> None:
        """Of two replacements of the same rows one would keep the other's: refuse it."""
        for footprint in self._replaced:
            before, now = footprint(self.base), footprint(latest)
            for name in {name for name, _ in now.items() - before.items()}:
                entries = entries_of(latest, name, self.head.sequence)
                if any(
                    each.changes_rows and set(each.operation.split("+")) - _NO_REPLACEMENT
                    for each in entries
                ):
                    raise self._overtaken(latest, {name}, "and both replace rows there")

    def _check_readings(self, latest: Manifest) -> None:
        """What was read is as it was, but for rows that were added without reading any."""
        for reading in self._readings:
            if reading.version == latest.version:
                continue
            found = with_head(latest, reading.version)
            if found is None or found[0].properties.epoch != latest.properties.epoch:
                raise CommitConflict(
                    f"Cannot commit to {latest.root}: another writer has changed its schema, its "
                    "specs or its mode, or vacuumed it, since the statement has read it. Run it "
                    "again."
                )
            base, since = found
            before, now = reading.footprint(base), reading.footprint(latest)
            changed = {name for name, _ in before.items() ^ now.items()}
            if changed := changed - self._grown(latest, since):
                raise changed_since(latest, changed, since, "and this one has read it")

    def _grown(self, latest: Manifest, since: Head) -> set[str]:
        """The leaves to which later snapshots have at most added rows, without reading any."""
        newest = head_of(latest)
        assert newest is not None
        told: dict[str, bool] = {}
        for each in changes_between(latest, since.sequence, newest.sequence):
            is_blind = not each.entry.changes_rows or each.entry.operation == "append"
            told[each.object_id] = told.get(each.object_id, True) and is_blind
        return {name for name, is_blind in told.items() if is_blind}

    def _on_top_of(self, latest: Manifest) -> tuple[list[LeafVersion], pa.Table | None]:
        """The staged versions on top of a manifest, and the rows of the partitions it lacks."""
        self._updates.begin()
        found: list[LeafVersion] = []
        old = {name: each for name, each in self._leaves.items() if each.base is not None}
        current = latest.versions(old)
        read_from = locations_of(latest, old)
        new_keys, new = list(self._new_keys), list(self._new)
        for name, each in old.items():
            version = each.version
            if name not in current and each.only_adds:
                new_keys.append(self._key_of(name, each))
                new.append(self._listed_again(latest, name, each))
                continue
            if read_from.get(name, each.location) != each.location:
                raise self._overtaken(latest, {name}, "and it is read from another branch now")
            if current.get(name) != each.base:
                version = self._moved_on(latest, name, each, current.get(name))
            if version == current.get(name):
                continue
            found.append(LeafVersion(name, version, each.operation, each.added, each.removed))
        if not new_keys:
            return found, None
        keys = pa.concat_tables(new_keys)
        places = latest.places(keys)
        theirs = latest.leaves()[latest.properties.spec.id]
        for place, each in zip(places.tolist(), new, strict=True):
            if place >= 0:
                row = theirs.slice(place, 1).to_pylist()[0]
                found.append(self._joined(latest, each, row))
        missing = np.flatnonzero(places < 0)
        if not len(missing):
            return found, None
        ours = [new[place] for place in missing]
        made = keys.take(pa.array(missing))
        rows, names = rows_of_made(latest, made, [self._place(each.location) for each in ours])
        fresh = [name for name, each in zip(names, ours, strict=True) if not each.is_again]
        if gone := dropped_leaves(latest, fresh):
            # An object is in one place, whatever happened to it meanwhile: its history is there.
            ours = [
                self._in_dropped(latest, each, gone[name]) if name in gone else each
                for name, each in zip(names, ours, strict=True)
            ]
            rows, names = rows_of_made(latest, made, [self._place(each.location) for each in ours])
        again = {name for name, each in zip(names, ours, strict=True) if each.is_again}
        if again - dropped_leaves(latest, again).keys():
            # Its files are perhaps gone: another attempt makes a leaf of its own.
            raise Overtaken(
                f"A vacuum has removed a dropped partition of {latest.root}. Try again."
            )
        for name, each in zip(names, ours, strict=True):
            found.append(
                LeafVersion(name, each.version, each.operation, each.added, each.removed, each.main)
            )
        return found, rows

    def _listed_again(self, latest: Manifest, name: str, each: StagedLeaf) -> StagedLeaf:
        """Our rows alone in a leaf that another writer has dropped, which is to be listed again."""
        gone = dropped_leaves(latest, [name]).get(name)
        if gone is None or each.base is None:
            raise self._overtaken(latest, {name}, "and removed it")
        if (name, gone.version) not in self._relisted:
            empty = gone.without_rows(latest.properties.schema)
            self._relisted[name, gone.version] = rebase(
                each.location, each.base, each.version, empty
            )
        version = self._relisted[name, gone.version]
        self._updates.follow(each.location, each.version, each.location, gone.version, version)
        return replace(each, version=version, is_again=True)

    def _in_dropped(self, latest: Manifest, each: StagedLeaf, gone: DroppedLeaf) -> StagedLeaf:
        """Our new partition in the leaf that another writer has made, and dropped since."""
        name = gone.object_id
        if (name, gone.version) not in self._relisted:
            schema = latest.properties.schema
            self._relisted[name, gone.version] = moved(
                each.location, each.version, gone.location, gone.without_rows(schema), schema
            )
        version = self._relisted[name, gone.version]
        self._updates.follow(each.location, each.version, gone.location, gone.version, version)
        main = check_main(latest, name, gone.location, gone.version)
        return replace(each, location=gone.location, version=version, main=main, is_again=True)

    def _key_of(self, name: str, each: StagedLeaf) -> pa.Table:
        """The partition key of a leaf that was there when the transaction began."""
        number = each.key.spec_id
        leaves = self.base.leaves()[number]
        own = leaves.filter(pc.equal(leaves.column(OBJECT_ID), name))
        return self.base.keys_of_leaves(number, own)

    def _place(self, location: Location) -> str:
        """Where a leaf is, as the manifest says it."""
        return location.uri.removeprefix(f"{self.base.root.uri}/")

    def _still_listed(self, latest: Manifest) -> list[str]:
        """The leaves to drop that are listed, and as they were: else their rows were not meant."""
        if latest is self.base or not self._dropped:
            return list(self._dropped)
        current = latest.versions(self._dropped)
        for name, version in current.items():
            if version != self._dropped[name]:
                raise self._overtaken(latest, {name}, "and this one drops it")
        return list(current)

    def _moved_on(self, latest: Manifest, name: str, each: StagedLeaf, current: int | None) -> int:
        if current is None or each.base is None:
            raise self._overtaken(latest, {name}, "and removed it")
        if each.rewritten:
            return self._rewritten_on(each, current)
        if (name, current) not in self._rebased:
            try:
                version = rebase(each.location, each.base, each.version, current)
            except CommitConflict:
                why = "and both remove rows of the same file"
                raise self._overtaken(latest, {name}, why) from None
            self._rebased[name, current] = version
        version = self._rebased[name, current]
        self._updates.follow(each.location, each.version, each.location, current, version)
        return version

    def _rewritten_on(self, each: StagedLeaf, current: int) -> int:
        """The new files on top of another version; the same version where none stands for any."""
        dataset = each.location.open_leaf(current)
        each.rewritten = replacing.unchanged(dataset, each.rewritten)
        if not each.rewritten:
            return current
        return replacing.stage(each.location, dataset, each.rewritten)

    def _joined(self, latest: Manifest, each: StagedLeaf, row: dict[str, object]) -> LeafVersion:
        """Our new partition in the one that another writer has made at the same time."""
        name, current = str(row[OBJECT_ID]), row[READ_VERSION]
        assert isinstance(current, int)
        target = latest.root.child(str(row[LOCATION]))
        if (name, current) not in self._rebased:
            self._rebased[name, current] = moved(
                each.location, each.version, target, current, latest.properties.schema
            )
        version = self._rebased[name, current]
        self._updates.follow(each.location, each.version, target, current, version)
        return LeafVersion(name, version, each.operation, each.added, each.removed)

    def _overtaken(self, latest: Manifest, names: set[str], why: str) -> Overtaken:
        return changed_since(latest, names, self.head, why)
