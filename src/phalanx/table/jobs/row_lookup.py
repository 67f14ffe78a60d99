"""Rows of a table by some columns, each with its id: where a change looks its rows up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from phalanx.model.schema.rows import plain_schema
from phalanx.model.schema.schema import Schema
from phalanx.planning.pruning.key_routing import route
from phalanx.planning.pruning.scan_plan import LOCATION, located
from phalanx.storage.leaf.reading import ROW_ID, LeafScan
from phalanx.storage.manifest.manifest import Manifest
from phalanx.storage.state.table_state import LeafListing
from phalanx.table.jobs.row_ids import identified, leaf_numbers
from phalanx.table.read.scan_tasks import ScanTask, packed_tasks, pieces_of_all
from phalanx.table.write.operations import versions_of


@dataclass(frozen=True, slots=True)
class KeyedLeaves:
    """The leaves that can hold a row with one of some keys; without keys, all leaves."""

    keys: pa.RecordBatch | None

    def of(self, manifest: LeafListing) -> dict[int, pa.Table]:
        """These leaves, by spec."""
        return {
            number: leaves if self.keys is None else self._kept(manifest, number, leaves)
            for number, leaves in manifest.leaves().items()
        }

    def _kept(self, manifest: LeafListing, number: int, leaves: pa.Table) -> pa.Table:
        assert self.keys is not None
        properties = manifest.properties
        places = np.arange(self.keys.num_rows)
        routes = route(self.keys, places, properties.specs[number], properties.schema, leaves)
        return leaves.filter(pa.array(routes.kept))

    def versions(self, manifest: LeafListing) -> dict[str, int | None]:
        """The versions of these leaves, by object id."""
        return versions_of(self.of(manifest))


@dataclass(frozen=True, slots=True)
class LookupWork:
    """Some columns of leaves, under other names, and the ids of the rows, read in tasks."""

    table: Schema
    names: tuple[tuple[str, str], ...]
    tasks: tuple[ScanTask, ...]

    @classmethod
    def of(
        cls, manifest: Manifest, leaves: KeyedLeaves, names: Sequence[tuple[str, str]]
    ) -> LookupWork:
        """The work for leaves of a manifest; the names are pairs of a column and another name."""
        schema = manifest.properties.schema
        columns = tuple(name for name, _ in names)
        found = []
        for spec_id, rows in leaves.of(manifest).items():
            numbers = leaf_numbers(manifest, spec_id, rows.column(LOCATION).combine_chunks())
            scans = [
                LeafScan(manifest.root.child(location), version, schema, columns)
                for location, version in located(rows)
            ]
            for number, pieces in zip(numbers.tolist(), pieces_of_all(scans), strict=True):
                found += [identified(manifest, number, piece) for piece in pieces]
        return cls(schema, tuple(names), tuple(packed_tasks(found)))

    @property
    def schema(self) -> pa.Schema:
        """The columns under their other names, and the ids."""
        stored = plain_schema(self.table)
        return pa.schema([*(stored.field(old).with_name(new) for old, new in self.names), *ROW_ID])

    def reading(self, names: Sequence[str]) -> LookupWork:
        """The same rows, with fewer of the columns."""
        return replace(self, names=tuple(each for each in self.names if each[1] in names))

    def without_tasks(self) -> LookupWork:
        """The same work, as one task sees it."""
        return replace(self, tasks=())

    def batches(self, task: ScanTask) -> Iterator[pa.RecordBatch]:
        """The rows of a task."""
        schema = self.schema
        for batch in task.reading(tuple(old for old, _ in self.names)).batches():
            yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)
