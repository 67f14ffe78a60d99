"""Erasure: remove matching rows from every file, in every retained version.

The first commit deletes the rows and rewrites the files that hold them. The second expires the
older snapshots that read such a file and moves the horizon, so that no running transaction can
bring a row back. Finally every file that nothing needs is removed, without a grace period. Calling
it again after an interruption completes the erasure.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from phalanx.arguments import ProgressCallback
from phalanx.errors import CommitConflict, PhalanxError, StorageFailure, UntrustedLocation
from phalanx.model.predicates.binding import bind_predicate
from phalanx.model.predicates.predicate import TRUE, Predicate
from phalanx.model.schema.dictionaries import has_dictionaries
from phalanx.planning.formatting import format_count
from phalanx.planning.pruning.leaf_columns import LEAF_OBJECT_ID
from phalanx.planning.pruning.prune import Pruning, prune
from phalanx.storage.cleanup.debris import Debris
from phalanx.storage.cleanup.erasure import (
    CleanedLeaf,
    LeafMatches,
    MatchFinder,
    list_data_files,
    max_matching_rows,
    read_manifest_file,
    remove_matches,
)
from phalanx.storage.cleanup.expiry import (
    Expiry,
    has_files,
    move_horizon,
    plan_expiry,
    remove_leaving_rows,
)
from phalanx.storage.commit import head
from phalanx.storage.commit.head import LeafVersion, read_head
from phalanx.storage.commit.history_rows import (
    LeafVersionRow,
    list_snapshots,
    read_leaf_changes,
    read_leaf_versions,
)
from phalanx.storage.commit.publishing import branches_of, locations_of, publish
from phalanx.storage.lance.files import Folder
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.parallel import map_parallel
from phalanx.storage.leaf import staging
from phalanx.storage.manifest.dropped import (
    DROPPED_TYPE,
    include_dropped,
    read_dropped_leaves,
    read_leaving_leaves,
)
from phalanx.storage.manifest.manifest import MANIFEST_DIRECTORY, Manifest
from phalanx.storage.manifest.rows import LANCE_ROW_ADDRESS
from phalanx.storage.state.naming import LEAF_DIRECTORY, SEPARATOR
from phalanx.table.maintenance.vacuum import ExpiryPlan, find_unneeded_files, to_file_table
from phalanx.table.transactions import strong_mode as strong
from phalanx.table.write.operations import choose_partitions

# Seconds to wait, so that files written afterwards have a later time in the store.
_CLOCK_TICK, _OBJECT_STORE_TICK = 0.02, 1.1
# Concurrent writers may leave files or commit matching rows; each time takes another round.
_MAX_ROUNDS = 5
_END_OF_TIME = datetime.max.replace(tzinfo=UTC)
_LOGGER = logging.getLogger("phalanx.table")


@dataclass(frozen=True, slots=True)
class Erased:
    """The result of an erasure.

    Attributes:
        where: The predicate whose rows were erased.
        rows: The number of matching rows, including deleted ones that were still stored. For each
            partition it counts the most that one of its versions held.
        live_rows: The number of these rows that were visible until now.
        files: The number of data files that held such rows. They are removed.
        files_written: The number of new files, with the other rows of the removed ones.
        partitions: The number of partitions that were removed as a whole.
        snapshot: The id of the snapshot that deleted the rows; None in weak mode, and if no visible
            row matched.
        snapshots: The ids of the snapshots that expired; none in weak mode.
        removed: The path, kind, bytes and modification time of each file removed.
        files_verified: The number of files that were read afterwards, to confirm that they hold no
            matching row.
    """

    where: str
    rows: int = 0
    live_rows: int = 0
    files: int = 0
    files_written: int = 0
    partitions: int = 0
    snapshot: int | None = None
    snapshots: tuple[int, ...] = ()
    removed: pa.Table = field(default_factory=lambda: to_file_table(Debris((), {})))
    files_verified: int = 0

    @property
    def bytes(self) -> int:
        """The total size of the files removed."""
        return sum(self.removed.column("bytes").to_pylist())

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return {
            "where": self.where,
            "rows": self.rows,
            "live_rows": self.live_rows,
            "files": self.files,
            "files_written": self.files_written,
            "partitions": self.partitions,
            "snapshot": self.snapshot,
            "expired_snapshots": list(self.snapshots),
            "removed_files": self.removed.num_rows,
            "removed_bytes": self.bytes,
            "files_verified": self.files_verified,
        }

    def __str__(self) -> str:
        checked = (
            f"Verified {format_count(self.files_verified, 'file')}: none holds a matching row."
        )
        if not self.removed.num_rows:
            return f"Nothing to erase: no file holds a matching row.\n{checked}"
        span = f" ({self.snapshots[0]} to {self.snapshots[-1]})" if self.snapshots else ""
        return "\n".join(
            [
                f"Erased {format_count(self.rows, 'row')} ({self.live_rows:,} of them live) from "
                f"{format_count(self.files, 'file')}; {self.files_written:,} rewritten, "
                f"{format_count(self.partitions, 'partition')} removed.",
                f"Expired {format_count(len(self.snapshots), 'snapshot')}{span}.",
                f"Removed {format_count(self.removed.num_rows, 'file')}, {self.bytes:,} bytes.",
                checked,
            ]
        )


def erase(
    load_manifest: Callable[[], Manifest],
    where: str,
    force: bool,
    progress: ProgressCallback | None = None,
) -> Erased:
    """Remove the matching rows from every file of the table.

    A table in weak mode is in strong mode during the erasure.
    """
    current = load_manifest()
    bind_predicate(where, current.properties.schema)
    if current.properties.mode == "weak":
        current = strong.set_mode(current, "strong", returns=True)
    elif not current.properties.returns_to_weak:
        return _Erasure(current, where, force, progress).run()
    try:
        done = _Erasure(current, where, force, progress).run()
        return replace(done, snapshot=None, snapshots=())
    finally:
        current = load_manifest()
        if current.properties.returns_to_weak:
            strong.set_mode(current, "weak")


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A leaf that may hold matching rows, and the versions of it that snapshots read."""

    object_id: str
    location: Location
    # The last snapshot that reads each version; the newest one for the current version.
    versions: Mapping[int, int]
    current: int | None


@dataclass(frozen=True, slots=True)
class _ErasureTargets:
    """Everything that an erasure must remove from a table."""

    leaves: Mapping[str, _Leaf]
    matches: Mapping[str, Mapping[int, LeafMatches]]
    # Listed partitions that match as a whole or have no other rows: their values go too.
    whole: tuple[str, ...]
    # Whether files of the manifest name partitions that match as a whole.
    in_manifest: bool
    # The last snapshot that reads matching rows.
    last_snapshot: int
    # Whether unlisted files may hold matching rows.
    has_unlisted: bool

    @property
    def leaves_to_clean(self) -> list[str]:
        """The listed leaves whose current version has matching rows."""
        return [
            name
            for name, leaf in self.leaves.items()
            if leaf.current is not None
            and name not in self.whole
            and self.matches[name][leaf.current].has_any
        ]

    @property
    def has_matches(self) -> bool:
        """Whether there is anything to erase."""
        return bool(
            self.leaves_to_clean
            or self.whole
            or self.in_manifest
            or self.last_snapshot
            or self.has_unlisted
        )


class _Erasure:
    """One erasure; it keeps what was found and staged between attempts to commit."""

    def __init__(
        self, manifest: Manifest, where: str, force: bool, progress: ProgressCallback | None
    ) -> None:
        self.manifest, self.where, self.force = manifest, where, force
        self.predicate: Predicate = bind_predicate(where, manifest.properties.schema)
        self.progress = progress
        self.search = MatchFinder(self.predicate, manifest.properties.schema)
        self._cleaned: dict[tuple[str, int], CleanedLeaf] = {}
        self._published: Manifest | None = None
        # The newest manifest searched since the erasing commit, and the result.
        self._last_search: tuple[Manifest, _ErasureTargets] | None = None
        self._checked_leaves: set[str] = set()
        self._manifest_files: dict[str, bool] = {}
        # The totals of all attempts.
        self.rows: dict[str, int] = {}
        self.files: set[tuple[str, str]] = set()
        self.results: list[CleanedLeaf] = []
        self.dropped: set[str] = set()
        self.live_dropped = 0
        self.snapshot: int | None = None

    def run(self) -> Erased:
        """Erase, remove files and verify; repeat while other writers leave matching rows."""
        removed: list[Debris] = []
        snapshots: list[int] = []
        for number in range(1, _MAX_ROUNDS + 1):
            _LOGGER.debug("Searching %s for rows to erase, round %d", self.manifest.root, number)
            if not head.retry_commit(self._erase_newest, self.manifest, "the erasure", eager=True):
                break
            # All files written so far must be older than the new horizon.
            time.sleep(_CLOCK_TICK if self.manifest.root.is_local else _OBJECT_STORE_TICK)
            self._last_search = None
            plan = head.retry_commit(
                self._expire_snapshots, self.manifest, "the erasure", eager=True
            )
            if plan is None:
                continue
            root = Folder(self.manifest.root)
            removed.append(find_unneeded_files(root, root.list_files(), plan, _END_OF_TIME))
            snapshots += plan.expiry.snapshots
            self._check_removable(removed[-1])
            removed[-1].remove()
            remove_leaving_rows(self.manifest)
            # A writer whose commit was refused may have left files; the next round finds them.
        done = Erased(
            self.where,
            sum(self.rows.values()),
            sum(each.removed for each in self.results) + self.live_dropped,
            len(self.files),
            sum(each.files_after for each in self.results),
            len(self.dropped),
            self.snapshot,
            tuple(snapshots),
            pa.concat_tables(map(to_file_table, [Debris((), {}), *removed])),
            self._verify(),
        )
        if done.removed.num_rows:
            _LOGGER.info(
                "Erased %s of %s: %s and %s removed, %s expired",
                *(format_count(done.rows, "row"), self.manifest.root),
                *(format_count(done.files, "file"), format_count(done.partitions, "partition")),
                format_count(len(snapshots), "snapshot"),
            )
        return done

    # ── the two commits ──────────────────────────────────────────────────────────────────────

    def _erase_newest(self) -> bool:
        """Commit a snapshot without matching rows; return whether there is anything to erase."""
        base = self._publish_newest()
        targets = self._find_targets(base)
        if not targets.has_matches:
            return False
        self._check_erasable(base, targets)
        self._record_matches(targets)
        if targets.leaves_to_clean or targets.whole:
            self._commit(base, targets)
        return True

    def _expire_snapshots(self) -> ExpiryPlan | None:
        """Expire the snapshots that read matching rows; None if the newest one does again."""
        base, targets = self._find_since_last_search()
        if targets is None or targets.leaves_to_clean or targets.whole:
            return None
        newest = read_head(base)
        if newest is None:
            raise CommitConflict(
                f"Cannot erase from {base.root}: its mode was changed meanwhile. Erase again."
            )
        through = newest.sequence - 1 if targets.in_manifest else targets.last_snapshot
        expiry = plan_expiry(base, _END_OF_TIME, through)
        if targets.in_manifest:
            expiry = _add_empty_namespaces(base, expiry)
        moment = datetime.now(UTC)
        new_head = move_horizon(base, newest, expiry, moment, rewrite_all=targets.in_manifest)
        return ExpiryPlan(
            base, expiry, new_head.horizon, base.version + 1 if targets.in_manifest else 0
        )

    def _find_since_last_search(self) -> tuple[Manifest, _ErasureTargets | None]:
        """Return the newest manifest and the targets; None if others committed matching rows.

        Searches only what was committed since the last search: a full search takes longer than
        other writers need for their next commit. That is enough, because main branches show the
        erasing snapshot and commits on top of it contain none of the erased rows.
        """
        if self._last_search is None:
            base = self._publish_newest()
            self._last_search = base, self._find_targets(base)
            return self._last_search
        searched, targets = self._last_search
        base = self.manifest.load_latest()
        old_head, new_head = read_head(searched), read_head(base)
        known = None if old_head is None else (old_head.epoch, old_head.epoch, old_head.horizon)
        if (
            old_head is None
            or new_head is None
            or (base.properties.epoch, new_head.epoch, new_head.horizon) != known
        ):
            # Other writers changed more than rows.
            self._last_search = None
            return self._find_since_last_search()
        since = old_head.sequence
        new = {
            (each.object_id, each.version_row.version)
            for each in read_leaf_changes(base, since, new_head.sequence)
            if each.version_row.version is not None
        }
        locations = locations_of(include_dropped(base), {name for name, _ in new})
        matches = map_parallel(
            lambda each: self.search.find_in_version(locations[each[0]], each[1]),
            [each for each in new if each[0] in locations],
        )
        if any(each.has_any for each in matches):
            return base, None
        self._last_search = base, targets
        return base, targets

    def _publish_newest(self) -> Manifest:
        """Publish and return the newest manifest, so that main branches show it."""
        base, _ = strong.load_head(self.manifest)
        names = None
        if self._published is not None:
            before = self._published.leaf_versions().items()
            names = [name for name, _ in base.leaf_versions().items() - before]
        self._published = publish(base, names)
        self._check_schema(self._published)
        return self._published

    def _check_schema(self, manifest: Manifest) -> None:
        if manifest.properties.schema != self.manifest.properties.schema:
            raise CommitConflict(
                f"Cannot erase from {manifest.root}: another writer changed its schema meanwhile. "
                "Check the table as it is now and erase again."
            )

    def _record_matches(self, targets: _ErasureTargets) -> None:
        for name, matches in targets.matches.items():
            self.rows[name] = max(self.rows.get(name, 0), max_matching_rows(matches))
            self.files |= {(name, path) for each in matches.values() for path in each.files}

    def _commit(self, base: Manifest, targets: _ErasureTargets) -> None:
        """Commit one snapshot without the matching rows and wholly matching partitions."""
        newest = read_head(base)
        assert newest is not None

        def clean(name: str) -> tuple[LeafVersion, CleanedLeaf]:
            leaf = targets.leaves[name]
            assert leaf.current is not None
            key = name, leaf.current
            if key not in self._cleaned:
                self._cleaned[key] = self._clean_leaf(leaf, leaf.current, targets.matches[name])
            made = self._cleaned[key]
            version = LeafVersion(name, made.version, "delete+rewrite", 0, made.removed)
            return version, made

        made = map_parallel(clean, targets.leaves_to_clean)
        live = sum(dropped.count_rows() for dropped in self._open_whole(targets))
        self.snapshot = head.commit(
            base, newest, [version for version, _ in made], "erase", dropped=targets.whole
        )
        self.results += [each for _, each in made]
        self.dropped |= set(targets.whole)
        self.live_dropped += live

    def _clean_leaf(
        self, leaf: _Leaf, current: int, matches: Mapping[int, LeafMatches]
    ) -> CleanedLeaf:
        """Stage a version without matching rows; rebase that of an earlier attempt if possible."""
        schema, location = self.search.schema, leaf.location
        earlier = [number for name, number in self._cleaned if name == leaf.object_id]
        if earlier:
            before = self._cleaned[leaf.object_id, earlier[-1]]
            with suppress(CommitConflict):
                version = staging.rebase_staged(location, earlier[-1], before.version, current)
                rest = self.search.find_in_version(location, version)
                return before.combine(
                    remove_matches(location, version, rest, self.predicate, schema)
                )
        return remove_matches(location, current, matches[current], self.predicate, schema)

    def _open_whole(self, targets: _ErasureTargets) -> list[Any]:
        leaves = [targets.leaves[name] for name in targets.whole]
        return map_parallel(lambda leaf: leaf.location.open_leaf(leaf.current), leaves)

    def _check_erasable(self, manifest: Manifest, targets: _ErasureTargets) -> None:
        """Raise, before anything changes, if a leaf could not be erased completely."""
        branches = branches_of(manifest)
        affected = [
            name
            for name, matches in targets.matches.items()
            if name not in self._checked_leaves
            and (name in targets.whole or any(each.has_any for each in matches.values()))
        ]
        for name in affected:
            location = targets.leaves[name].location
            if (why := location.explain_not_owned()) is not None:
                raise UntrustedLocation(
                    f"Cannot erase from {location}, which the manifest of {manifest.root} lists: "
                    f"{why}. Adopt it with adopt({location.uri!r}), or remove the rows there by "
                    "other means."
                )
            dataset = location.open_leaf()
            if name in branches or dataset.branches.list():
                raise PhalanxError(
                    f"Cannot erase from {location}: it has branches of its own, which read its "
                    "files. Delete them with branches.delete() of that Lance table and erase again."
                )
            tags = {
                tag: int(tag_info["version"])
                for tag, tag_info in dataset.tags.list().items()
                if self.search.find_in_version(location, int(tag_info["version"])).has_any
            }
            if tags and not self.force:
                raise PhalanxError(
                    f"Cannot erase from {location}: its tags {', '.join(sorted(tags))} keep "
                    "matching rows. Delete them with tags.delete() of that Lance table, or erase "
                    "with force=True, which deletes them."
                )
            for tag in tags:
                dataset.tags.delete(tag)
            self._checked_leaves.add(name)

    # ── search ───────────────────────────────────────────────────────────────────────────────

    def _find_targets(self, manifest: Manifest) -> _ErasureTargets:
        newest = read_head(manifest)
        assert newest is not None
        schema, specs = manifest.properties.schema, manifest.properties.specs
        everything = include_dropped(manifest)
        chosen = may_match = _list_object_ids(everything, prune(self.predicate, specs, schema))
        if any(has_dictionaries(field.type) for field in schema.arrow):
            # The dictionary in a file may contain values of other partitions.
            chosen = _list_object_ids(everything, prune(TRUE, specs, schema))
        listed = manifest.leaf_versions()
        locations = locations_of(everything, chosen)
        oldest = min((int(each["id"]) for each in list_snapshots(manifest)), default=0)
        version_rows: dict[str, list[LeafVersionRow]] = defaultdict(list)
        for each in read_leaf_changes(manifest, 0, newest.sequence):
            version_rows[each.object_id].append(each.version_row)
        leaves = {
            name: _Leaf(
                name,
                locations[name],
                _find_last_snapshots(version_rows[name], newest.sequence, oldest, listed.get(name)),
                listed.get(name),
            )
            for name in sorted(chosen)
        }
        matches = dict(zip(leaves, self._search_leaves(list(leaves.values())), strict=True))
        whole = {
            name
            for rows in choose_partitions(everything, self.predicate).whole.values()
            for name in rows.column(LEAF_OBJECT_ID).to_pylist()
        }
        # Partitions without other rows go too, and with them their partition values.
        whole |= {name for name in may_match if self._is_emptied(leaves[name], matches[name])}
        unpartitioned = {
            f"v{number}{SEPARATOR}dataset" for number, spec in specs.items() if not spec.fields
        }
        whole -= unpartitioned
        last_snapshot = 0
        for name, leaf in leaves.items():
            for version, until in leaf.versions.items():
                current = version == leaf.current and name in listed
                if (matches[name][version].has_any or name in whole) and not current:
                    last_snapshot = max(last_snapshot, until)
                elif matches[name][version].has_any or name in whole:
                    # The newest snapshot expires too, once the erasing one replaces it.
                    last_snapshot = max(last_snapshot, newest.sequence)
        in_manifest = bool(whole) or self._is_named_in_manifest(manifest, unpartitioned)
        return _ErasureTargets(
            leaves,
            matches,
            tuple(sorted(whole & listed.keys())),
            in_manifest,
            last_snapshot,
            # Search for these only if nothing else is found: they are removed in any case.
            not in_manifest
            and not last_snapshot
            and self._has_unlisted_anywhere(manifest, leaves, matches),
        )

    def _is_emptied(self, leaf: _Leaf, matches: Mapping[int, LeafMatches]) -> bool:
        """Return whether all rows of a partition match, now or when it was dropped."""
        if leaf.current is None and leaf.object_id in self.dropped:
            return True
        if leaf.current is not None and not matches[leaf.current].has_no_others:
            return False
        return any(each.rows for each in matches.values()) or self._has_unlisted_matches(
            leaf, matches
        )

    def _has_unlisted_matches(self, leaf: _Leaf, matches: Mapping[int, LeafMatches]) -> bool:
        """Return whether unlisted files in the folder of a leaf may hold matching rows."""
        listed = {path for each in matches.values() for path in each.all_files}
        unlisted = [
            file
            for file in list_data_files(leaf.location)
            if file.path.removeprefix("data/") not in listed
        ]
        return self.search.may_be_in_files(leaf.location, unlisted)

    def _search_leaves(self, leaves: list[_Leaf]) -> list[dict[int, LeafMatches]]:
        count = 0

        def search_leaf(leaf: _Leaf) -> dict[int, LeafMatches]:
            nonlocal count
            found = {
                each: self.search.find_in_version(leaf.location, each) for each in leaf.versions
            }
            count += 1
            if self.progress is not None:
                self.progress(count, len(leaves))
            return found

        return map_parallel(search_leaf, leaves)

    def _is_named_in_manifest(self, manifest: Manifest, except_for: set[str]) -> bool:
        """Return whether files of the manifest still name partitions that match as a whole.

        Rows removed from the manifest stay in its files until these are rewritten.
        """
        location = manifest.root.subfolder(MANIFEST_DIRECTORY)
        for file in list_data_files(location):
            if file.path not in self._manifest_files:
                rows = read_manifest_file(location, file.path)
                self._manifest_files[file.path] = self._names_whole_partitions(
                    manifest, rows, except_for
                )
            if self._manifest_files[file.path]:
                return True
        return False

    def _names_whole_partitions(
        self, manifest: Manifest, rows: pa.Table, except_for: set[str]
    ) -> bool:
        """Return whether rows of a manifest belong to partitions that match as a whole."""
        wanted = {DROPPED_TYPE, "table", "namespace"}
        rows = rows.filter(pc.is_in(rows.column("object_type"), pa.array(sorted(wanted))))
        names = rows.column("object_id").to_pylist()
        of_leaves = [
            index
            for index, name in enumerate(_to_leaf_ids(manifest, names))
            if name is not None and name not in except_for
        ]
        rows = rows.take(pa.array(of_leaves, pa.int64()))
        ids = _to_leaf_ids(manifest, rows.column("object_id").to_pylist())
        blank = pa.nulls(rows.num_rows, pa.uint64())
        columns = {"object_id": pa.array(ids, pa.string()), "location": rows.column("location")}
        for spec in manifest.properties.specs.values():
            for each in spec.fields:
                columns[each.column] = (
                    rows.column(each.column)
                    if each.column in rows.column_names
                    else pa.nulls(rows.num_rows, each.result_type)
                )
        table = pa.table({**columns, "read_version": blank, LANCE_ROW_ADDRESS: blank})
        view = manifest.without_leaves(
            name
            for each in manifest.list_leaves().values()
            for name in each.column(LEAF_OBJECT_ID).to_pylist()
        ).with_leaves(table)
        found = choose_partitions(view, self.predicate).whole.values()
        return any(each.num_rows for each in found)

    def _has_unlisted_anywhere(
        self,
        manifest: Manifest,
        leaves: Mapping[str, _Leaf],
        matches: Mapping[str, Mapping[int, LeafMatches]],
    ) -> bool:
        """Return whether files that no retained version lists may hold matching rows."""
        if any(has_files(each.location) for each in read_leaving_leaves(manifest)):
            return True

        def check(leaf: _Leaf) -> bool:
            return self._has_unlisted_matches(leaf, matches[leaf.object_id])

        if any(map_parallel(check, list(leaves.values()))):
            return True
        known = {
            location.uri.rpartition("/")[2]
            for location in locations_of(include_dropped(manifest)).values()
        }
        # Leaves of dead writers, and leaves whose removal by a vacuum was interrupted.
        others = [
            manifest.root.subfolder(name)
            for name in Folder(manifest.root).list_folders()
            if LEAF_DIRECTORY.fullmatch(name) and name not in known
        ]
        return any(self.search.may_be_in_files(each, list_data_files(each)) for each in others)

    # ── verification ─────────────────────────────────────────────────────────────────────────

    def _check_removable(self, debris: Debris) -> None:
        """Raise if files of an affected leaf cannot be removed."""
        affected = {name for name, rows in self.rows.items() if rows}
        leaves = locations_of(self.manifest.load_latest(), affected).values()
        for place, why in debris.left_alone.items():
            if any(place == location.uri for location in leaves):
                raise StorageFailure(
                    f"Rows that match {self.where!r} may still be stored in {place}: {why}. "
                    "Nothing was removed there. Fix that and erase again."
                )

    def _verify(self) -> int:
        """Read every file that may hold matching rows again; return how many were read."""
        manifest = self.manifest.load_latest()
        finder = MatchFinder(self.predicate, self.search.schema)
        second = _Erasure(manifest, self.where, self.force, None)
        second.search = finder
        targets = second._find_targets(manifest)
        affected = [
            name
            for name, each in targets.matches.items()
            if any(match.rows for match in each.values())
        ]
        # Matching rows that a writer has committed since are not ours to erase.
        old = [name for name in affected if not self._has_new_rows(manifest, targets.leaves[name])]
        if old:
            where = targets.leaves[old[0]].location
            raise StorageFailure(
                f"Rows that match {self.where!r} are still stored in {where}. Erase again."
            )
        return finder.files_read

    def _has_new_rows(self, manifest: Manifest, leaf: _Leaf) -> bool:
        """Return whether a snapshot since the erasure may have added rows to a leaf."""
        entries = read_leaf_versions(manifest, leaf.object_id, self.snapshot or 0)
        return any(each.may_add_rows for each in entries)


def _list_object_ids(manifest: Manifest, pruning: Pruning) -> set[str]:
    """Return the object ids of the leaves that may hold matching rows."""
    return {
        name for each in manifest.list_leaves(pruning).values() for name in _read_object_ids(each)
    }


def _read_object_ids(leaves: pa.Table) -> list[str]:
    found: list[str] = leaves.column(LEAF_OBJECT_ID).to_pylist()
    return found


def _find_last_snapshots(
    entries: Sequence[LeafVersionRow], newest: int, oldest: int, current: int | None
) -> dict[int, int]:
    """Map each version of a leaf that snapshots read to the last snapshot that reads it."""
    found: dict[int, int] = {}
    for index, entry in enumerate(entries):
        until = entries[index + 1].snapshot - 1 if index + 1 < len(entries) else newest
        if entry.version is not None and until >= oldest:
            found[entry.version] = max(until, found.get(entry.version, 0))
    if current is not None:
        found[current] = newest
    return found


def _to_leaf_ids(manifest: Manifest, names: list[str]) -> list[str | None]:
    """Return the leaf that each manifest row belongs to; None for namespaces above leaves."""
    depths = {number: len(spec.fields) for number, spec in manifest.properties.specs.items()}
    found: list[str | None] = []
    for name in names:
        steps = name.removeprefix(f"__{DROPPED_TYPE}{SEPARATOR}").split(SEPARATOR)
        spec = steps[0].removeprefix("v")
        depth = depths.get(int(spec)) if spec.isdecimal() else None
        if depth is None or not depth or len(steps) not in (depth + 1, depth + 2):
            found.append(None)
        else:
            found.append(SEPARATOR.join([*steps[: depth + 1], "dataset"]))
    return found


def _add_empty_namespaces(manifest: Manifest, expiry: Expiry) -> Expiry:
    """Add the rows of namespaces without leaves, which hold partition values, to the expiry."""
    names = set(manifest.leaf_versions()) | (
        read_dropped_leaves(manifest).keys() - expiry.expired_leaves
    )
    parents = {
        SEPARATOR.join(parts[:depth])
        for parts in (name.split(SEPARATOR) for name in names)
        for depth in range(1, len(parts))
    }
    rows = manifest.read_rows("object_type = 'namespace'", ["object_id"], with_row_address=True)
    addresses = [
        address
        for name, address in zip(*(column.to_pylist() for column in rows.columns), strict=True)
        if SEPARATOR in name and name not in parents
    ]
    return replace(
        expiry, row_addresses=np.concatenate([expiry.row_addresses, np.array(addresses, np.uint64)])
    )
