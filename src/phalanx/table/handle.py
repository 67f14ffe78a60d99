"""What a user holds of a table: where it is, what it is, and what may be done with it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import pyarrow as pa

from phalanx.errors import PhalanxError
from phalanx.model.specs.spec import PartitionSpec
from phalanx.storage.hive.creation import main_branches
from phalanx.storage.hive.root import open_root
from phalanx.storage.lance.failures import Guarded
from phalanx.storage.lance.forks import check_fork
from phalanx.storage.lance.location import Location
from phalanx.storage.manifest.manifest import Manifest
from phalanx.storage.state.properties import Properties
from phalanx.storage.state.table_state import LeafListing
from phalanx.table.pinned import check_unpinned
from phalanx.table.transactions import strong_mode as strong
from phalanx.table.write.incoming_rows import Statement
from phalanx.table.write.transaction import run_alone


class HeldTable(Guarded):
    """A partitioned namespace: what it is now, or as of a snapshot."""

    def __init__(self, manifest: LeafListing, snapshot: int | datetime | None = None) -> None:
        self._manifest = manifest
        # What the table is held at, and not written; None where it follows what is stored.
        self._snapshot = snapshot

    def __repr__(self) -> str:
        label = self.spec.label(self._properties.schema)
        return f"<phalanx.Table {self.uri} by {label or 'nothing'}>"

    def _stored_at(self) -> str:
        return self._manifest.root.uri

    @property
    def uri(self) -> str:
        """Where the table is."""
        return self._manifest.root.uri

    @property
    def schema(self) -> pa.Schema:
        """The columns, each with its `lance:field_id`."""
        return self._properties.schema.arrow

    @property
    def spec(self) -> PartitionSpec:
        """The newest spec, under which rows are written."""
        return self._properties.spec

    @property
    def specs(self) -> Mapping[int, PartitionSpec]:
        """All spec versions by their ids."""
        return dict(self._properties.specs)

    @property
    def mode(self) -> str:
        """Whether writes are atomic for each partition (weak) or for all (strong)."""
        return self._properties.mode

    @property
    def layout(self) -> str:
        """How it is stored: "namespace", the newest format; "expressions" or "hive", drafts."""
        return self._refreshed().layout

    @property
    def _properties(self) -> Properties:
        return self._refreshed().properties

    def __reduce__(self) -> tuple[Any, ...]:
        """A table is pickled as its place, and one as of a snapshot as its version there."""
        if self._snapshot is not None:
            return type(self), (self._manifest, self._snapshot)
        return _opened_again, (type(self), self._manifest.root, self._manifest.overrides)

    def _refreshed(self) -> LeafListing:
        check_fork()
        if self._snapshot is not None:
            return self._manifest
        self._manifest = self._manifest.latest()
        return self._manifest

    def _namespace(self) -> Manifest:
        """The manifest, for what needs one."""
        found = self._refreshed()
        if isinstance(found, Manifest):
            return found
        raise PhalanxError(
            f"{self.uri} has the {found.layout} layout: weak mode only, one spec and one schema, "
            "and no snapshots. Make it a table of the newest format with upgrade(), which "
            "rewrites no data."
        )

    def _written(self) -> LeafListing:
        """What a write begins with, in any layout."""
        found = self._refreshed()
        return self._unpinned() if isinstance(found, Manifest) else found

    def _writable(self) -> Manifest:
        if self._snapshot is not None:
            raise PhalanxError(
                f"Cannot change {self.uri} as of {self._snapshot}: it is read-only. Change the "
                "table itself, or make this its state with rollback()."
            )
        manifest = strong.settled(self._namespace())
        self._manifest = manifest
        return manifest

    def _unpinned(self) -> Manifest:
        """The manifest for a change of rows; refuses one that readers would not see."""
        manifest = self._writable()
        check_unpinned(manifest)
        return manifest

    def _statements(self) -> tuple[LeafListing, Callable[[Statement], int]]:
        """What a statement is made for, and how it is run there: other threads may move on."""
        manifest = self._written()
        if isinstance(manifest, Manifest) and manifest.properties.mode == "strong":
            return manifest, functools.partial(run_alone, manifest)
        return manifest, lambda statement: statement(main_branches(manifest, strong.complete))

    def _strong(self, manifest: Manifest) -> Manifest:
        if manifest.properties.mode != "strong":
            raise PhalanxError(
                f"{self.uri} is in weak mode: transactions and snapshots need strong mode. "
                "Change it with set_mode('strong')."
            )
        return manifest


def _opened_again(
    kind: type[HeldTable], root: Location, overrides: Mapping[str, str] | None
) -> HeldTable:
    """The table at a place, which may be in another process than the one that it was pickled in."""
    location = Location(root.uri, root.storage_options, trusts=root.trusts)
    return kind(open_root(location, overrides))
