"""Publishing: bring the leaves' main branches to the committed versions, for stock clients.

Only a `Restore` commit changes a main branch; its number is one above the version that was checked.
Afterwards a publisher reads the manifest again, because other writers may have committed meanwhile.
Any other commit on a main branch is a foreign write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TypeAlias

import lance
from lance import LanceOperation

from phalanx.errors import ForeignWrite, StorageFailure, UntrustedLocation
from phalanx.planning.pruning.leaf_columns import LEAF_LOCATION, LEAF_OBJECT_ID
from phalanx.storage.commit.head import Head, read_head
from phalanx.storage.commit.history_rows import (
    list_changed_leaves,
    read_leaf_versions,
    read_versions_at,
)
from phalanx.storage.commit.late_commits import FIRST_DETACHED
from phalanx.storage.lance.failures import is_panic
from phalanx.storage.lance.fault_points import FaultPoint, fault_point
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.parallel import map_parallel
from phalanx.storage.lance.retries import retry_conflicts
from phalanx.storage.lance.schema import field_ids_of
from phalanx.storage.lance.versions import restore_as_next
from phalanx.storage.leaf.marks import Mark, read_mark
from phalanx.storage.manifest.columns import READ_BRANCH, READ_TAG
from phalanx.storage.manifest.manifest import Manifest
from phalanx.storage.manifest.pins import branch_of

# Whether publishing may replace a version of a leaf's main branch.
IsReplaceable: TypeAlias = Callable[[Manifest, str, lance.LanceDataset, int], bool]

# For each table, the head up to which this process has seen its main branches published.
_published_heads: dict[str, Head] = {}


def locations_of(
    manifest: Manifest, object_ids: Iterable[str] | None = None
) -> dict[str, Location]:
    """Return the locations of these leaves (None: all), by object id."""
    leaves = (
        list(manifest.list_leaves().values())
        if object_ids is None
        else [manifest.list_named_leaves(object_ids)]
    )
    return {
        object_id: manifest.root.leaf(location)
        for each in leaves
        for object_id, location in zip(
            each.column(LEAF_OBJECT_ID).to_pylist(),
            each.column(LEAF_LOCATION).to_pylist(),
            strict=True,
        )
    }


def branches_of(manifest: Manifest) -> dict[str, str]:
    """Return the branches of leaves that are not read from their main branch, by object id."""
    columns = manifest.dataset.schema.names
    other = [name for name in (READ_BRANCH, READ_TAG) if name in columns]
    if not other or manifest.has_stale_strong_rows:
        return {}
    has_pin = " OR ".join(f"{name} IS NOT NULL" for name in other)
    rows = manifest.read_rows(f"object_type = 'table' AND ({has_pin})", ["object_id", "location"])
    stored = dict(zip(*(column.to_pylist() for column in rows.columns), strict=True))
    leaves = manifest.list_named_leaves(stored)
    found = {
        name: branch_of(stored[name], location)
        for name, location in zip(
            leaves.column(LEAF_OBJECT_ID).to_pylist(),
            leaves.column(LEAF_LOCATION).to_pylist(),
            strict=True,
        )
    }
    return {name: branch for name, branch in found.items() if branch is not None}


def find_foreign_pins(manifest: Manifest, head: Head) -> dict[str, int]:
    """Return the newest versions of the branches of leaves that another writer has pinned.

    The format allows other writers to set the version in a row. A commit on top of it takes the
    branch over, unless the branch has other contents, which is a foreign write.
    """
    known = read_versions_at(manifest, head.sequence)
    locations = locations_of(manifest)
    found = {}
    for name, version in manifest.leaf_versions().items():
        if version is not None and known.get(name) != version:
            branch = locations[name].open_leaf()
            if has_contents_of(branch, branch.version, version):
                found[name] = int(branch.version)
    return found


def publish(
    manifest: Manifest,
    object_ids: Iterable[str] | None = None,
    outdated_mains: Mapping[str, int] | None = None,
) -> Manifest:
    """Bring the main branches of these leaves (None: all) to the manifest's newest state.

    `outdated_mains` has versions of main branches that Phalanx made and that may be replaced
    without a check. `ForeignWrite` names a leaf with a foreign write on its main branch, which
    stays as it is; the others are published.
    """
    return _publish_leaves(manifest, object_ids, outdated_mains or {}, _is_replaceable)


def _publish_leaves(
    manifest: Manifest,
    object_ids: Iterable[str] | None,
    outdated_mains: Mapping[str, int],
    is_replaceable: IsReplaceable,
) -> Manifest:
    manifest = manifest.load_latest()
    wanted = None if object_ids is None else set(object_ids)
    failure: ForeignWrite | UntrustedLocation | None = None

    def move(name: str) -> ForeignWrite | UntrustedLocation | None:
        try:
            _publish_leaf(
                manifest,
                name,
                locations[name],
                versions[name],
                outdated_mains.get(name),
                is_replaceable,
            )
        except (ForeignWrite, UntrustedLocation) as error:
            # The other leaves are published all the same.
            return error
        return None

    while True:
        locations = locations_of(manifest, wanted)
        versions = {
            name: version
            for name, version in manifest.leaf_versions(wanted).items()
            if version is not None
        }

        failures = [error for error in map_parallel(move, versions) if error is not None]
        failure = failure or next(iter(failures), None)
        latest = manifest.load_latest()
        if latest is manifest:
            break
        after = latest.leaf_versions(versions)
        wanted = {name for name, version in versions.items() if after.get(name) != version}
        manifest = latest
        if not wanted:
            break
    fault_point(FaultPoint.PUBLISHED)
    if failure is not None:
        raise failure
    return manifest


@contextmanager
def tolerate_publish_failures(snapshot: int) -> Iterator[None]:
    """Ignore storage failures after a commit: the next writer publishes the main branches."""
    try:
        yield
    except ForeignWrite as error:
        raise ForeignWrite(
            f"Snapshot {snapshot} is committed, but: {error}",
            partitions=error.partitions,
            locations=error.locations,
            version=error.version,
            snapshot=snapshot,
        ) from None
    except BaseException as error:
        if not (isinstance(error, OSError | ValueError | StorageFailure) or is_panic(error)):
            raise


def publish_pending(manifest: Manifest, head: Head) -> Head:
    """Publish what other writers committed but perhaps did not publish; return the new head.

    Foreign writes and compactions are left alone here: the writers of that leaf deal with them.
    """
    seen = _published_heads.get(_cache_key(manifest))
    known = max(head.published, seen.sequence if seen and seen.epoch == head.epoch else 0)
    names = list_changed_leaves(manifest, range(known + 1, head.sequence + 1))
    if names:
        with suppress(ForeignWrite, UntrustedLocation):
            _publish_leaves(manifest, names, {}, is_phalanx_commit)
    return mark_published(manifest, head)


def mark_published(manifest: Manifest, head: Head) -> Head:
    """Record in the head that its snapshot is published, for commits on top of it."""
    _published_heads[_cache_key(manifest)] = head
    return replace(head, published=head.sequence)


def _cache_key(manifest: Manifest) -> str:
    return f"{manifest.root} {manifest.properties.salt}"


def check_main(manifest: Manifest, object_id: str, location: Location, version: int) -> int:
    """Return the newest version of a leaf's main branch; raise `ForeignWrite` if it is foreign."""
    main = location.open_leaf()
    if not (
        has_contents_of(main, main.version, version)
        or _is_replaceable(manifest, object_id, main, main.version)
    ):
        raise _foreign_write(manifest, object_id, location, main.version)
    return int(main.version)


def _publish_leaf(
    manifest: Manifest,
    object_id: str,
    location: Location,
    version: int,
    outdated_main: int | None,
    is_replaceable: IsReplaceable,
) -> None:
    def attempt() -> None:
        main = location.open_leaf()
        if main.version != outdated_main:
            if has_contents_of(main, main.version, version):
                return
            # Read once the branch is open: a change since then makes the commit below fail.
            latest = manifest.load_latest()
            if latest.properties.mode == "weak" or version != latest.leaf_versions([object_id]).get(
                object_id
            ):
                # The branch may already have a later state.
                return
            if not is_replaceable(latest, object_id, main, main.version):
                raise _foreign_write(manifest, object_id, location, main.version)
        restore_as_next(location, main, version, str(Mark.of("main", manifest.properties)))
        fault_point(FaultPoint.MAIN_RESTORED)

    retry_conflicts(attempt)


def has_contents_of(main: lance.LanceDataset, head: int, version: int) -> bool:
    """Whether a version of the main branch is, or restores, another version."""
    return head == version or _restored_version_of(main, head) == version


def _restored_version_of(main: lance.LanceDataset, head: int) -> int | None:
    """Return the version that a `Restore` on the main branch restored; None for other commits."""
    transaction = main.read_transaction(head)
    operation = None if transaction is None else transaction.operation
    return operation.version if isinstance(operation, LanceOperation.Restore) else None


def is_phalanx_commit(
    manifest: Manifest, object_id: str, main: lance.LanceDataset, version: int
) -> bool:
    """Whether Phalanx made a version of a leaf's main branch.

    It made it for a snapshot, or as a weak commit after the table had changed to strong mode.
    """
    restored = _restored_version_of(main, version)
    if restored is not None and restored >= FIRST_DETACHED and _was_vacuumed(manifest):
        # A slow writer published it after its snapshot had expired.
        return True
    # Another writer may have committed and published since the manifest was read.
    known = any(
        version in (entry.main, entry.version) or restored == entry.version
        for current in (manifest, manifest.load_latest())
        for entry in read_leaf_versions(current, object_id)
    )
    if known:
        return True
    made = read_mark(main, version)
    if made is None or made.table != Mark.of("main", manifest.properties).table:
        return False
    # The writer of a late weak commit gets an error itself. The version that the commit builds on
    # must be a Phalanx commit.
    return made.kind == "main" or (
        version > 1 and is_phalanx_commit(manifest, object_id, main, version - 1)
    )


def _was_vacuumed(manifest: Manifest) -> bool:
    found = read_head(manifest.load_latest())
    return found is not None and bool(found.horizon)


def _is_replaceable(
    manifest: Manifest, object_id: str, main: lance.LanceDataset, version: int
) -> bool:
    """Return whether publishing may replace a version: Phalanx made it, or it only compacts one.

    A weak compaction of an indexed leaf has no mark. If its writer dies while the table changes to
    strong mode, this lets the next writer continue. No row is lost, whichever program compacted the
    leaf.
    """
    while not is_phalanx_commit(manifest, object_id, main, version):
        if version == 1 or not _only_moves_rows(main, version):
            return False
        version -= 1
    return True


def _only_moves_rows(main: lance.LanceDataset, version: int) -> bool:
    """Whether a version has the rows of the one before it, perhaps in other files.

    Lance compacts an indexed leaf in two commits: the first only reserves fragment ids, and has no
    operation in Python.
    """
    transaction = main.read_transaction(version)
    operation = None if transaction is None else transaction.operation
    is_rewrite = isinstance(operation, LanceOperation.Rewrite)
    if not is_rewrite and type(operation) is not LanceOperation.BaseOperation:
        return False
    try:
        before, after = main.checkout_version(version - 1), main.checkout_version(version)
    except (OSError, ValueError):
        return False
    if field_ids_of(before) != field_ids_of(after) or before.schema != after.schema:
        return False
    if is_rewrite:
        return bool(before.count_rows() == after.count_rows())
    old, new = ([each.metadata for each in some.get_fragments()] for some in (before, after))
    return bool(old == new)


def _foreign_write(
    manifest: Manifest, object_id: str, location: Location, version: int
) -> ForeignWrite:
    return ForeignWrite(
        f"Another program modified {location} outside Phalanx: version {version} of its main "
        "branch is in no snapshot. Make it part of the table with keep_foreign_writes(), or "
        "undo it with discard_foreign_writes().",
        partitions=manifest.find_keys([object_id]),
        locations=[location.uri],
        version=version,
    )
