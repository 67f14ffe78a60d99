"""Lookup of the rows of a table by some columns, with their ids, for row-level changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from phalanx.model.schema.rows import to_row_schema
from phalanx.model.schema.schema import Schema
from phalanx.planning.pruning.key_routing import route_keys
from phalanx.planning.pruning.leaf_columns import LEAF_LOCATION, list_leaf_versions
from phalanx.storage.leaf.reading import ROW_ID_FIELDS, LeafScan
from phalanx.storage.manifest.manifest import Manifest
from phalanx.storage.state.table_state import TableState
from phalanx.table.jobs.row_ids import add_row_ids, number_leaves
from phalanx.table.read.scan_tasks import ScanTask, pack_tasks, split_leaves
from phalanx.table.write.operations import versions_of


@dataclass(frozen=True, slots=True)
class KeyedLeaves:
    """The leaves that can hold a row with one of some keys; without keys, all leaves."""

    keys: pa.RecordBatch | None

    def find(self, state: TableState) -> dict[int, pa.Table]:
        """Return these leaves, by spec."""
        return {
            number: leaves if self.keys is None else self._route(state, number, leaves)
            for number, leaves in state.list_leaves().items()
        }

    def _route(self, state: TableState, number: int, leaves: pa.Table) -> pa.Table:
        assert self.keys is not None
        properties = state.properties
        places = np.arange(self.keys.num_rows)
        routes = route_keys(self.keys, places, properties.specs[number], properties.schema, leaves)
        return leaves.filter(pa.array(routes.has_keys))

    def find_versions(self, state: TableState) -> dict[str, int | None]:
        """Return the versions of these leaves, by object id."""
        return versions_of(self.find(state))


@dataclass(frozen=True, slots=True)
class LookupWork:
    """Work that reads some columns of leaves, under other names, with row ids."""

    table: Schema
    names: tuple[tuple[str, str], ...]
    tasks: tuple[ScanTask, ...]

    @classmethod
    def of(
        cls, manifest: Manifest, leaves: KeyedLeaves, names: Sequence[tuple[str, str]]
    ) -> LookupWork:
        """Plan the work for leaves of a manifest; `names` are pairs of a column and its alias."""
        schema = manifest.properties.schema
        columns = tuple(name for name, _ in names)
        found = []
        for spec_id, rows in leaves.find(manifest).items():
            numbers = number_leaves(manifest, spec_id, rows.column(LEAF_LOCATION).combine_chunks())
            scans = [
                LeafScan(manifest.root.leaf(location), version, schema, columns)
                for location, version in list_leaf_versions(rows)
            ]
            for number, pieces in zip(numbers.tolist(), split_leaves(scans), strict=True):
                found += [add_row_ids(manifest, number, piece) for piece in pieces]
        return cls(schema, tuple(names), tuple(pack_tasks(found)))

    @property
    def schema(self) -> pa.Schema:
        """The columns under their aliases, and the ids."""
        stored = to_row_schema(self.table)
        return pa.schema(
            [*(stored.field(old).with_name(new) for old, new in self.names), *ROW_ID_FIELDS]
        )

    def select_columns(self, names: Sequence[str]) -> LookupWork:
        """Return the same work with fewer columns."""
        return replace(self, names=tuple(each for each in self.names if each[1] in names))

    def without_tasks(self) -> LookupWork:
        """Return the same work without its tasks."""
        return replace(self, tasks=())

    def batches(self, task: ScanTask) -> Iterator[pa.RecordBatch]:
        """Read the rows of a task."""
        schema = self.schema
        for batch in task.select_columns(tuple(old for old, _ in self.names)).batches():
            yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)
