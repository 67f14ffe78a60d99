"""Writes to leaves outside Phalanx: keep them as a snapshot, or discard them."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import lance

from phalanx.errors import PhalanxError
from phalanx.planning.formatting import format_count
from phalanx.storage.commit import head
from phalanx.storage.commit.foreign_rows import check_foreign_columns, check_foreign_partition
from phalanx.storage.commit.head import LeafVersion
from phalanx.storage.commit.publishing import (
    has_contents_of,
    is_phalanx_commit,
    locations_of,
    publish,
    tolerate_publish_failures,
)
from phalanx.storage.lance.fault_points import FaultPoint, fault_point
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.retries import retry_conflicts
from phalanx.storage.lance.versions import restore_as_next
from phalanx.storage.leaf import leaf
from phalanx.storage.leaf.staging import count_changed_rows
from phalanx.storage.manifest.manifest import Manifest
from phalanx.table.transactions.strong_mode import load_head

_LOGGER = logging.getLogger("phalanx.table")


def keep(manifest: Manifest) -> list[str]:
    """Commit the foreign writes on the leaves' main branches as a snapshot; return these leaves.

    Raises `PhalanxError` if a snapshot changed the same leaf: neither version has the rows of the
    other. Also refuses rows of another partition, and columns that differ from the table's.
    """

    def attempt() -> tuple[int, list[Location]]:
        base, newest = load_head(manifest)
        kept, where = [], []
        for name, location, version, main in _find_foreign(base):
            if not _is_on_top(base, name, main, version):
                raise PhalanxError(
                    f"Cannot keep the foreign writes to {location}: a snapshot changed it too. "
                    "Append the rows to keep, then call discard_foreign_writes()."
                )
            before, main = location.open_leaf(version), leaf.disable_auto_cleanup(location)
            check_foreign_columns(main, base.properties.schema, location)
            check_foreign_partition(base, name, location, before, main)
            added, removed = count_changed_rows(before, main)
            where.append(location)
            kept.append(
                LeafVersion(name, main.version, "foreign", added, removed, int(main.version))
            )
        names[:] = [each.object_id for each in kept]
        number = head.commit(base, newest, kept, "keep_foreign_writes") if kept else 0
        return number, where

    names: list[str] = []
    number, where = head.retry_commit(attempt, manifest)
    with tolerate_publish_failures(number):
        publish(manifest, names)
    return [location.uri for location in where]


def discard(manifest: Manifest) -> list[str]:
    """Restore the leaves' main branches to the newest snapshot; return the leaves restored."""
    discarded: dict[str, str] = {}

    def attempt() -> None:
        base, _ = load_head(manifest)
        for name, location, version, main in _find_foreign(base):
            restore_as_next(location, main, version)
            discarded[name] = location.uri
            fault_point(FaultPoint.FOREIGN_WRITE_DISCARDED)

    retry_conflicts(attempt)
    publish(manifest, discarded)
    if discarded:
        _LOGGER.info(
            "Discarded foreign writes to %s of %s",
            *(format_count(len(discarded), "partition"), manifest.root),
        )
    return list(discarded.values())


def _find_foreign(manifest: Manifest) -> Iterator[tuple[str, Location, int, lance.LanceDataset]]:
    """Return the leaves with a foreign write at the end of their main branch.

    Each has the version to which the newest snapshot refers, and its open main branch.
    """
    locations = locations_of(manifest)
    for name, version in manifest.leaf_versions().items():
        assert version is not None
        main = locations[name].open_leaf()
        known = has_contents_of(main, main.version, version) or is_phalanx_commit(
            manifest, name, main, main.version
        )
        if not known:
            yield name, locations[name], version, main


def _is_on_top(manifest: Manifest, name: str, main: lance.LanceDataset, version: int) -> bool:
    """Return whether all foreign commits on the main branch follow the given version."""
    for number in range(main.version - 1, 0, -1):
        if has_contents_of(main, number, version):
            return True
        if is_phalanx_commit(manifest, name, main, number):
            return False
    return False
