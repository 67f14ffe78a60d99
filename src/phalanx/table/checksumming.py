"""Checksums that a table wants from now on, or no more."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

from phalanx.storage.lance.checksums import complete
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.parallel import in_parallel
from phalanx.storage.manifest.changes import put_properties
from phalanx.storage.manifest.manifest import Manifest
from phalanx.table.maintenance.verify import stored_versions


def set_checksums(manifest: Callable[[], Manifest], enabled: bool) -> int:
    """Write checksums of all files, those there are included; how many there were none of."""
    now = manifest()
    if now.properties.checksums != enabled:
        put_properties(now, replace(now.properties, checksums=bool(enabled)))
    if not enabled:
        return 0

    def missing(versions: list[tuple[Location, int | None]]) -> int:
        # One after the other: they have files in common.
        return sum(complete(location, location.open_leaf(each)) for location, each in versions)

    # Whoever writes since knows that they are wanted.
    by_table: defaultdict[str, list[tuple[Location, int | None]]] = defaultdict(list)
    for location, version in stored_versions(manifest()):
        by_table[location.uri].append((location, version))
    return sum(in_parallel(missing, by_table.values()))
