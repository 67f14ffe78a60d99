"""Weak commits to main branches that were made after a change of the mode."""

from __future__ import annotations

from collections.abc import Sequence

from lance import LanceOperation

from phalanx.storage.lance.location import Location
from phalanx.storage.manifest.manifest import Manifest
from phalanx.storage.state.properties import MODE

# Numbers of detached versions begin here, and only Phalanx makes such versions. Numbers of versions
# on main branches begin at 1.
FIRST_DETACHED = 1 << 63


def was_strong_since(before: Manifest, now: Manifest) -> bool:
    """Whether a table has been in strong mode at any time since an earlier manifest."""
    if now.properties.epoch == before.properties.epoch:
        return False
    if now.properties.mode == "strong":
        return True
    for version in range(before.version + 1, now.version):
        try:
            mode = before.at_version(version).dataset.metadata.get(MODE)
        except (OSError, ValueError):
            # The version was removed: assume the worst.
            return True
        if mode == "strong":
            return True
    return False


def includes_versions(
    location: Location, version: int | None, main_versions: Sequence[int]
) -> bool:
    """Whether a version of a leaf builds on these versions of its main branch."""
    if version is None:
        return False
    dataset, version = location.open_leaf(version), version
    while version > max(main_versions):
        made = dataset.read_transaction(version)
        if version >= FIRST_DETACHED:
            if made is None:
                return False
            version = int(made.read_version)
        elif made is not None and isinstance(made.operation, LanceOperation.Restore):
            version = int(made.operation.version)
        else:
            version -= 1
    return version == max(main_versions)
