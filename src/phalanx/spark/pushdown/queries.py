"""The leaves that one query of Spark reads.

Spark plans in steps: which conditions are pushed down, how large and how partitioned the scan is,
and finally its tasks. All steps of a query see one version of the table.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import pyarrow as pa

from phalanx.model.predicates.predicate import TRUE, Predicate, all_of
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.spec import PartitionField
from phalanx.planning.pruning.leaf_columns import LEAF_LOCATION
from phalanx.planning.pruning.projection import project_inclusive
from phalanx.planning.pruning.residual import find_possible_partitions
from phalanx.planning.pruning.scan_plan import ScanPlan
from phalanx.spark.pushdown.conditions import Condition, ExpressionTree, Translator, and_conditions
from phalanx.spark.runtime.options import Options
from phalanx.storage.lance.failures import translate_errors
from phalanx.storage.manifest.manifest import Manifest
from phalanx.storage.state.table_state import TableState
from phalanx.table.jobs.row_ids import add_row_ids, number_leaves
from phalanx.table.read.scan import Scan, bind_where, plan_scan
from phalanx.table.read.scan_tasks import ScanPiece, split_leaves


class Query:
    """A table as one query sees it, at one version."""

    def __init__(
        self, state: TableState, options: Options, zone: str, changes_rows: bool = False
    ) -> None:
        self.state = state
        self.changes_rows = changes_rows
        self.schema: Schema = state.properties.schema
        self.split_size = options.size("split_size")
        self._where = bind_where(options.text("where"), self.schema)
        self._translator = Translator(self.schema, zone)
        # The steps of a query ask for the same leaves.
        self._find_leaves_cached = lru_cache(maxsize=4)(self._find_leaves)

    def translate_conditions(self, trees: Sequence[ExpressionTree]) -> list[Condition]:
        """Translate Spark's conditions to predicates."""
        return [self._translator.where_true(tree) for tree in trees]

    def find_leaves(self, trees: Sequence[ExpressionTree]) -> QueryLeaves:
        """Return the leaves that may have rows for which all conditions are TRUE."""
        return self._find_leaves_cached(json.dumps(trees))

    def _find_leaves(self, trees: str) -> QueryLeaves:
        condition = and_conditions(self.translate_conditions(json.loads(trees)))
        rows = all_of((self._where, condition.on_rows))
        with translate_errors(f"plan a query of {self.state.root}"):
            plan = narrower = plan_scan(self.state, rows)
            if condition.on_rows != condition.predicate:
                narrower = plan_scan(self.state, all_of((self._where, condition.predicate)))
            return QueryLeaves(
                self.state, narrower, tuple(_open_leaves(self.state, plan, narrower))
            )


@dataclass(frozen=True, slots=True)
class QueryLeaf:
    """A leaf to read: its spec, its index among the plan's leaves of that spec, its fragments."""

    spec_id: int
    index: int
    predicate: Predicate
    pieces: tuple[ScanPiece, ...]

    @property
    def rows(self) -> int:
        """The number of rows that are not deleted."""
        return sum(piece.rows for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class QueryLeaves:
    """The leaves that a query reads, in the order of the plan."""

    state: TableState
    plan: ScanPlan
    leaves: tuple[QueryLeaf, ...]

    @property
    def schema(self) -> Schema:
        """The columns of the table."""
        return self.state.properties.schema

    @property
    def non_empty(self) -> QueryLeaves:
        """The leaves that have rows."""
        return replace(self, leaves=tuple(leaf for leaf in self.leaves if leaf.rows))

    @property
    def pieces(self) -> list[ScanPiece]:
        """The fragments of all leaves, in order."""
        return [piece for leaf in self.leaves for piece in leaf.pieces]

    @property
    def is_unfiltered(self) -> bool:
        """Whether the query reads every row of the leaves."""
        return all(leaf.predicate == TRUE for leaf in self.leaves)

    def common_fields(self) -> list[PartitionField]:
        """Return the partition fields that all leaves share, from the newest of their specs."""
        specs = self.state.properties.specs
        used = sorted({leaf.spec_id for leaf in self.leaves})
        if not used:
            return list(self.state.properties.spec.fields)
        shared = set.intersection(*({f.meaning for f in specs[each].fields} for each in used))
        return [field for field in specs[used[-1]].fields if field.meaning in shared]

    def partition_values(self, field: PartitionField) -> pa.Array:
        """Return the value of each leaf for a common field."""
        specs = self.state.properties.specs
        parts = []
        for spec_id, places in self._indexes_by_spec():
            own = next(f for f in specs[spec_id].fields if f.meaning == field.meaning)
            column = self.plan.leaves[spec_id].column(own.field_id).combine_chunks()
            parts.append(column.take(pa.array(places, pa.int64())).cast(field.result_type))
        return pa.concat_arrays(parts) if parts else pa.array([], field.result_type)

    def prune(self, predicate: Predicate) -> QueryLeaves:
        """Return the leaves that may also have a row that satisfies a predicate."""
        specs = self.state.properties.specs
        kept: list[QueryLeaf] = []
        waiting = iter(self.leaves)
        for spec_id, places in self._indexes_by_spec():
            spec = specs[spec_id]
            values = self.plan.leaves[spec_id].take(pa.array(places, pa.int64()))
            holds = find_possible_partitions(
                project_inclusive(predicate, spec, self.schema), spec, values, len(places)
            )
            kept += [leaf for keep, leaf in zip(holds.tolist(), waiting, strict=False) if keep]
        return replace(self, leaves=tuple(kept))

    def with_row_ids(self) -> QueryLeaves:
        """Return the same leaves, read with row ids."""
        assert isinstance(self.state, Manifest)
        kept: list[QueryLeaf] = []
        waiting = iter(self.leaves)
        for spec_id, places in self._indexes_by_spec():
            locations = (
                self.plan.leaves[spec_id].column(LEAF_LOCATION).take(pa.array(places, pa.int64()))
            )
            numbers = number_leaves(self.state, spec_id, locations.combine_chunks())
            for number, leaf in zip(numbers.tolist(), waiting, strict=False):
                pieces = tuple(add_row_ids(self.state, number, each) for each in leaf.pieces)
                kept.append(replace(leaf, pieces=pieces))
        return replace(self, leaves=tuple(kept))

    def _indexes_by_spec(self) -> Iterable[tuple[int, list[int]]]:
        found: dict[int, list[int]] = {}
        for leaf in self.leaves:
            found.setdefault(leaf.spec_id, []).append(leaf.index)
        return found.items()


def _open_leaves(state: TableState, plan: ScanPlan, narrower: ScanPlan) -> Iterator[QueryLeaf]:
    """Open the leaves of the narrower plan, filtered by the residual predicates of the other."""
    schema, paths = state.properties.schema, state.path_columns
    scans = Scan(plan, state.root, schema, (), path_columns=paths).leaf_scans()
    listed = [
        (spec.spec_id, location)
        for spec in plan.pruning.specs
        for location in plan.leaves[spec.spec_id].column(LEAF_LOCATION).to_pylist()
    ]
    places = {
        (spec_id, location): place
        for spec_id, leaves in narrower.leaves.items()
        for place, location in enumerate(leaves.column(LEAF_LOCATION).to_pylist())
    }
    kept = [(key, scan) for key, scan in zip(listed, scans, strict=True) if key in places]
    opened = split_leaves([scan for _, scan in kept])
    for (key, scan), found in zip(kept, opened, strict=True):
        yield QueryLeaf(key[0], places[key], scan.predicate, tuple(found))
