"""A cache of table states: a table that has not changed is not read again."""

from __future__ import annotations

from collections import OrderedDict
from datetime import datetime

from phalanx.spark.runtime.options import Options
from phalanx.storage.lance.location import Location
from phalanx.storage.manifest.manifest import Manifest
from phalanx.storage.state.properties import NAMESPACE_LAYOUT
from phalanx.storage.state.table_state import TableState
from phalanx.table.handle import handle_of
from phalanx.table.opening import open

_MAX_TABLES = 32


class TableCache:
    """The most recently used tables, each at a snapshot or at its newest state.

    An entry is valid only for the last commit to the manifest: a table at the same path may have
    been deleted and created again, or restored from a copy.
    """

    def __init__(self) -> None:
        self._entries: OrderedDict[
            tuple[Location, int | datetime | None], tuple[str, TableState]
        ] = OrderedDict()

    def get_state(self, options: Options, snapshot: int | None) -> TableState:
        """Return the state to read: at the snapshot of the options, else at `snapshot`."""
        location = options.location
        table = open(
            location.uri,
            storage_options=location.storage_options,
            trust_locations=location.trust_locations,
        )
        wanted = options.snapshot("snapshot")
        key = (location, snapshot if wanted is None else wanted)
        commit = _last_commit(handle_of(table).refresh())
        entry = self._entries.get(key)
        if entry is not None and entry[0] == commit:
            self._entries.move_to_end(key)
            return entry[1]
        found = handle_of(table if key[1] is None else table.at(key[1])).refresh()
        if commit is not None:
            self._entries[key] = (commit, found)
            if len(self._entries) > _MAX_TABLES:
                self._entries.popitem(last=False)
        return found


def _last_commit(state: TableState) -> str | None:
    """Return the last commit to the manifest; None if other files decide what is read too."""
    if isinstance(state, Manifest) and state.layout == NAMESPACE_LAYOUT:
        return state.transaction_id
    return None
