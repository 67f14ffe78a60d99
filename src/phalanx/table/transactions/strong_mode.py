"""Strong mode: when a namespace is ready for transactions, and how it comes into and out of it.

Properties change before the head does. As long as their epochs differ a change is under way:
no transaction begins, and whoever comes by completes it. A transaction that was about to commit
either comes before the head's new epoch, and is carried along, or fails.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from datetime import UTC, datetime

from phalanx.errors import CommitConflict, PhalanxError
from phalanx.model.stored_json import TEXT, read_object
from phalanx.planning.pruning.scan_plan import READ_VERSION
from phalanx.storage.commit import head
from phalanx.storage.commit.head import Head, LeafVersion, first_head, head_of
from phalanx.storage.commit.publishing import (
    branches_of,
    follow,
    locations_of,
    named_by_others,
    publish,
)
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.parallel import in_parallel
from phalanx.storage.lance.versions import check_detachable
from phalanx.storage.leaf import leaf
from phalanx.storage.leaf.reconcile import aligned, check_alignable
from phalanx.storage.manifest.changes import change_properties, fit_columns
from phalanx.storage.manifest.manifest import Manifest
from phalanx.storage.manifest.partition_rows import spec_namespace_row

_LEAVING = json.dumps({"change": "set_mode", "mode": "weak"})


def begin(manifest: Manifest) -> tuple[Manifest, Head]:
    """The newest manifest of a strong namespace and its head, with no change under way.

    What others have committed is on the mains of the leaves too, whether they did that or died.
    """
    manifest = manifest.latest()
    found = head_of(manifest) if manifest.properties.mode == "strong" else None
    if found is None or not _is_ready(manifest, found):
        manifest = complete(manifest)
        found = head_of(manifest)
    if manifest.properties.mode != "strong" or found is None:
        raise CommitConflict(
            f"{manifest.root} is in weak mode: transactions, snapshots, time travel and rollback "
            "need strong mode. Change it with set_mode('strong')."
        )
    return manifest, follow(manifest, found)


@dataclass(frozen=True, slots=True)
class Start:
    """What a transaction begins with: a moment, a manifest of that time or later, and its head."""

    # Before anything is read or written: a vacuum compares it with its own time.
    began: datetime
    base: Manifest
    head: Head

    @classmethod
    def now(cls, manifest: Manifest) -> Start:
        """The newest snapshot."""
        began = datetime.now(UTC)
        return cls(began, *begin(manifest))


def begin_history(manifest: Manifest) -> Manifest:
    """Have a strong namespace begin with a snapshot, if it has none yet."""

    def attempt() -> Manifest:
        latest = manifest.latest()
        found = head_of(latest)
        if latest.properties.mode != "strong" or found is None or found.sequence:
            return latest
        head.commit(latest, found, [], "create")
        return latest.latest()

    return head.until_committed(attempt, manifest)


def settled(manifest: Manifest) -> Manifest:
    """The manifest of a namespace that is not about to leave strong mode."""
    if manifest.properties.pending == _LEAVING:
        manifest = complete(manifest)
    if manifest.has_stale_pins:
        # Other readers would go on with what its rows name.
        head.until_committed(lambda: head.leave_strong(manifest.latest()), manifest)
        return manifest.latest()
    return manifest


def _is_ready(manifest: Manifest, found: Head) -> bool:
    return (
        found.epoch == manifest.properties.epoch
        and manifest.properties.pending != _LEAVING
        and not any(leaves.column(READ_VERSION).null_count for leaves in manifest.leaves().values())
    )


def complete(manifest: Manifest, operation: str | None = None) -> Manifest:
    """Complete a change of a strong namespace's properties: its leaves, then its head.

    Every leaf gets the namespace's schema; one without a version is taken as its main shows it.
    The snapshot is called as the operation, or else by what the properties tell.
    """
    changed: list[LeafVersion] = []

    def attempt() -> Manifest:
        latest = manifest.latest()
        properties = latest.properties
        found = head_of(latest)
        if properties.mode != "strong" or (found is not None and _is_ready(latest, found)):
            return latest
        if found is not None and properties.pending == _LEAVING:
            return _left(latest, found)
        if found is None:
            fit_columns(latest)
            latest = latest.latest()
        changed[:] = _brought_in_line(latest, found)
        head.commit(
            latest,
            found or first_head(latest),
            changed,
            operation or _operation(latest, found),
            new=spec_namespace_row(latest),
            epoch=properties.epoch,
        )
        return latest.latest()

    completed = head.until_committed(attempt, manifest)
    if changed and completed.properties.mode == "strong":
        return publish(completed, [each.object_id for each in changed])
    return completed


def _operation(manifest: Manifest, found: Head | None) -> str:
    if found is None:
        return "set_mode" if manifest.total_partitions else "create"
    if manifest.properties.pending is None:
        return "evolve" if found.epoch != manifest.properties.epoch else "adopt"
    what = f"the change of {manifest.root} that is under way"
    pending = read_object(manifest.properties.pending, what, {}, {"change": TEXT})
    return str(pending.get("change", "change"))


def _brought_in_line(manifest: Manifest, found: Head | None) -> list[LeafVersion]:
    versions, all_leaves = manifest.versions(), found is None
    named: dict[str, int] = {}
    if not all_leaves and manifest.properties.pending is None:
        # Only a change of the schema has to look into every leaf.
        versions = {name: version for name, version in versions.items() if version is None}
    elif found is not None:
        named = named_by_others(manifest, found)
    locations = locations_of(manifest)

    def advance(name: str) -> LeafVersion | None:
        location, version = locations[name], versions[name]
        # From here on whatever else comes to the main branch is foreign.
        taken_over = all_leaves or version is None
        main = leaf.keep_versions(location).version if taken_over else named.get(name)
        dataset = location.open_leaf(main if version is None else version)
        line = aligned(location, dataset, manifest.properties.schema)
        if line.version == version and not all_leaves:
            return None
        rows = line.count_rows() if version is None else 0
        return LeafVersion(name, line.version, "change", rows, 0, main)

    return [each for each in in_parallel(advance, versions) if each is not None]


def set_mode(manifest: Manifest, mode: str, *, returns: bool = False) -> Manifest:
    """Change the mode; the same call again completes what was cut off.

    With `returns` a namespace in weak mode remembers that strong mode is only for a while.
    """
    if mode not in ("weak", "strong"):
        raise PhalanxError(f"Cannot set the mode {mode!r}: expected 'weak' or 'strong'.")
    manifest = manifest.latest()
    if mode == "strong":
        if manifest.properties.mode == "weak":
            _check_detachable(manifest)
            check_leaves(manifest)
            # What an earlier strong time has left would be taken for the leaves' state.
            head.until_committed(lambda: head.leave_strong(manifest.latest()), manifest)
            manifest = manifest.latest()
            changed = dataclasses.replace(manifest.properties, mode="strong", returns=returns)
            manifest = change_properties(manifest, changed)
        elif manifest.properties.returns and not returns:
            # Who asks for strong mode meanwhile keeps it.
            manifest = change_properties(
                manifest, dataclasses.replace(manifest.properties, returns=False)
            )
        return complete(manifest)
    if manifest.properties.mode == "strong":
        _check_on_main(manifest)
        # What stands on a main branch past Phalanx is told before anything changes.
        manifest = publish(begin(manifest)[0])
        if manifest.properties.mode == "strong":
            leaving = dataclasses.replace(manifest.properties, pending=_LEAVING)
            manifest = complete(change_properties(manifest, leaving))
    head.until_committed(lambda: head.leave_strong(manifest.latest()), manifest)
    return manifest.latest()


def _check_on_main(manifest: Manifest) -> None:
    """Refuse weak mode, in which the main branch is read, for leaves that are read from others."""
    for name, branch in branches_of(manifest).items():
        raise PhalanxError(
            f"Cannot set {manifest.root} to weak mode: its table {name} is read from the branch "
            f"{branch!r}, and in weak mode the main branch is. Bring its rows there, and set "
            "read_branch in its manifest row to NULL first."
        )


def check_leaves(manifest: Manifest) -> None:
    """Refuse a change of all leaves where one of them cannot have the namespace's schema."""
    versions, schema = manifest.versions(), manifest.properties.schema

    def check(each: tuple[str, Location]) -> None:
        name, location = each
        check_alignable(location, location.open_leaf(versions[name]), schema)

    in_parallel(check, list(locations_of(manifest).items()))


def _check_detachable(manifest: Manifest) -> None:
    """Refuse strong mode for leaves that cannot have versions beside their main branch."""
    in_parallel(
        lambda location: check_detachable(
            location.open_leaf(), location, f"set {manifest.root} to strong mode"
        ),
        list(locations_of(manifest).values()),
    )


def _left(manifest: Manifest, found: Head) -> Manifest:
    """Out of strong mode: no commit can come, all mains show the last one, then it is over."""
    if found.epoch != manifest.properties.epoch:
        head.commit(manifest, found, [], "set_mode", epoch=manifest.properties.epoch)
    manifest = publish(manifest)
    if manifest.properties.pending != _LEAVING:
        # Another writer has completed it, and perhaps changed more since.
        return manifest
    properties = dataclasses.replace(manifest.properties, mode="weak", pending=None, returns=False)
    try:
        return change_properties(manifest, properties)
    except CommitConflict:
        return manifest.latest()
