"""Leaves that nothing lists any more, and whose files are still there."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.storage.cleanup.expiry import has_files
from phalanx.storage.commit.publishing import locations_of
from phalanx.storage.lance.files import Folder
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.ownership import Owner
from phalanx.storage.manifest.dropped import leaving_leaves, with_dropped
from phalanx.storage.manifest.manifest import Manifest
from phalanx.storage.state.naming import LEAF_DIRECTORY

_HIDDEN = ("_", ".")


@dataclass(frozen=True, slots=True)
class Leftover:
    """A leaf that nothing lists; `why` a vacuum does not remove it (None: it does)."""

    location: Location
    why: str | None


def leftovers(manifest: Manifest) -> list[Leftover]:
    """The leaves that a vacuum was to remove, and tables in the root that are recorded as leaves.

    Those that have a name which Phalanx gives are found and removed by every vacuum.
    """
    leaving = [each.location for each in leaving_leaves(manifest) if has_files(each.location)]
    found = [Leftover(each, each.why_not_ours(True)) for each in leaving]
    known = {each.uri for each in locations_of(with_dropped(manifest)).values()}
    known |= {each.uri for each in leaving}
    for name in Folder(manifest.root).folders():
        place = manifest.root.own(name)
        if name.startswith(_HIDDEN) or LEAF_DIRECTORY.fullmatch(name) or place.uri in known:
            continue
        if any(uri.startswith(f"{place.uri}/") for uri in known):
            continue
        record = _record(place)
        table = manifest.root.table
        if record is not None and table is not None and record.names(table):
            why = "no row of the manifest says that it was one of its partitions"
            found.append(Leftover(place, why))
    return found


def _record(place: Location) -> Owner | None:
    try:
        return Owner.of(place.open())
    except (OSError, ValueError):
        return None
