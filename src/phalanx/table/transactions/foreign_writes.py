"""What someone wrote to leaves past Phalanx: made part of the table, or taken back."""

from __future__ import annotations

from collections.abc import Iterator

import lance
from lance import LanceDataset, LanceOperation

from phalanx.errors import PhalanxError
from phalanx.storage.commit import head
from phalanx.storage.commit.foreign_rows import check_columns_kept, check_partition_kept
from phalanx.storage.commit.head import LeafVersion
from phalanx.storage.commit.publishing import is_ours, locations_of, publish, shows, standing
from phalanx.storage.lance.fault_points import Step, reach
from phalanx.storage.lance.location import Location
from phalanx.storage.leaf import leaf
from phalanx.storage.leaf.staging import rows_changed
from phalanx.storage.manifest.manifest import Manifest
from phalanx.table.transactions.strong_mode import begin


def keep(manifest: Manifest) -> list[str]:
    """Commit what stands on the leaves' main branches as a snapshot; the leaves it is in.

    Refused where a snapshot has changed the leaf too: the one does not have the other's rows.
    Refused also where rows are of another partition, or columns are not the table's.
    """

    def attempt() -> tuple[int, list[Location]]:
        base, newest = begin(manifest)
        kept, where = [], []
        for name, location, version, main in _foreign(base):
            if not _follows(base, name, main, version):
                raise PhalanxError(
                    f"Cannot keep what someone wrote to {location}: a snapshot has changed it too. "
                    "Append the rows that should stay, then call discard_foreign_writes()."
                )
            before, main = location.open_leaf(version), leaf.keep_versions(location)
            check_columns_kept(main, base.properties.schema, location)
            check_partition_kept(base, name, location, before, main)
            added, removed = rows_changed(before, main)
            where.append(location)
            kept.append(
                LeafVersion(name, main.version, "foreign", added, removed, int(main.version))
            )
        names[:] = [each.object_id for each in kept]
        number = head.commit(base, newest, kept, "keep_foreign_writes") if kept else 0
        return number, where

    names: list[str] = []
    number, where = head.until_committed(attempt, manifest)
    with standing(number):
        publish(manifest, names)
    return [location.uri for location in where]


def discard(manifest: Manifest) -> list[str]:
    """Put the leaves' main branches back to the newest snapshot; the leaves that had another."""
    base, _ = begin(manifest)
    found = list(_foreign(base))
    for _, location, version, main in found:
        LanceDataset.commit(
            main,
            LanceOperation.Restore(version),
            read_version=main.version,
            **location.write_options,
        )
        reach(Step.FOREIGN_WRITE_DISCARDED)
    publish(base, [name for name, *_ in found])
    return [location.uri for _, location, *_ in found]


def _foreign(manifest: Manifest) -> Iterator[tuple[str, Location, int, lance.LanceDataset]]:
    """The leaves whose main branch shows what no snapshot has, with the version it should show."""
    locations = locations_of(manifest)
    for name, version in manifest.versions().items():
        assert version is not None
        main = locations[name].open_leaf()
        known = shows(main, main.version, version) or is_ours(manifest, name, main, main.version)
        if not known:
            yield name, locations[name], version, main


def _follows(manifest: Manifest, name: str, main: lance.LanceDataset, version: int) -> bool:
    """Whether all that is foreign on the main branch came on top of the given version."""
    for number in range(main.version - 1, 0, -1):
        if shows(main, number, version):
            return True
        if is_ours(manifest, name, main, number):
            return False
    return False
