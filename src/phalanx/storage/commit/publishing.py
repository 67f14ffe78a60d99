"""Main follows: the leaves' main branches show what the manifest says, for stock clients.

A main branch moves by `Restore` alone, which never conflicts. So whoever moves it looks at the
manifest again afterwards; and whatever else is found on it, someone has written past Phalanx.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace

import lance
from lance import LanceDataset, LanceOperation

from phalanx.errors import ForeignWrite, StorageFailure, UntrustedLocation
from phalanx.planning.pruning.scan_plan import LOCATION, OBJECT_ID
from phalanx.storage.commit.head import Head, head_of
from phalanx.storage.commit.history_rows import entries_of, leaves_changed, versions_at
from phalanx.storage.commit.late_commits import FIRST_DETACHED, bring_back, is_later
from phalanx.storage.lance.failures import is_panic
from phalanx.storage.lance.fault_points import Step, reach
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.parallel import in_parallel
from phalanx.storage.lance.retries import until_won
from phalanx.storage.leaf.marks import Mark, mark_of
from phalanx.storage.manifest.columns import READ_BRANCH, READ_TAG
from phalanx.storage.manifest.manifest import Manifest
from phalanx.storage.manifest.pins import branch_of

# What this process has seen on the mains of each table: it need not look there again.
_published: dict[str, Head] = {}


def locations_of(
    manifest: Manifest, object_ids: Iterable[str] | None = None
) -> dict[str, Location]:
    """Where these leaves (all) are, by object id."""
    leaves = (
        list(manifest.leaves().values())
        if object_ids is None
        else [manifest.leaves_named(object_ids)]
    )
    return {
        object_id: manifest.root.child(location)
        for each in leaves
        for object_id, location in zip(
            each.column(OBJECT_ID).to_pylist(),
            each.column(LOCATION).to_pylist(),
            strict=True,
        )
    }


def branches_of(manifest: Manifest) -> dict[str, str]:
    """The branches from which leaves are read that are not read from their main branch."""
    columns = manifest.dataset.schema.names
    other = [name for name in (READ_BRANCH, READ_TAG) if name in columns]
    if not other or manifest.has_left_strong:
        return {}
    said = " OR ".join(f"{name} IS NOT NULL" for name in other)
    rows = manifest.table(f"object_type = 'table' AND ({said})", ["object_id", "location"])
    stored = dict(zip(*(column.to_pylist() for column in rows.columns), strict=True))
    leaves = manifest.leaves_named(stored)
    found = {
        name: branch_of(stored[name], location)
        for name, location in zip(
            leaves.column(OBJECT_ID).to_pylist(), leaves.column(LOCATION).to_pylist(), strict=True
        )
    }
    return {name: branch for name, branch in found.items() if branch is not None}


def named_by_others(manifest: Manifest, head: Head) -> dict[str, int]:
    """The branches' newest versions of leaves that are read there, though no snapshot says so.

    By the published text others may have a row name a version. A commit on top of it takes the
    branch over; where that shows another version, someone wrote past Phalanx.
    """
    known = versions_at(manifest, head.sequence)
    locations = locations_of(manifest)
    found = {}
    for name, version in manifest.versions().items():
        if version is not None and known.get(name) != version:
            branch = locations[name].open_leaf()
            if shows(branch, branch.version, version):
                found[name] = int(branch.version)
    return found


def publish(
    manifest: Manifest,
    object_ids: Iterable[str] | None = None,
    known: Mapping[str, int] | None = None,
) -> Manifest:
    """Bring the mains of these leaves (all) to the manifest's newest state.

    `known` has versions of mains that are known to be ours, and out of date. `ForeignWrite` names
    a leaf with anything else on its main branch, which is left as it is.
    """
    ours = known or {}
    manifest = manifest.latest()
    wanted = None if object_ids is None else set(object_ids)
    while True:
        locations = locations_of(manifest, wanted)
        versions = {
            name: version
            for name, version in manifest.versions(wanted).items()
            if version is not None
        }

        moves = [
            (manifest, name, locations[name], version, ours.get(name))
            for name, version in versions.items()
        ]
        in_parallel(lambda move: _move(*move), moves)
        latest = manifest.latest()
        if latest is manifest:
            break
        after = latest.versions(versions)
        wanted = {name for name, version in versions.items() if after.get(name) != version}
        manifest = latest
        if not wanted:
            break
    reach(Step.PUBLISHED)
    return manifest


@contextmanager
def standing(snapshot: int) -> Iterator[None]:
    """The snapshot stands, whatever happens in here: the next writer brings main along."""
    try:
        yield
    except ForeignWrite as error:
        raise ForeignWrite(f"Snapshot {snapshot} is committed. But: {error}") from None
    except BaseException as error:
        if not (isinstance(error, OSError | ValueError | StorageFailure) or is_panic(error)):
            raise


def follow(manifest: Manifest, head: Head) -> Head:
    """Bring mains to what others have committed, and perhaps died before they did; the head then.

    What stands on a main branch past Phalanx concerns those who write to that leaf.
    """
    seen = _published.get(_name(manifest))
    known = max(head.published, seen.sequence if seen and seen.epoch == head.epoch else 0)
    names = leaves_changed(manifest, range(known + 1, head.sequence + 1))
    if names:
        with suppress(ForeignWrite, UntrustedLocation):
            publish(manifest, names)
    return note_published(manifest, head)


def note_published(manifest: Manifest, head: Head) -> Head:
    """Remember that mains show a snapshot, for those that are committed on top of it."""
    _published[_name(manifest)] = head
    return replace(head, published=head.sequence)


def _name(manifest: Manifest) -> str:
    return f"{manifest.root} {manifest.properties.salt}"


def check_main(manifest: Manifest, object_id: str, location: Location, version: int) -> int:
    """The version of a leaf's main branch, which is ours; else `ForeignWrite`."""
    main = location.open_leaf()
    if not shows(main, main.version, version):
        _check_ours(manifest, object_id, location, main, main.version)
    return int(main.version)


def _move(
    manifest: Manifest, object_id: str, location: Location, version: int, known: int | None
) -> None:
    def attempt() -> None:
        main = location.open_leaf()
        if main.version != known:
            if shows(main, main.version, version):
                return
            _check_ours(manifest, object_id, location, main, main.version)
        restored = LanceDataset.commit(
            main,
            LanceOperation.Restore(version),
            read_version=main.version,
            commit_message=str(Mark.of("main", manifest.properties)),
            **location.write_options,
        )
        reach(Step.MAIN_RESTORED)
        overwritten = range(main.version + 1, restored.version)
        if any(is_later(manifest.properties, restored, between) for between in overwritten):
            # The table has left strong mode meanwhile, where its main branches are what is read.
            bring_back(location, restored, manifest.properties)
            return
        for between in overwritten:
            _check_ours(manifest, object_id, location, restored, between)

    until_won(attempt)


def shows(main: lance.LanceDataset, head: int, version: int) -> bool:
    """Whether a version of the main branch has the rows of another version."""
    return head == version or _restored(main, head) == version


def _restored(main: lance.LanceDataset, head: int) -> int | None:
    """The version that a commit on the main branch has put there."""
    transaction = main.read_transaction(head)
    operation = None if transaction is None else transaction.operation
    return operation.version if isinstance(operation, LanceOperation.Restore) else None


def is_ours(manifest: Manifest, object_id: str, main: lance.LanceDataset, version: int) -> bool:
    """Whether Phalanx made a version of a leaf's main branch: for a snapshot, or too late."""
    restored = _restored(main, version)
    if restored is not None and restored >= FIRST_DETACHED and _was_vacuumed(manifest):
        # A writer was slow to put it there, and its snapshot is no longer listed.
        return True
    # Another writer may have committed and published since the manifest was read.
    known = any(
        version in (entry.main, entry.version) or restored == entry.version
        for current in (manifest, manifest.latest())
        for entry in entries_of(current, object_id)
    )
    if known:
        return True
    made = mark_of(main, version)
    if made is None or made.table != Mark.of("main", manifest.properties).table:
        return False
    # A weak writer was late, and is told so; what it came on top of must be ours.
    return made.kind == "main" or (version > 1 and is_ours(manifest, object_id, main, version - 1))


def _was_vacuumed(manifest: Manifest) -> bool:
    found = head_of(manifest.latest())
    return found is not None and bool(found.horizon)


def _check_ours(
    manifest: Manifest, object_id: str, location: Location, main: lance.LanceDataset, version: int
) -> None:
    if not is_ours(manifest, object_id, main, version):
        raise ForeignWrite(
            f"Someone wrote to {location} past Phalanx: version {version} of its main branch is in "
            "no snapshot. Make it part of the table with keep_foreign_writes(), or put the leaf "
            "back with discard_foreign_writes()."
        )
