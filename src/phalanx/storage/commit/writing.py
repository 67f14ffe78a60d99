"""Rows into leaves, and their commits in weak mode: every leaf for itself (format: Transaction)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lance import LanceDataset
from lance.fragment import FragmentMetadata

from phalanx.errors import CommitConflict, InvalidManifest, PartialWrite, PhalanxError
from phalanx.model.predicates.predicate import TRUE, Predicate
from phalanx.model.schema.grouping import positions
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.partition_key import PartitionKey, keyed, keys_of
from phalanx.model.specs.spec import PartitionSpec
from phalanx.planning.pruning.fields import source_columns
from phalanx.planning.pruning.scan_plan import LOCATION, OBJECT_ID, located
from phalanx.storage.commit.late_commits import holds_all, went_strong
from phalanx.storage.commit.publishing import publish
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.parallel import WRITE_THREADS, in_parallel, outcomes
from phalanx.storage.lance.retries import until_won
from phalanx.storage.lance.scanning import batches_of
from phalanx.storage.leaf import leaf
from phalanx.storage.leaf.leaf import Change, Deletion, Done
from phalanx.storage.leaf.path_values import PathValues
from phalanx.storage.manifest.changes import fit_columns, has_fit_columns, insert
from phalanx.storage.manifest.dropped import with_dropped
from phalanx.storage.manifest.manifest import Manifest
from phalanx.storage.manifest.partition_rows import new_partitions
from phalanx.storage.new_leaves import NewLeaves, created_once
from phalanx.storage.state.table_state import LeafListing, Leaves
from phalanx.storage.streams.shuffle import Shuffled

# Which leaves an operation looks at in a manifest, and their versions.
Footprint = Callable[[LeafListing], dict[str, int | None]]


@dataclass(frozen=True, slots=True)
class Reading:
    """What a statement has read: which leaves, and in which version of the manifest."""

    footprint: Footprint
    version: int


Opening = Callable[[Location, int | None], lance.LanceDataset]
MOST_NAMED = 20


@dataclass(frozen=True, slots=True)
class Replacement:
    """Files whose rows replace others, one by one: `old` tells in the same order where those were.

    Its columns are `leaf`, a place among `leaves`, which are object ids, and `address`, that of
    the row in the version of the leaf that the change was made for. Both are NULL where a row of
    the files stands for none. Without replacements rows are told as deleted and inserted.
    """

    fragments: tuple[FragmentMetadata, ...]
    leaves: tuple[str, ...]
    old: pa.Table


@dataclass(slots=True)
class LeafWrite:
    """What is to happen to one leaf: written files that come, and rows that go.

    `moved` are files with rows that other leaves give up (`gives`) in the same statement: they
    are here before they are gone there. `edits` says that the deletion brings rows in place of
    those that it removes; then it leaves alone what comes to the leaf meanwhile.
    """

    key: PartitionKey
    object_id: str
    location: Location
    version: int | None
    fragments: tuple[FragmentMetadata, ...] = ()
    deletion: Deletion | None = field(default=None)
    moved: tuple[FragmentMetadata, ...] = ()
    edits: bool = False
    gives: bool = False
    # Which of the new files hold rows that stand for others.
    replacements: tuple[Replacement, ...] = ()

    @property
    def is_nothing(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.fragments or self.moved or self.deletion is not None)


def ensure_partitions(manifest: Manifest, keys: pa.Table, new: NewLeaves) -> Manifest:
    """Create the partitions of the newest spec that are missing; the manifest that has all.

    A leaf exists before its row does. Of two writers that create the same partition one finds
    the other's, and removes its own empty leaf. `CommitConflict` if the schema or the specs are
    others by now: the keys would be wrong.
    """
    made: dict[str, str] = {}
    current = manifest

    def attempt() -> Manifest:
        nonlocal current
        current = current.latest()
        manifest.check_current(current)
        if current.properties.mode != "weak":
            # Only as long as it is weak are there no commits that this one could miss.
            raise CommitConflict(
                f"Cannot write to {current.root}: it went to {current.properties.mode} mode "
                "meanwhile. Write again."
            )
        missing = current.missing(keys)
        if not missing.num_rows:
            return current
        if not has_fit_columns(current):
            fit_columns(current)
            current = current.latest()
        rows = new_partitions(current, missing, lambda leaf: made.get(leaf) or new.directory(leaf))
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
        in_parallel(lambda each: new.create(current.root.child(each[1]), schema), fresh)
        made.update(fresh)
        insert(current, rows)
        found = current.latest()
        manifest.check_current(found)
        _check_listed(found, rows, keys)
        return found

    try:
        found = until_won(attempt)
        manifest.check_current(found)
    except CommitConflict:
        if new.job is None:
            remove_unlisted(manifest.latest(), made.values())
        raise
    if made and new.job is None:
        # The leaves of a job have files in them, which may still be wanted.
        remove_unlisted(found, made.values())
    return found


def _check_listed(manifest: Manifest, rows: pa.Table, keys: pa.Table) -> None:
    """Refuse to go on where the ids of new partitions are those of others already."""
    missing = manifest.missing(keys)
    if not missing.num_rows:
        return
    tables = rows.filter(pc.equal(rows.column("object_type"), "table")).column("object_id")
    [key, *_] = keys_of(missing)
    raise InvalidManifest(
        f"Cannot make the partition {key.values} of {manifest.root}: the manifest lists other "
        f"objects under its id, one of {', '.join(tables.to_pylist()[:MOST_NAMED])}. Something "
        "else has written it. Correct the partition values of these rows."
    )


def write_rows(
    manifest: LeafListing,
    rows: Shuffled,
    opened: Opening,
    written: dict[str, tuple[FragmentMetadata, ...]],
) -> list[LeafWrite]:
    """Write the rows into files of their leaves, which must exist; nothing is committed.

    `written` has, and gets, the files of the same rows by the leaf they are in: a second attempt
    does not write them again.
    """
    spec = manifest.properties.spec
    leaves = manifest.leaves()[spec.id].take(pa.array(manifest.places(rows.keys)))
    writes = list(leaf_writes(manifest, spec.id, leaves, [None] * leaves.num_rows))

    def write(place: int) -> LeafWrite:
        found = writes[place]
        if found.location.uri not in written:
            dataset = opened(found.location, found.version)
            written[found.location.uri] = leaf.write(
                dataset, found.location, rows.reader(place, dataset.schema.names)
            )
        found.fragments = written[found.location.uri]
        return found

    return in_parallel(write, range(len(writes)), WRITE_THREADS)


def leaf_writes(
    manifest: LeafListing, spec_id: int, leaves: pa.Table, removals: Sequence[Deletion | None]
) -> Iterator[LeafWrite]:
    """The removals, each from its leaf of a spec."""
    keys = keys_of(manifest.keys_of_leaves(spec_id, leaves))
    names = leaves.column(OBJECT_ID).to_pylist()
    for key, name, (location, version), removal in zip(
        keys, names, located(leaves), removals, strict=True
    ):
        yield LeafWrite(key, name, manifest.root.child(location), version, (), removal)


def emptying(manifest: LeafListing, leaves: Leaves) -> list[LeafWrite]:
    """The removal of all rows of some leaves."""
    everything = deleting(TRUE, manifest.properties.schema)
    return [
        write
        for number, some in leaves.items()
        for write in leaf_writes(manifest, number, some, [everything] * some.num_rows)
    ]


@dataclass(slots=True)
class MainBranches:
    """The leaves as weak mode writes them: each commit goes to a main branch, and is seen."""

    manifest: LeafListing
    # Completes a change of the mode that is under way.
    complete: Callable[[Manifest], Manifest]
    # A vacuum in weak mode removes nothing that a running write may need.
    horizon: str = ""

    def ensure_partitions(self, keys: pa.Table, new: NewLeaves) -> None:
        """Create the partitions of the newest spec that are missing."""
        assert isinstance(self.manifest, Manifest)
        self.manifest = ensure_partitions(self.manifest, keys, new)

    def open_leaf(self, location: Location, version: int | None) -> lance.LanceDataset:
        """A leaf to write files for, in the namespace's schema."""
        return self.manifest.shape.opened(location)

    def depend_on(self, footprint: Footprint, replaced: bool) -> None:
        """Nothing is isolated here."""

    def has_read(self, reading: Reading) -> None:
        """Nothing is isolated here."""

    def drop(self, leaves: Leaves, repair: str) -> int:
        """Make each leaf empty by a commit of its own, which reads no data; how many they are.

        They stay in the manifest: who is writing to one meanwhile must not write for nothing.
        One that something else has removed is there again, without rows.
        """
        writes = emptying(self.manifest, leaves)
        if isinstance(self.manifest, Manifest):
            schema = self.manifest.properties.schema
            in_parallel(lambda write: created_once(write.location, schema), writes)
        self.commit(writes, "drop_partitions", repair)
        return len(writes)

    def commit(self, writes: Sequence[LeafWrite], operation: str, repair: str) -> int:
        """Commit each leaf; the number of rows removed. `PartialWrite` says what was not done."""
        done = commit_leaves(writes, self.manifest, repair)
        removed = sum(each.removed for each in done.values())
        now = self.manifest.latest() if writes else self.manifest
        if now.layout != self.manifest.layout:
            raise PartialWrite(
                f"{self.manifest.root} was upgraded while these partitions were written: "
                f"{named([write.key for write in writes])}. Those that were new are perhaps not "
                "in its manifest. Look at the table, and write again what is missing."
            )
        before = self.manifest
        if not (isinstance(now, Manifest) and isinstance(before, Manifest)):
            return removed
        if went_strong(before, now):
            self._check_kept(writes, done, self.complete(now))
        elif now is not before and now.pinned and writes:
            raise PartialWrite(
                f"{now.root} got a row that says which version is read, {now.pinned[0]!r}, while "
                f"these partitions were written: {named([write.key for write in writes])}. The "
                "rows are on their main branches, but perhaps nobody reads them. Look at the "
                "table, and write again what is missing."
            )
        return removed

    def _check_kept(
        self, writes: Sequence[LeafWrite], done: Mapping[str, Done], now: Manifest
    ) -> None:
        """The table went to strong mode meanwhile: raise, unless its snapshot has every commit.

        What it has not is taken back from the main branches, by whoever comes by first.
        """
        root, made = now.root, {name: each.versions for name, each in done.items()}
        changed = [write for write in writes if made.get(write.object_id)]
        if now.properties.mode != "strong":
            raise PartialWrite(
                f"{root} went to strong mode and back while these partitions were written: "
                f"{named([write.key for write in changed])}. Each of them perhaps has the change, "
                "perhaps not. Look at the table, and write again what is missing."
            )
        shown = now.versions(made)
        late = [
            write
            for write in changed
            if not holds_all(write.location, shown.get(write.object_id), made[write.object_id])
        ]
        if not late:
            return
        with suppress(OSError, ValueError, PhalanxError):
            publish(now, [write.object_id for write in late])
        kept = [write.key for write in changed if write not in late]
        raise PartialWrite(
            f"{root} went to strong mode while it was written. Written: {named(kept)}. Not "
            f"written: {named([write.key for write in late])}. Write again what is missing."
        )


def commit_leaves(
    writes: Sequence[LeafWrite], manifest: LeafListing, repair: str
) -> dict[str, Done]:
    """Commit each leaf; what was done to each, by object id. `PartialWrite` says what was not.

    The rows to remove are found in all leaves before the first commit: a predicate that fails on
    some of them changes nothing. Rows that move are in their new leaves before the first row goes.
    """
    writes = [write for write in writes if not write.is_nothing]
    shape = manifest.shape
    prepared = in_parallel(
        lambda write: leaf.prepare(write.location, shape, write.deletion), writes
    )
    brought = _bring(writes, manifest)
    ready = [
        (write, found)
        for write, found in zip(writes, prepared, strict=True)
        if write.fragments or write.deletion is not None
    ]
    done = outcomes(lambda each: _commit(*each, manifest), ready)
    failures = [result for result in done if isinstance(result, Exception)]
    if not failures:
        for (write, _), result in zip(ready, done, strict=True):
            assert isinstance(result, Done)
            before = brought.get(write.object_id, Done(0))
            brought[write.object_id] = Done(result.removed, (*before.versions, *result.versions))
        return brought
    written: list[PartitionKey] = []
    missing: list[PartitionKey] = []
    doubled: list[PartitionKey] = []
    for (write, _), result in zip(ready, done, strict=True):
        (missing if isinstance(result, Exception) else written).append(write.key)
        if write.gives and isinstance(result, Exception):
            doubled.append(write.key)
    cause = failures[0]
    if not written and not doubled and isinstance(cause, PhalanxError):
        raise cause
    twice = f" Rows that leave {named(doubled)} are there twice, old and new." if doubled else ""
    raise PartialWrite(
        f"Wrote {len(written)} of {len(ready)} partitions. Written: {named(written)}. "
        f"Not written: {named(missing)}.{twice} The first failure: {cause} {repair}"
    ) from cause


def _bring(writes: Sequence[LeafWrite], manifest: LeafListing) -> dict[str, Done]:
    """Add the rows that move to their new leaves: to all, or to none. What was done to each."""
    arriving = [write for write in writes if write.moved]
    shape = manifest.shape

    def bring(write: LeafWrite) -> Done:
        ready = leaf.prepare(write.location, shape, None)
        return leaf.commit(write.location, write.moved, shape, None, ready)

    done = outcomes(bring, arriving) if arriving else []
    failures = [result for result in done if isinstance(result, Exception)]
    if not failures:
        return {
            write.object_id: result
            for write, result in zip(arriving, done, strict=True)
            if isinstance(result, Done)
        }
    cause = failures[0]
    came = [
        write
        for write, result in zip(arriving, done, strict=True)
        if not isinstance(result, Exception)
    ]
    back = outcomes(lambda write: leaf.take_back(write.location, write.moved, shape.mark), came)
    left = [
        write.key for write, result in zip(came, back, strict=True) if isinstance(result, Exception)
    ]
    if not left and isinstance(cause, PhalanxError):
        raise cause
    twice = f" {named(left)} got such rows already: they are there twice." if left else ""
    raise PartialWrite(
        f"Cannot add rows to the partitions that they move to, and changed nothing else.{twice} "
        f"The first failure: {cause}"
    ) from cause


def _commit(write: LeafWrite, prepared: leaf.Prepared, manifest: LeafListing) -> Done:
    return leaf.commit(
        write.location,
        write.fragments,
        manifest.shape,
        write.deletion,
        prepared,
        replaces=not write.edits,
    )


def named(keys: Sequence[PartitionKey]) -> str:
    """Partitions by their specs and values, for people: the first of them, if there are many."""
    shown = ", ".join(f"v{key.spec_id}{key.values}" for key in keys[:MOST_NAMED])
    return (shown or "none") + (", …" if len(keys) > MOST_NAMED else "")


def deleting(predicate: Predicate, schema: Schema, path: PathValues | None = None) -> Deletion:
    """The removal of the rows that match."""
    return lambda dataset: leaf.deletion(dataset, predicate, schema, path)


def deleting_keys(touched: pa.Table, spec: PartitionSpec, schema: Schema) -> Deletion:
    """The removal of the rows that fall in these partitions of a spec, wherever they are."""
    columns = source_columns(spec, schema)

    def find(dataset: lance.LanceDataset) -> Change:
        found = [np.empty(0, np.uint64)]
        rows = batches_of(dataset, columns=columns, with_row_address=True, scan_in_order=True)
        for batch in rows:
            groups = keyed(spec, batch, schema)
            is_touched = positions(groups.keys, touched) >= 0
            found.append(batch.column("_rowaddr").to_numpy()[is_touched[groups.codes]])
        return leaf.deletion_by_address(dataset, np.concatenate(found))

    return find


def merged(writes: Sequence[LeafWrite], deletions: Mapping[str, LeafWrite]) -> list[LeafWrite]:
    """One change for each leaf: what is added and what is removed there, together."""
    by_uri = dict(deletions)
    for write in writes:
        if (other := by_uri.get(write.location.uri)) is not None:
            write.deletion, write.edits = other.deletion, other.edits
        by_uri[write.location.uri] = write
    return list(by_uri.values())


def remove_unlisted(manifest: Manifest, locations: Iterable[str]) -> None:
    """Remove the leaves that the manifest does not list; one that stays is harmless.

    One that was dropped since is in older snapshots.
    """
    if not (made := set(locations)):
        return
    listed = {
        location
        for leaves in with_dropped(manifest).leaves().values()
        for location in leaves.filter(
            pc.is_in(leaves.column(LOCATION), pa.array(made, pa.string()))
        )
        .column(LOCATION)
        .to_pylist()
    }
    for location in made - listed:
        with suppress(OSError, ValueError):
            where = manifest.root.child(location)
            LanceDataset.drop(where.uri, where.storage_options)
