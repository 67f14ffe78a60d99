"""Erasure: rows that match are removed from every file, in every version that is kept.

The rows are deleted and the files that held them written anew, in one snapshot. Then older
snapshots that read such a file expire, and the horizon moves in the same commit: a transaction that
began before cannot bring a row back. Last, every file goes that nothing needs, without a grace.
Called again after it was cut off anywhere, it does what is left.
"""

from __future__ import annotations

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

from phalanx.errors import CommitConflict, PhalanxError, StorageFailure, UntrustedLocation
from phalanx.model.predicates.binding import bind
from phalanx.model.predicates.predicate import TRUE, Predicate
from phalanx.model.schema.dictionaries import has_dictionaries
from phalanx.planning.pruning.prune import Pruning, prune
from phalanx.planning.pruning.scan_plan import OBJECT_ID, counted
from phalanx.storage.cleanup.debris import Debris
from phalanx.storage.cleanup.erasure import (
    Cleaned,
    Held,
    Search,
    clean,
    data_files,
    merged,
    rows_in,
)
from phalanx.storage.cleanup.expiry import Expiry, expired, forget_removed, has_files, move_horizon
from phalanx.storage.commit import head
from phalanx.storage.commit.head import LeafVersion, head_of
from phalanx.storage.commit.history_rows import Entry, changes_between, entries_of, snapshots_in
from phalanx.storage.commit.publishing import branches_of, locations_of, publish
from phalanx.storage.lance.files import Folder
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.parallel import in_parallel
from phalanx.storage.leaf import staging
from phalanx.storage.manifest.dropped import DROPPED, dropped_leaves, leaving_leaves, with_dropped
from phalanx.storage.manifest.manifest import DIRECTORY, Manifest
from phalanx.storage.manifest.rows import ADDRESS
from phalanx.storage.state.naming import LEAF_DIRECTORY, SEPARATOR
from phalanx.table.maintenance.vacuum import Fence, files_of, strong_debris
from phalanx.table.transactions import strong_mode as strong
from phalanx.table.write.operations import whole_partitions

# Called with how many partitions were looked at, and of how many.
Progress = Callable[[int, int], None]
# How long to wait until what was written before is older than what comes, by the store's clock.
_TICK, _TICK_OF_OBJECT_STORES = 0.02, 1.1
# A writer may leave files, or bring rows that match, as often as this.
_MOST_ROUNDS = 5
_LAST = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Erased:
    """What an erasure did.

    `rows` are the rows that matched, deleted ones that were still stored included: for each
    partition as many as one of its versions held. `live_rows` of them were in the table until now.
    `files` data files held them, and are gone; `files_written` hold the other rows of theirs.
    `partitions` were removed as a whole. `snapshots` have expired, `removed` has all files that
    were removed, and `files_verified` were read afterwards and hold no row that matches.
    """

    where: str
    rows: int = 0
    live_rows: int = 0
    files: int = 0
    files_written: int = 0
    partitions: int = 0
    snapshot: int | None = None
    snapshots: tuple[int, ...] = ()
    removed: pa.Table = field(default_factory=lambda: files_of(Debris((), {})))
    files_verified: int = 0

    @property
    def bytes(self) -> int:
        """The size of all files that were removed."""
        return sum(self.removed.column("bytes").to_pylist())

    def to_dict(self) -> dict[str, Any]:
        """The outcome as JSON has it."""
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
        checked = f"Verified {counted(self.files_verified, 'file')}: none holds a matching row."
        if not self.removed.num_rows:
            return f"Nothing to erase: no file holds a matching row.\n{checked}"
        span = f" ({self.snapshots[0]} to {self.snapshots[-1]})" if self.snapshots else ""
        return "\n".join(
            [
                f"Erased {counted(self.rows, 'row')} ({self.live_rows:,} of them live) from "
                f"{counted(self.files, 'file')}; {self.files_written:,} written anew, "
                f"{counted(self.partitions, 'partition')} removed.",
                f"Expired {counted(len(self.snapshots), 'snapshot')}{span}.",
                f"Removed {counted(self.removed.num_rows, 'file')}, {self.bytes:,} bytes.",
                checked,
            ]
        )


def erase(
    manifest: Callable[[], Manifest], where: str, force: bool, progress: Progress | None = None
) -> Erased:
    """Remove the rows that match from every file of the table; in weak mode by way of strong mode.

    `manifest` gives the newest manifest, for a change.
    """
    current = manifest()
    bind(where, current.properties.schema)
    if current.properties.mode == "weak":
        current = strong.set_mode(current, "strong", returns=True)
    elif not current.properties.returns:
        return _Erasure(current, where, force, progress).run()
    try:
        done = _Erasure(current, where, force, progress).run()
        return replace(done, snapshot=None, snapshots=())
    finally:
        current = manifest()
        if current.properties.returns:
            strong.set_mode(current, "weak")


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A leaf that may hold rows that match: its versions by the first snapshot that reads them."""

    object_id: str
    location: Location
    # Until which snapshot each version is read; the current one until the newest.
    versions: Mapping[int, int]
    current: int | None


@dataclass(frozen=True, slots=True)
class _Found:
    """What there is to erase in a manifest."""

    leaves: Mapping[str, _Leaf]
    held: Mapping[str, Mapping[int, Held]]
    # Listed partitions that match as a whole, or have no other rows: their values go too.
    whole: tuple[str, ...]
    # Whether files of the manifest have rows of partitions that match as a whole.
    in_manifest: bool
    # The last snapshot that reads something to be erased.
    last: int
    # Whether files that nothing lists may hold rows that match.
    unlisted: bool

    @property
    def dirty(self) -> list[str]:
        """The listed leaves whose current version has something to erase."""
        return [
            name
            for name, leaf in self.leaves.items()
            if leaf.current is not None
            and name not in self.whole
            and self.held[name][leaf.current].anything
        ]

    @property
    def anything(self) -> bool:
        return bool(self.dirty or self.whole or self.in_manifest or self.last or self.unlisted)


class _Erasure:
    """One erasure, as long as it takes: what was found and staged is kept between attempts."""

    def __init__(
        self, manifest: Manifest, where: str, force: bool, progress: Progress | None
    ) -> None:
        self.manifest, self.where, self.force = manifest, where, force
        self.predicate: Predicate = bind(where, manifest.properties.schema)
        self.progress = progress
        self.search = Search(self.predicate, manifest.properties.schema)
        self._cleaned: dict[tuple[str, int], Cleaned] = {}
        self._published: Manifest | None = None
        # What was found in the newest manifest that was looked at after the erasure's commit.
        self._looked_at: tuple[Manifest, _Found] | None = None
        self._checked: set[str] = set()
        self._manifest_files: dict[str, bool] = {}
        # What all attempts together have done.
        self.rows: dict[str, int] = {}
        self.files: set[tuple[str, str]] = set()
        self.done: list[Cleaned] = []
        self.dropped: set[str] = set()
        self.live_dropped = 0
        self.snapshot: int | None = None

    def run(self) -> Erased:
        removed: list[Debris] = []
        snapshots: list[int] = []
        for _ in range(_MOST_ROUNDS):
            if not head.until_committed(self._erase, self.manifest, "the erasure", eager=True):
                break
            # Everything that was written until now must be older than what comes.
            time.sleep(_TICK if self.manifest.root.is_local else _TICK_OF_OBJECT_STORES)
            self._looked_at = None
            fence = head.until_committed(self._expire, self.manifest, "the erasure", eager=True)
            if fence is None:
                continue
            root = Folder(self.manifest.root)
            removed.append(strong_debris(root, root.files(), fence, _LAST))
            snapshots += fence.over.snapshots
            self._check_removable(removed[-1])
            removed[-1].remove()
            forget_removed(self.manifest)
            # A writer that could not commit any more may have left files until now.
        return Erased(
            self.where,
            sum(self.rows.values()),
            sum(each.removed for each in self.done) + self.live_dropped,
            len(self.files),
            sum(each.files_after for each in self.done),
            len(self.dropped),
            self.snapshot,
            tuple(snapshots),
            pa.concat_tables(map(files_of, [Debris((), {}), *removed])),
            self._verify(),
        )

    # ── two commits ──────────────────────────────────────────────────────────────────────────

    def _erase(self) -> bool:
        """Erase from the newest snapshot, in another one; whether there is anything to erase."""
        base = self._newest()
        found = self._found(base)
        if not found.anything:
            return False
        self._check_free(base, found)
        self._note(found)
        if found.dirty or found.whole:
            self._commit(base, found)
        return True

    def _expire(self) -> Fence | None:
        """Let the snapshots expire that read such rows; None if the newest does again."""
        base, found = self._found_since()
        if found is None or found.dirty or found.whole:
            return None
        newest = head_of(base)
        if newest is None:
            raise CommitConflict(
                f"Cannot erase from {base.root}: its mode was changed meanwhile. Erase again."
            )
        through = newest.sequence - 1 if found.in_manifest else found.last
        over = expired(base, _LAST, through)
        if found.in_manifest:
            over = _without_namespaces(base, over)
        moment = datetime.now(UTC)
        moved = move_horizon(base, newest, over, moment, everything=found.in_manifest)
        return Fence(base, over, moved.horizon, base.version + 1 if found.in_manifest else 0)

    def _found_since(self) -> tuple[Manifest, _Found | None]:
        """The newest manifest, and what was found; None if others have brought something since.

        What they committed since the last look alone is looked at: a look at everything takes
        longer than they need for the next commit. Main branches have followed the erasure, and
        what is committed on top of it has none of the rows.
        """
        if self._looked_at is None:
            base = self._newest()
            self._looked_at = base, self._found(base)
            return self._looked_at
        before, found = self._looked_at
        base = self.manifest.latest()
        then, newest = head_of(before), head_of(base)
        known = None if then is None else (then.epoch, then.epoch, then.horizon)
        if (
            then is None
            or newest is None
            or (base.properties.epoch, newest.epoch, newest.horizon) != known
        ):
            # Others changed more than rows.
            self._looked_at = None
            return self._found_since()
        since = then.sequence
        new = {
            (each.object_id, each.entry.version)
            for each in changes_between(base, since, newest.sequence)
            if each.entry.version is not None
        }
        locations = locations_of(with_dropped(base), {name for name, _ in new})
        held = in_parallel(
            lambda each: self.search.version(locations[each[0]], each[1]),
            [each for each in new if each[0] in locations],
        )
        if any(each.anything for each in held):
            return base, None
        self._looked_at = base, found
        return base, found

    def _newest(self) -> Manifest:
        """The newest manifest, which the leaves' main branches show."""
        base, _ = strong.begin(self.manifest)
        names = None
        if self._published is not None:
            before = self._published.versions().items()
            names = [name for name, _ in base.versions().items() - before]
        self._published = publish(base, names)
        self._check_schema(self._published)
        return self._published

    def _check_schema(self, manifest: Manifest) -> None:
        if manifest.properties.schema != self.manifest.properties.schema:
            raise CommitConflict(
                f"Cannot erase from {manifest.root}: another writer changed its schema meanwhile. "
                "Look at the table as it is now, and erase again."
            )

    def _note(self, found: _Found) -> None:
        for name, held in found.held.items():
            self.rows[name] = max(self.rows.get(name, 0), merged(held))
            self.files |= {(name, path) for each in held.values() for path in each.files}

    def _commit(self, base: Manifest, found: _Found) -> None:
        """One snapshot without the rows that match, and without partitions of them alone."""
        newest = head_of(base)
        assert newest is not None

        def cleaned(name: str) -> tuple[LeafVersion, Cleaned]:
            leaf = found.leaves[name]
            assert leaf.current is not None
            key = name, leaf.current
            if key not in self._cleaned:
                self._cleaned[key] = self._clean(leaf, leaf.current, found.held[name])
            made = self._cleaned[key]
            version = LeafVersion(name, made.version, "delete+rewrite", 0, made.removed)
            return version, made

        made = in_parallel(cleaned, found.dirty)
        live = sum(dropped.count_rows() for dropped in self._opened(found))
        self.snapshot = head.commit(
            base, newest, [version for version, _ in made], "erase", dropped=found.whole
        )
        self.done += [each for _, each in made]
        self.dropped |= set(found.whole)
        self.live_dropped += live

    def _clean(self, leaf: _Leaf, current: int, held: Mapping[int, Held]) -> Cleaned:
        """A version without the rows that match; if others were first, only their rest is done."""
        schema, location = self.search.schema, leaf.location
        earlier = [number for name, number in self._cleaned if name == leaf.object_id]
        if earlier:
            before = self._cleaned[leaf.object_id, earlier[-1]]
            with suppress(CommitConflict):
                version = staging.rebase(location, earlier[-1], before.version, current)
                rest = self.search.version(location, version)
                return before.then(clean(location, version, rest, self.predicate, schema))
        return clean(location, current, held[current], self.predicate, schema)

    def _opened(self, found: _Found) -> list[Any]:
        leaves = [found.leaves[name] for name in found.whole]
        return in_parallel(lambda leaf: leaf.location.open_leaf(leaf.current), leaves)

    def _check_free(self, manifest: Manifest, found: _Found) -> None:
        """Refuse, before anything changes, what could not be erased completely."""
        branches = branches_of(manifest)
        affected = [
            name
            for name, held in found.held.items()
            if name not in self._checked
            and (name in found.whole or any(each.anything for each in held.values()))
        ]
        for name in affected:
            location = found.leaves[name].location
            if (why := location.why_not_ours()) is not None:
                raise UntrustedLocation(
                    f"Cannot erase from {location}, which the manifest of {manifest.root} lists: "
                    f"{why}. Make it the table's with adopt({location.uri!r}), or remove the rows "
                    "there by other means."
                )
            dataset = location.open_leaf()
            if name in branches or dataset.branches.list():
                raise PhalanxError(
                    f"Cannot erase from {location}: it has branches of its own, which read its "
                    "files. Delete them with its own branches.delete(), and erase again."
                )
            tags = {
                tag: int(said["version"])
                for tag, said in dataset.tags.list().items()
                if self.search.version(location, int(said["version"])).anything
            }
            if tags and not self.force:
                raise PhalanxError(
                    f"Cannot erase from {location}: its tags {', '.join(sorted(tags))} keep rows "
                    "that match. Delete them with its own tags.delete(), or erase with force=True, "
                    "which does."
                )
            for tag in tags:
                dataset.tags.delete(tag)
            self._checked.add(name)

    # ── what there is ────────────────────────────────────────────────────────────────────────

    def _found(self, manifest: Manifest) -> _Found:
        newest = head_of(manifest)
        assert newest is not None
        schema, specs = manifest.properties.schema, manifest.properties.specs
        everything = with_dropped(manifest)
        chosen = may_match = _names_in(everything, prune(self.predicate, specs, schema))
        if any(has_dictionaries(field.type) for field in schema.arrow):
            # Files may have dictionaries with values of other partitions.
            chosen = _names_in(everything, prune(TRUE, specs, schema))
        listed = manifest.versions()
        locations = locations_of(everything, chosen)
        oldest = min((int(each["id"]) for each in snapshots_in(manifest)), default=0)
        entries: dict[str, list[Entry]] = defaultdict(list)
        for each in changes_between(manifest, 0, newest.sequence):
            entries[each.object_id].append(each.entry)
        leaves = {
            name: _Leaf(
                name,
                locations[name],
                _read_until(entries[name], newest.sequence, oldest, listed.get(name)),
                listed.get(name),
            )
            for name in sorted(chosen)
        }
        held = dict(zip(leaves, self._held(list(leaves.values())), strict=True))
        whole = {
            name
            for some in whole_partitions(everything, self.predicate).whole.values()
            for name in some.column(OBJECT_ID).to_pylist()
        }
        # Nor do values stay of partitions in which nothing else is.
        whole |= {name for name in may_match if self._is_emptied(leaves[name], held[name])}
        unpartitioned = {
            f"v{number}{SEPARATOR}dataset" for number, spec in specs.items() if not spec.fields
        }
        whole -= unpartitioned
        last = 0
        for name, leaf in leaves.items():
            for version, until in leaf.versions.items():
                current = version == leaf.current and name in listed
                if (held[name][version].anything or name in whole) and not current:
                    last = max(last, until)
                elif held[name][version].anything or name in whole:
                    # Once the newest snapshot is another one.
                    last = max(last, newest.sequence)
        in_manifest = bool(whole) or self._is_in_manifest(manifest, unpartitioned)
        return _Found(
            leaves,
            held,
            tuple(sorted(whole & listed.keys())),
            in_manifest,
            last,
            # Looked for where there is nothing else: all such files go in any case.
            not in_manifest and not last and self._holds_unlisted(manifest, leaves, held),
        )

    def _is_emptied(self, leaf: _Leaf, held: Mapping[int, Held]) -> bool:
        """Whether a partition has, or had when it was dropped, no rows but some that match."""
        if leaf.current is None and leaf.object_id in self.dropped:
            return True
        if leaf.current is not None and not held[leaf.current].no_others:
            return False
        return any(each.rows for each in held.values()) or self._has_unlisted(leaf, held)

    def _has_unlisted(self, leaf: _Leaf, held: Mapping[int, Held]) -> bool:
        """Whether files in the folder of a leaf may hold a row that matches which it lists not."""
        listed = {path for each in held.values() for path in each.listed}
        found = [
            file
            for file in data_files(leaf.location)
            if file.path.removeprefix("data/") not in listed
        ]
        return self.search.unlisted(leaf.location, found)

    def _held(self, leaves: list[_Leaf]) -> list[dict[int, Held]]:
        count = 0

        def look(leaf: _Leaf) -> dict[int, Held]:
            nonlocal count
            found = {each: self.search.version(leaf.location, each) for each in leaf.versions}
            count += 1
            if self.progress is not None:
                self.progress(count, len(leaves))
            return found

        return in_parallel(look, leaves)

    def _is_in_manifest(self, manifest: Manifest, except_for: set[str]) -> bool:
        """Whether files of the manifest still name partitions that match as a whole.

        Rows that were removed stay in them until they are written anew.
        """
        place = manifest.root.own(DIRECTORY)
        for file in data_files(place):
            if file.path not in self._manifest_files:
                rows = rows_in(place, file.path)
                self._manifest_files[file.path] = self._names_whole(manifest, rows, except_for)
            if self._manifest_files[file.path]:
                return True
        return False

    def _names_whole(self, manifest: Manifest, rows: pa.Table, except_for: set[str]) -> bool:
        """Whether rows of a manifest are of partitions that match as a whole."""
        wanted = {DROPPED, "table", "namespace"}
        rows = rows.filter(pc.is_in(rows.column("object_type"), pa.array(sorted(wanted))))
        names = rows.column("object_id").to_pylist()
        deep = [
            place
            for place, name in enumerate(_of_leaf(manifest, names))
            if name is not None and name not in except_for
        ]
        rows = rows.take(pa.array(deep, pa.int64()))
        ids = _of_leaf(manifest, rows.column("object_id").to_pylist())
        blank = pa.nulls(rows.num_rows, pa.uint64())
        columns = {"object_id": pa.array(ids, pa.string()), "location": rows.column("location")}
        for spec in manifest.properties.specs.values():
            for each in spec.fields:
                columns[each.column] = (
                    rows.column(each.column)
                    if each.column in rows.column_names
                    else pa.nulls(rows.num_rows, each.result_type)
                )
        table = pa.table({**columns, "read_version": blank, ADDRESS: blank})
        view = manifest.without_leaves(
            name
            for each in manifest.leaves().values()
            for name in each.column(OBJECT_ID).to_pylist()
        ).with_leaves(table)
        found = whole_partitions(view, self.predicate).whole.values()
        return any(each.num_rows for each in found)

    def _holds_unlisted(
        self,
        manifest: Manifest,
        leaves: Mapping[str, _Leaf],
        held: Mapping[str, Mapping[int, Held]],
    ) -> bool:
        """Whether files may hold a row that matches which no version lists that is kept."""
        if any(has_files(each.location) for each in leaving_leaves(manifest)):
            return True

        def look(leaf: _Leaf) -> bool:
            return self._has_unlisted(leaf, held[leaf.object_id])

        if any(in_parallel(look, list(leaves.values()))):
            return True
        known = {
            location.uri.rpartition("/")[2]
            for location in locations_of(with_dropped(manifest)).values()
        }
        # Leaves of writers that died, or that a vacuum was removing.
        others = [
            manifest.root.own(name)
            for name in Folder(manifest.root).folders()
            if LEAF_DIRECTORY.fullmatch(name) and name not in known
        ]
        return any(self.search.unlisted(each, data_files(each)) for each in others)

    # ── afterwards ───────────────────────────────────────────────────────────────────────────

    def _check_removable(self, found: Debris) -> None:
        """Refuse to say that rows are gone from a leaf of which nothing can be removed."""
        affected = {name for name, rows in self.rows.items() if rows}
        leaves = locations_of(self.manifest.latest(), affected).values()
        for place, why in found.left_alone.items():
            if any(place == location.uri for location in leaves):
                raise StorageFailure(
                    f"Rows that match {self.where!r} may still be stored in {place}: {why}. "
                    "Nothing was removed there. See to that, and erase again."
                )

    def _verify(self) -> int:
        """Read every file of the leaves that may hold such rows again; how many were read."""
        manifest = self.manifest.latest()
        again = Search(self.predicate, self.search.schema)
        fresh = _Erasure(manifest, self.where, self.force, None)
        fresh.search = again
        found = fresh._found(manifest)
        held = [name for name, each in found.held.items() if any(h.rows for h in each.values())]
        # A writer that began since may have brought new rows: they are its own.
        old = [name for name in held if not self._is_new(manifest, found.leaves[name])]
        if old:
            where = found.leaves[old[0]].location
            raise StorageFailure(
                f"Rows that match {self.where!r} are still stored in {where}. Erase again."
            )
        return again.files_read

    def _is_new(self, manifest: Manifest, leaf: _Leaf) -> bool:
        """Whether a snapshot has changed a leaf since the erasure."""
        entries = entries_of(manifest, leaf.object_id, self.snapshot or 0)
        return any(each.brings_rows for each in entries)


def _names_in(manifest: Manifest, pruning: Pruning) -> set[str]:
    """The object ids of the leaves that may hold a row that matches."""
    return {name for each in manifest.leaves(pruning).values() for name in _names(each)}


def _names(leaves: pa.Table) -> list[str]:
    found: list[str] = leaves.column(OBJECT_ID).to_pylist()
    return found


def _read_until(
    entries: Sequence[Entry], newest: int, oldest: int, current: int | None
) -> dict[int, int]:
    """The versions of a leaf that snapshots read, each with the last snapshot that does."""
    found: dict[int, int] = {}
    for place, entry in enumerate(entries):
        until = entries[place + 1].snapshot - 1 if place + 1 < len(entries) else newest
        if entry.version is not None and until >= oldest:
            found[entry.version] = max(until, found.get(entry.version, 0))
    if current is not None:
        found[current] = newest
    return found


def _of_leaf(manifest: Manifest, names: list[str]) -> list[str | None]:
    """The object ids of the leaves that rows of a manifest are about; None for upper namespaces."""
    depths = {number: len(spec.fields) for number, spec in manifest.properties.specs.items()}
    found: list[str | None] = []
    for name in names:
        steps = name.removeprefix(f"__{DROPPED}{SEPARATOR}").split(SEPARATOR)
        spec = steps[0].removeprefix("v")
        depth = depths.get(int(spec)) if spec.isdecimal() else None
        if depth is None or not depth or len(steps) not in (depth + 1, depth + 2):
            found.append(None)
        else:
            found.append(SEPARATOR.join([*steps[: depth + 1], "dataset"]))
    return found


def _without_namespaces(manifest: Manifest, over: Expiry) -> Expiry:
    """Take out the namespaces too in which there is no leaf any more: they have its values."""
    names = set(manifest.versions()) | (dropped_leaves(manifest).keys() - over.forgotten)
    parents = {
        SEPARATOR.join(steps[:depth])
        for steps in (name.split(SEPARATOR) for name in names)
        for depth in range(1, len(steps))
    }
    rows = manifest.table("object_type = 'namespace'", ["object_id"], with_row_address=True)
    gone = [
        address
        for name, address in zip(*(column.to_pylist() for column in rows.columns), strict=True)
        if SEPARATOR in name and name not in parents
    ]
    return replace(over, addresses=np.concatenate([over.addresses, np.array(gone, np.uint64)]))
