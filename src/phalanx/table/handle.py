"""The state of a table as one process knows it, and the checks before a write."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import datetime
from typing import Literal, Protocol, TypeAlias, overload

from phalanx.errors import PhalanxError
from phalanx.storage.hive.creation import make_weak_target
from phalanx.storage.lance.forks import check_fork
from phalanx.storage.lance.location import Location
from phalanx.storage.manifest.manifest import Manifest
from phalanx.storage.state.properties import Properties
from phalanx.storage.state.table_state import TableState
from phalanx.table.transactions import strong_mode
from phalanx.table.write.incoming_rows import Statement
from phalanx.table.write.transaction import run_in_transaction

ManifestNeed: TypeAlias = Literal["manifest", "leaves", "snapshots"]
"""What a change needs that is not possible in every layout; see `TableHandle.for_write`."""


class TableHandle:
    """The last known state of a table, or its state at a snapshot, which is read-only."""

    __slots__ = ("snapshot", "state")

    def __init__(self, state: TableState, snapshot: int | datetime | None = None) -> None:
        self.state = state
        # None: follow the newest state.
        self.snapshot = snapshot

    @property
    def root(self) -> Location:
        """The location of the table; reads nothing."""
        return self.state.root

    @property
    def properties(self) -> Properties:
        """The newest properties: schema, specs, mode."""
        return self.refresh().properties

    def refresh(self) -> TableState:
        """Return the newest state; that of the snapshot for a table as of one."""
        check_fork()
        if self.snapshot is None:
            self.state = self.state.load_latest()
        return self.state

    def load_manifest(self) -> Manifest:
        """Return the newest manifest; raise for a layout without one."""
        return self._check_manifest(self.refresh())

    def load_strong_manifest(self) -> Manifest:
        """Return the newest manifest of a table in strong mode; raise in weak mode."""
        return self._check_strong(self.load_manifest())

    @overload
    def for_write(self, needs: Literal["rows"]) -> TableState: ...
    @overload
    def for_write(self, needs: ManifestNeed) -> Manifest: ...
    def for_write(self, needs: Literal["rows"] | ManifestNeed) -> TableState:
        """Return the newest state, after the checks that a change needs.

        | needs | the change | refused |
        |---|---|---|
        | `"rows"` | adds or removes rows | leaves that readers see at a fixed version |
        | `"manifest"` | changes the mode, specs or partitions | the hive layout |
        | `"leaves"` | changes schemas, files or indexes of leaves | both |
        | `"snapshots"` | commits or restores a snapshot | the hive layout, and weak mode |

        A table as of a snapshot is always refused. A change of the mode that was cut off is
        completed first.
        """
        state = self.refresh()
        if needs == "rows" and not isinstance(state, Manifest):
            return state
        if self.snapshot is not None:
            raise PhalanxError(
                f"Cannot change {self.root} as of {self.snapshot}: it is read-only. Change the "
                "table itself, or make this its state with rollback()."
            )
        manifest = strong_mode.finish_leaving_strong(self._check_manifest(state))
        self.state = manifest
        if needs in ("rows", "leaves"):
            strong_mode.check_unpinned(manifest)
        return self._check_strong(manifest) if needs == "snapshots" else manifest

    def for_leaves(self) -> Manifest:
        """Return `for_write("leaves")`, for operations that start over on the newest state."""
        return self.for_write("leaves")

    def for_statement(self) -> tuple[TableState, Callable[[Statement], int]]:
        """Return the state to plan a statement on, and the function that runs it on that state."""
        state = self.for_write("rows")
        if isinstance(state, Manifest) and state.properties.mode == "strong":
            return state, functools.partial(run_in_transaction, state)
        return state, lambda statement: statement(
            make_weak_target(state, strong_mode.complete_change)
        )

    def _check_manifest(self, state: TableState) -> Manifest:
        if isinstance(state, Manifest):
            return state
        raise PhalanxError(
            f"{self.root} has the {state.layout} layout: weak mode only, one spec and one schema, "
            "and no snapshots. Make it a table of the newest format with upgrade(), which "
            "rewrites no data."
        )

    def _check_strong(self, manifest: Manifest) -> Manifest:
        if manifest.properties.mode != "strong":
            raise PhalanxError(
                f"{self.root} is in weak mode: transactions and snapshots need strong mode. "
                "Change it with set_mode('strong')."
            )
        return manifest


class _HasHandle(Protocol):
    @property
    def _handle(self) -> TableHandle: ...


def handle_of(table: _HasHandle) -> TableHandle:
    """Return the handle of a `Table`, which Spark, the shell and tests use for its state."""
    return table._handle
