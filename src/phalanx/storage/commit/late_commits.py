"""Commits to main branches that came after a change of the mode: found, and put right."""

from __future__ import annotations

from collections.abc import Sequence

import lance
from lance import LanceDataset, LanceOperation

from phalanx.storage.lance.location import Location
from phalanx.storage.leaf.marks import Mark, mark_of
from phalanx.storage.leaf.staging import rebase
from phalanx.storage.manifest.manifest import Manifest
from phalanx.storage.state.properties import MODE, Properties

# Versions that only Phalanx makes: those of the main branch count from 1.
FIRST_DETACHED = 1 << 63


def went_strong(before: Manifest, now: Manifest) -> bool:
    """Whether a table in weak mode is or was in strong mode since an earlier manifest of it."""
    if now.properties.epoch == before.properties.epoch:
        return False
    if now.properties.mode == "strong":
        return True
    for version in range(before.version + 1, now.version):
        try:
            mode = before.at_version(version).dataset.metadata.get(MODE)
        except (OSError, ValueError):
            # It was removed: nobody can tell.
            return True
        if mode == "strong":
            return True
    return False


def holds_all(location: Location, shown: int | None, commits: Sequence[int]) -> bool:
    """Whether a version of a leaf was made on top of these versions of its main branch."""
    if shown is None:
        return False
    dataset, version = location.open_leaf(shown), shown
    while version > max(commits):
        made = dataset.read_transaction(version)
        if version >= FIRST_DETACHED:
            if made is None:
                return False
            version = int(made.read_version)
        elif made is not None and isinstance(made.operation, LanceOperation.Restore):
            version = int(made.operation.version)
        else:
            version -= 1
    return version == max(commits)


def is_later(properties: Properties, main: lance.LanceDataset, version: int) -> bool:
    """Whether a weak writer that knew later properties made a version of a main branch."""
    made = mark_of(main, version)
    return (
        made is not None
        and made.kind == "weak"
        and made.table == Mark.of("weak", properties).table
        and made.epoch > properties.epoch
    )


def bring_back(location: Location, restored: lance.LanceDataset, properties: Properties) -> None:
    """Undo a `Restore` on a main branch, and keep what others commit there meanwhile.

    `Restore` conflicts with nothing, so each one may overwrite commits that came just before it:
    these are put on top again, until there are none.
    """
    base, wanted = int(restored.version), int(restored.version) - 1
    while True:
        main = location.open_leaf()
        done = LanceDataset.commit(
            main,
            LanceOperation.Restore(wanted),
            read_version=main.version,
            commit_message=str(Mark.of("main", properties)),
            **location.write_options,
        )
        last = int(done.version) - 1
        if last == base:
            return
        base, wanted = int(done.version), rebase(location, base, last, wanted)
