"""A scan: a plan, some columns, and the rows when they are asked for."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from phalanx.errors import InvalidSchema, SchemaMismatch
from phalanx.model.predicates.binding import bind
from phalanx.model.predicates.predicate import TRUE, Predicate
from phalanx.model.schema.rows import chosen_schema
from phalanx.model.schema.schema import Schema
from phalanx.planning.pruning.prune import prune
from phalanx.planning.pruning.residual import settled
from phalanx.planning.pruning.scan_plan import ScanPlan, located
from phalanx.storage.lance.failures import Guarded, tells, told
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.parallel import in_parallel
from phalanx.storage.leaf.path_values import path_values
from phalanx.storage.leaf.reading import SCAN_THREADS, LeafScan, in_order
from phalanx.storage.state.table_state import LeafListing
from phalanx.table.read import inspection

# What such a text means may be another thing the next time.
_TELLS_THE_TIME = re.compile(r"\(|current|local", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Scan(Guarded):
    """Rows to be read: in the order of the plan, and within a leaf in the leaf's own."""

    plan: ScanPlan
    location: Location
    table_schema: Schema
    columns: tuple[str, ...]
    limit: int | None = None
    # The columns that only paths hold, each with its partition field.
    path_columns: Mapping[str, str] | None = None

    def _stored_at(self) -> Location:
        return self.location

    @property
    def schema(self) -> pa.Schema:
        """The schema of the rows."""
        return chosen_schema(self.table_schema, self.columns)

    @tells("scan")
    def to_arrow(self) -> pa.Table:
        """All rows, in memory."""
        if self.limit is not None:
            return pa.Table.from_batches(self._batches(), self.schema)
        parts = in_parallel(_read, self.leaf_scans(), SCAN_THREADS)
        return pa.Table.from_batches([batch for part in parts for batch in part], self.schema)

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """The rows as a stream; memory does not grow with their number."""
        return self._batches()

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows as an Arrow stream."""
        return pa.RecordBatchReader.from_batches(self.schema, self._batches())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.to_reader().__arrow_c_stream__(requested_schema)

    @tells("count the rows of")
    def count_rows(self) -> int:
        """How many rows there are; from metadata wherever every row of a leaf matches."""
        total = sum(in_parallel(LeafScan.count_rows, self.leaf_scans()))
        return total if self.limit is None else min(total, self.limit)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        left = self.limit
        if left == 0:
            return
        threads = SCAN_THREADS if left is None else 2
        with told(f"scan {self.location}"):
            for batch in in_order(self.leaf_scans(), threads, LeafScan.batches):
                yield batch if left is None else batch.slice(0, left)
                if left is not None:
                    left -= batch.num_rows
                    if left <= 0:
                        return

    def leaf_scans(self) -> list[LeafScan]:
        """What is read of each leaf, in the order of the plan."""
        scans = []
        for spec in self.plan.pruning.specs:
            leaves = self.plan.leaves[spec.spec_id]
            residuals = self.plan.residuals[spec.spec_id]
            places = residuals.places.tolist()
            paths = path_values(leaves, self.path_columns)
            for (location, version), place, path in zip(
                located(leaves), places, paths, strict=True
            ):
                scan = LeafScan(
                    self.location.child(location),
                    version,
                    self.table_schema,
                    self.columns,
                    residuals.predicates[place],
                    self.limit,
                    path=path,
                )
                scans.append(scan)
        return scans


def _read(scan: LeafScan) -> list[pa.RecordBatch]:
    return list(scan.batches())


def checked_columns(columns: Sequence[str] | None, schema: Schema) -> tuple[str, ...]:
    """The columns by their exact names, fields inside structs by their paths; all if none are."""
    if columns is None:
        return schema.names
    if isinstance(columns, str) or not columns:
        raise SchemaMismatch(
            f"Cannot select the columns {columns!r}: expected a list with at least one name."
        )
    found = []
    for name in columns:
        if not isinstance(name, str):
            raise SchemaMismatch(f"Cannot select the column {name!r}: expected a name.")
        try:
            path = schema.resolve((name,))
        except InvalidSchema as error:
            raise SchemaMismatch(f"Cannot select the column {name!r}: {error}") from None
        exact = ".".join(path)
        if exact in found:
            raise SchemaMismatch(f"Cannot select the column {name!r} twice.")
        found.append(exact)
    return tuple(found)


def checked_limit(limit: int | None) -> int | None:
    """The limit, if it is one."""
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
        raise SchemaMismatch(f"Cannot use the limit {limit!r}: expected a number of rows from 0.")
    # No table has more rows, and Lance takes no larger number.
    return None if limit is not None and limit >= 1 << 62 else limit


def scan_of(
    manifest: LeafListing, where: str | None, columns: Sequence[str] | None, limit: int | None
) -> Scan:
    """A scan of one version of a table."""
    schema = manifest.properties.schema
    names = checked_columns(columns, schema)
    plan = plan_of(manifest, bound(where, schema))
    return Scan(plan, manifest.root, schema, names, checked_limit(limit), manifest.path_columns)


def plan_of(manifest: LeafListing, predicate: Predicate) -> ScanPlan:
    """Which leaves a predicate needs, and what is left to filter in each."""
    properties = manifest.properties
    schema, specs = properties.schema, properties.specs
    pruning = prune(predicate, specs, schema)
    kept = manifest.leaves(pruning)
    found = {
        spec.spec_id: settled(kept[spec.spec_id], spec, specs[spec.spec_id], schema)
        for spec in pruning.specs
    }
    leaves = {number: rows for number, (rows, _) in found.items()}
    return ScanPlan(
        root=manifest.root.uri,
        pruning=pruning,
        labels={number: spec.label(schema) for number, spec in specs.items()},
        leaves=leaves,
        residuals={number: residuals for number, (_, residuals) in found.items()},
        total_partitions=manifest.total_partitions,
        measure=functools.partial(inspection.sizes, manifest, leaves),
    )


def bound(where: str | None, schema: Schema) -> Predicate:
    """The predicate that a text means; none keeps every row."""
    if where is None:
        return TRUE
    if isinstance(where, str) and _TELLS_THE_TIME.search(where) is None:
        return _bound_once(where, schema)
    return bind(where, schema)


@functools.lru_cache(maxsize=256)
def _bound_once(where: str, schema: Schema) -> Predicate:
    return bind(where, schema)
