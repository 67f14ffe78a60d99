"""Strong mode: entering it, leaving it, and completing interrupted changes.

Properties change before the head does. While their epochs differ, a change is pending: no
transaction starts, and the next writer completes it. A transaction that is about to commit either
commits before the head's new epoch, so that the change includes it, or it fails.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from dataclasses import dataclass
from datetime import UTC, datetime

from phalanx.errors import CommitConflict, InvalidArgument, PhalanxError
from phalanx.planning.pruning.leaf_columns import LEAF_VERSION
from phalanx.storage.commit import head
from phalanx.storage.commit.head import Head, LeafVersion, make_first_head, read_head
from phalanx.storage.commit.publishing import (
    branches_of,
    find_foreign_pins,
    locations_of,
    publish,
    publish_pending,
)
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.parallel import map_parallel
from phalanx.storage.lance.versions import check_detachable
from phalanx.storage.leaf import leaf
from phalanx.storage.leaf.reconcile import check_alignable, stage_aligned
from phalanx.storage.manifest.changes import change_properties, upgrade_columns
from phalanx.storage.manifest.manifest import Manifest
from phalanx.storage.manifest.partition_rows import build_spec_namespace_row
from phalanx.storage.state.properties import LEAVING_STRONG

_LOGGER = logging.getLogger("phalanx.table")


def load_head(manifest: Manifest) -> tuple[Manifest, Head]:
    """Return the newest manifest of a strong namespace and its head, completing pending changes.

    Also publishes the leaves of earlier commits, in case their writers died before they did.
    """
    manifest = manifest.load_latest()
    while manifest.properties.mode == "strong":
        found = read_head(manifest)
        if found is not None and _is_ready(manifest, found):
            return manifest, publish_pending(manifest, found)
        # A late weak writer may list a partition meanwhile: look again.
        manifest = complete_change(manifest)
    raise CommitConflict(
        f"{manifest.root} is in weak mode: transactions, snapshots, time travel and rollback "
        "need strong mode. Change it with set_mode('strong')."
    )


@dataclass(frozen=True, slots=True)
class TransactionStart:
    """The start of a transaction: a time, a manifest of that time or later, and its head."""

    # Taken before anything is read or written: a vacuum compares it with its horizon.
    began: datetime
    base: Manifest
    head: Head

    @classmethod
    def begin(cls, manifest: Manifest) -> TransactionStart:
        """Start from the newest snapshot."""
        began = datetime.now(UTC)
        return cls(began, *load_head(manifest))


def commit_first_snapshot(manifest: Manifest) -> Manifest:
    """Commit the first, empty snapshot of a strong namespace, if it has none yet."""

    def attempt() -> Manifest:
        latest = manifest.load_latest()
        found = read_head(latest)
        if latest.properties.mode != "strong" or found is None or found.sequence:
            return latest
        head.commit(latest, found, [], "create")
        return latest.load_latest()

    return head.retry_commit(attempt, manifest)


def finish_leaving_strong(manifest: Manifest) -> Manifest:
    """Complete an interrupted change to weak mode, and return the manifest."""
    if manifest.properties.is_leaving_strong:
        manifest = complete_change(manifest)
    if manifest.has_stale_pins:
        # Other readers would keep reading the versions that the rows name.
        head.retry_commit(lambda: head.remove_strong_rows(manifest.load_latest()), manifest)
        return manifest.load_latest()
    return manifest


def _is_pending(manifest: Manifest) -> bool:
    """Whether a change of a strong namespace's properties has not reached its head or leaves."""
    if manifest.properties.mode != "strong":
        return False
    found = read_head(manifest)
    return found is None or not _is_ready(manifest, found)


def _is_ready(manifest: Manifest, found: Head) -> bool:
    return (
        found.epoch == manifest.properties.epoch
        and not manifest.properties.is_leaving_strong
        and not any(
            leaves.column(LEAF_VERSION).null_count for leaves in manifest.list_leaves().values()
        )
    )


def complete_change(manifest: Manifest, operation: str | None = None) -> Manifest:
    """Complete a change of a strong namespace's properties: first its leaves, then its head.

    Every leaf gets the namespace's schema; a leaf without a version is taken from its main branch.
    The snapshot is named by `operation`, or by the pending change in the properties.
    """
    changed: list[LeafVersion] = []

    def attempt() -> Manifest:
        latest = manifest.load_latest()
        properties = latest.properties
        found = read_head(latest)
        if not _is_pending(latest):
            return latest
        if found is not None and properties.is_leaving_strong:
            return _leave_strong(latest, found)
        if found is None:
            upgrade_columns(latest)
            latest = latest.load_latest()
        changed[:] = _align_leaves(latest, found)
        head.commit(
            latest,
            found or make_first_head(latest),
            changed,
            operation or _name_operation(latest, found),
            new=build_spec_namespace_row(latest),
            epoch=properties.epoch,
        )
        return latest.load_latest()

    while True:
        changed.clear()
        completed = head.retry_commit(attempt, manifest)
        if changed and completed.properties.mode == "strong":
            completed = publish(completed, [each.object_id for each in changed])
        if not _is_pending(completed):
            return completed
        # Another writer has begun the next change.


def _name_operation(manifest: Manifest, found: Head | None) -> str:
    if found is None:
        return "set_mode" if manifest.total_partitions else "create"
    pending = manifest.properties.pending_change
    if pending is None:
        return "evolve" if found.epoch != manifest.properties.epoch else "adopt"
    return str(pending.get("change", "change"))


def _align_leaves(manifest: Manifest, found: Head | None) -> list[LeafVersion]:
    versions, all_leaves = manifest.leaf_versions(), found is None
    named: dict[str, int] = {}
    if not all_leaves and manifest.properties.pending is None:
        # Only a schema change needs to open every leaf.
        versions = {name: version for name, version in versions.items() if version is None}
    elif found is not None:
        named = find_foreign_pins(manifest, found)
    locations = locations_of(manifest)

    def advance(name: str) -> LeafVersion | None:
        location, version = locations[name], versions[name]
        # From here on, any other commit to the main branch is foreign.
        taken_over = all_leaves or version is None
        main = leaf.disable_auto_cleanup(location).version if taken_over else named.get(name)
        dataset = location.open_leaf(main if version is None else version)
        line = stage_aligned(location, dataset, manifest.properties.schema)
        if line.version == version and not all_leaves:
            return None
        rows = line.count_rows() if version is None else 0
        return LeafVersion(name, line.version, "change", rows, 0, main)

    return [each for each in map_parallel(advance, versions) if each is not None]


def set_mode(manifest: Manifest, mode: str, *, returns: bool = False) -> Manifest:
    """Change the mode; calling it again completes an interrupted change.

    With `returns` a weak namespace records that strong mode is temporary.
    """
    if mode not in ("weak", "strong"):
        raise InvalidArgument(f"Cannot set the mode {mode!r}: expected 'weak' or 'strong'.")
    manifest = manifest.load_latest()
    if mode == "strong":
        if manifest.properties.mode == "weak":
            _check_detachable(manifest)
            check_leaves_alignable(manifest)
            # Rows left from an earlier strong mode would be read as the state of the leaves.
            head.retry_commit(lambda: head.remove_strong_rows(manifest.load_latest()), manifest)
            manifest = manifest.load_latest()
            changed = dataclasses.replace(
                manifest.properties, mode="strong", returns_to_weak=returns
            )
            manifest = change_properties(manifest, changed)
        elif manifest.properties.returns_to_weak and not returns:
            # An explicit request for strong mode makes it permanent.
            manifest = change_properties(
                manifest, dataclasses.replace(manifest.properties, returns_to_weak=False)
            )
        return complete_change(manifest)
    if manifest.properties.mode == "strong":
        _check_on_main(manifest)
        # Raises `ForeignWrite` before anything changes.
        manifest = publish(load_head(manifest)[0])
        if manifest.properties.mode == "strong":
            leaving = dataclasses.replace(manifest.properties, pending=json.dumps(LEAVING_STRONG))
            manifest = complete_change(change_properties(manifest, leaving))
    head.retry_commit(lambda: head.remove_strong_rows(manifest.load_latest()), manifest)
    return manifest.load_latest()


def _check_on_main(manifest: Manifest) -> None:
    """Refuse weak mode if a leaf is read from a branch: weak mode reads the main branch."""
    for name, branch in branches_of(manifest).items():
        raise PhalanxError(
            f"Cannot set {manifest.root} to weak mode: its table {name} is read from the branch "
            f"{branch!r}, and weak mode reads the main branch. First copy its rows there, and set "
            "read_branch in its manifest row to NULL."
        )


def check_leaves_alignable(manifest: Manifest) -> None:
    """Refuse a change of all leaves if one of them cannot take the namespace's schema."""
    versions, schema = manifest.leaf_versions(), manifest.properties.schema

    def check(each: tuple[str, Location]) -> None:
        name, location = each
        check_alignable(location, location.open_leaf(versions[name]), schema)

    map_parallel(check, list(locations_of(manifest).items()))


def _check_detachable(manifest: Manifest) -> None:
    """Refuse strong mode if a leaf cannot have detached versions."""
    map_parallel(
        lambda location: check_detachable(
            location.open_leaf(), location, f"set {manifest.root} to strong mode"
        ),
        list(locations_of(manifest).values()),
    )


def _leave_strong(manifest: Manifest, found: Head) -> Manifest:
    """Leave strong mode: block commits, publish all leaves, then change the mode."""
    if found.epoch != manifest.properties.epoch:
        head.commit(manifest, found, [], "set_mode", epoch=manifest.properties.epoch)
    manifest = publish(manifest)
    if not manifest.properties.is_leaving_strong:
        # Another writer completed it, and may have changed more since.
        return manifest
    properties = dataclasses.replace(
        manifest.properties, mode="weak", pending=None, returns_to_weak=False
    )
    try:
        manifest = change_properties(manifest, properties)
    except CommitConflict:
        return manifest.load_latest()
    _LOGGER.info("Changed %s to weak mode", manifest.root)
    return manifest


def check_unpinned(manifest: Manifest) -> None:
    """Refuse to change leaves in weak mode if manifest rows pin the versions that are read.

    A weak writer commits to the main branch. A row that names a version, a branch or a tag, which
    the format allows in every mode, would hide that commit.
    """
    if manifest.properties.mode == "weak" and manifest.pinned_tables:
        raise PhalanxError(
            f"Cannot change rows of {manifest.root} in weak mode: the manifest row "
            f"{manifest.pinned_tables[0]!r} pins the version that is read, so that readers would "
            "not see the change. Call set_mode('strong'), or set read_version, read_branch and "
            "read_tag of that row to NULL."
        )
