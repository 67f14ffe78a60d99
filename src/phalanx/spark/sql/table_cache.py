"""Tables that queries were planned for before: one that has not changed need not be read anew."""

from __future__ import annotations

from collections import OrderedDict
from datetime import datetime

from phalanx.spark.runtime.options import Options
from phalanx.storage.lance.location import Location
from phalanx.storage.manifest.manifest import Manifest
from phalanx.storage.state.properties import NAMESPACE
from phalanx.storage.state.table_state import LeafListing
from phalanx.table.opening import open

_MOST_TABLES = 32


class KnownTables:
    """The last tables that were asked for, each as of a snapshot or as it was.

    A table is known by the last commit to its manifest, not by its path alone: it may have been
    deleted and made anew, or restored from a copy.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[
            tuple[Location, int | datetime | None], tuple[str, LeafListing]
        ] = OrderedDict()

    def listing(self, options: Options, snapshot: int | None) -> LeafListing:
        """The leaves that are read, as of the snapshot that the options or the loading named."""
        location = options.location
        table = open(
            location.uri,
            storage_options=location.storage_options,
            trust_locations=location.trusts,
        )
        wanted = options.snapshot("snapshot")
        place = (location, snapshot if wanted is None else wanted)
        commit = _last_commit(table._refreshed())
        known = self._known.get(place)
        if known is not None and known[0] == commit:
            self._known.move_to_end(place)
            return known[1]
        found = (table if place[1] is None else table.at(place[1]))._refreshed()
        if commit is not None:
            self._known[place] = (commit, found)
            if len(self._known) > _MOST_TABLES:
                self._known.popitem(last=False)
        return found


def _last_commit(listing: LeafListing) -> str | None:
    """What names the state of a table; None where more than its manifest tells what is read."""
    if isinstance(listing, Manifest) and listing.layout == NAMESPACE:
        return listing.commit
    return None
