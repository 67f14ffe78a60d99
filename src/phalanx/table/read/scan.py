"""Scans: a plan and a projection, executed when the rows are read."""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from phalanx.errors import InvalidArgument, InvalidSchema, SchemaMismatch
from phalanx.model.predicates.binding import bind_predicate
from phalanx.model.predicates.predicate import TRUE, Predicate
from phalanx.model.schema.rows import select_schema
from phalanx.model.schema.schema import Schema
from phalanx.planning.formatting import format_count
from phalanx.planning.pruning.leaf_columns import list_leaf_versions
from phalanx.planning.pruning.prune import prune
from phalanx.planning.pruning.residual import refine_leaves
from phalanx.planning.pruning.scan_plan import ScanPlan
from phalanx.storage.lance.failures import ErrorTranslator, describe_as, translate_errors
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.parallel import map_parallel
from phalanx.storage.leaf.path_values import list_path_values
from phalanx.storage.leaf.reading import SCAN_THREADS, LeafScan, read_in_order
from phalanx.storage.state.table_state import TableState
from phalanx.table.read import inspection

# The meaning of such a predicate may depend on the current time: do not cache it.
_DEPENDS_ON_TIME = re.compile(r"\(|current|local", re.IGNORECASE)

_LOGGER = logging.getLogger("phalanx.table")


@dataclass(frozen=True, slots=True)
class Scan(ErrorTranslator):
    """Rows to read, in the order of the plan and, within a leaf, in the order of the leaf.

    Internal: `location`, `table_schema` and `path_columns`.

    Attributes:
        plan: The partitions to read.
        columns: The names of the columns to read, nested fields as "a.b".
        limit: The most rows to read; None: all.
    """

    plan: ScanPlan
    location: Location
    table_schema: Schema
    columns: tuple[str, ...]
    limit: int | None = None
    # The columns that are stored only in paths, each with its partition field.
    path_columns: Mapping[str, str] | None = None

    def _error_location(self) -> Location:
        return self.location

    @property
    def schema(self) -> pa.Schema:
        """The schema of the rows."""
        return select_schema(self.table_schema, self.columns)

    @describe_as("scan")
    def to_arrow(self) -> pa.Table:
        """Read all rows into memory."""
        if self.limit is not None:
            return pa.Table.from_batches(self._batches(), self.schema)
        parts = map_parallel(_read_batches, self.leaf_scans(), SCAN_THREADS)
        return pa.Table.from_batches([batch for part in parts for batch in part], self.schema)

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Stream the rows in bounded memory."""
        return self._batches()

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the rows as an Arrow stream."""
        return pa.RecordBatchReader.from_batches(self.schema, self._batches())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.to_reader().__arrow_c_stream__(requested_schema)

    @describe_as("count the rows of")
    def count_rows(self) -> int:
        """Count the rows; from metadata wherever all rows of a leaf match."""
        total = sum(map_parallel(LeafScan.count_rows, self.leaf_scans()))
        return total if self.limit is None else min(total, self.limit)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        left = self.limit
        if left == 0:
            return
        threads = SCAN_THREADS if left is None else 2
        with translate_errors(f"scan {self.location}"):
            for batch in read_in_order(self.leaf_scans(), threads, LeafScan.read_batches):
                yield batch if left is None else batch.slice(0, left)
                if left is not None:
                    left -= batch.num_rows
                    if left <= 0:
                        return

    def leaf_scans(self) -> list[LeafScan]:
        """Internal: return the scan of each leaf, in the order of the plan."""
        scans = []
        for spec in self.plan.pruning.specs:
            leaves = self.plan.leaves[spec.spec_id]
            residuals = self.plan.residuals[spec.spec_id]
            places = residuals.indices.tolist()
            paths = list_path_values(leaves, self.path_columns)
            for (location, version), place, path in zip(
                list_leaf_versions(leaves), places, paths, strict=True
            ):
                scan = LeafScan(
                    self.location.leaf(location),
                    version,
                    self.table_schema,
                    self.columns,
                    residuals.predicates[place],
                    self.limit,
                    path=path,
                )
                scans.append(scan)
        return scans


def _read_batches(scan: LeafScan) -> list[pa.RecordBatch]:
    return list(scan.read_batches())


def resolve_columns(columns: Sequence[str] | None, schema: Schema) -> tuple[str, ...]:
    """Return the exact names of the columns, or paths for nested fields; None means all."""
    if columns is None:
        return schema.names
    if isinstance(columns, str) or not columns:
        raise InvalidArgument(
            f"Cannot select the columns {columns!r}: expected a list with at least one name."
        )
    found = []
    for name in columns:
        if not isinstance(name, str):
            raise InvalidArgument(f"Cannot select the column {name!r}: expected a name.")
        try:
            path = schema.resolve((name,))
        except InvalidSchema as error:
            raise SchemaMismatch(f"Cannot select the column {name!r}: {error}") from None
        exact = ".".join(path)
        if exact in found:
            raise InvalidArgument(f"Cannot select the column {name!r} twice.")
        found.append(exact)
    return tuple(found)


def check_limit(limit: int | None) -> int | None:
    """Return a valid limit; None if it exceeds what any table can hold."""
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
        raise InvalidArgument(f"Cannot use the limit {limit!r}: expected a number of rows from 0.")
    # No table has more rows, and Lance accepts no larger number.
    return None if limit is not None and limit >= 1 << 62 else limit


def make_scan(
    state: TableState, where: str | None, columns: Sequence[str] | None, limit: int | None
) -> Scan:
    """Plan a scan of one version of a table."""
    schema = state.properties.schema
    names = resolve_columns(columns, schema)
    plan = plan_scan(state, bind_where(where, schema))
    return Scan(plan, state.root, schema, names, check_limit(limit), state.path_columns)


def plan_scan(state: TableState, predicate: Predicate) -> ScanPlan:
    """Prune the leaves by a predicate, and find the residual filter of each."""
    properties = state.properties
    schema, specs = properties.schema, properties.specs
    pruning = prune(predicate, specs, schema)
    kept = state.list_leaves(pruning)
    found = {
        spec.spec_id: refine_leaves(kept[spec.spec_id], spec, specs[spec.spec_id], schema)
        for spec in pruning.specs
    }
    leaves = {number: rows for number, (rows, _) in found.items()}
    if _LOGGER.isEnabledFor(logging.DEBUG):
        kept_count = sum(rows.num_rows for rows in leaves.values())
        total = state.total_partitions
        _LOGGER.debug(
            "Planned a scan of %s: %d of %s",
            *(state.root, kept_count, format_count(total, "partition")),
        )
    return ScanPlan(
        root=state.root.uri,
        pruning=pruning,
        labels={number: spec.label(schema) for number, spec in specs.items()},
        leaves=leaves,
        residuals={number: residuals for number, (_, residuals) in found.items()},
        total_partitions=state.total_partitions,
        measure=functools.partial(inspection.measure_sizes, state, leaves),
    )


def bind_where(where: str | None, schema: Schema) -> Predicate:
    """Bind the text of a predicate; None keeps every row."""
    if where is None:
        return TRUE
    if isinstance(where, str) and _DEPENDS_ON_TIME.search(where) is None:
        return _bind_cached(where, schema)
    return bind_predicate(where, schema)


@functools.lru_cache(maxsize=256)
def _bind_cached(where: str, schema: Schema) -> Predicate:
    return bind_predicate(where, schema)
