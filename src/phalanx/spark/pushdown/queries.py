"""What one query of Spark needs of a table: which leaves there are to read, and what fills them.

Spark asks in steps: which of its conditions are taken, how much there is to read and how it is
partitioned, and in the end for the tasks. All steps of a query see one version of the table.
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
from phalanx.planning.pruning.projection import inclusive
from phalanx.planning.pruning.residual import may_hold
from phalanx.planning.pruning.scan_plan import LOCATION, ScanPlan
from phalanx.spark.pushdown.conditions import Condition, Translator, Tree, together
from phalanx.spark.runtime.options import Options
from phalanx.storage.lance.failures import told
from phalanx.storage.manifest.manifest import Manifest
from phalanx.storage.state.table_state import LeafListing
from phalanx.table.jobs.row_ids import identified, leaf_numbers
from phalanx.table.read.scan import Scan, bound, plan_of
from phalanx.table.read.scan_tasks import Piece, pieces_of_all


class Query:
    """A table as one query sees it."""

    def __init__(
        self, manifest: LeafListing, options: Options, zone: str, changes_rows: bool = False
    ) -> None:
        self.manifest = manifest
        self.changes_rows = changes_rows
        self.schema: Schema = manifest.properties.schema
        self.split_size = options.size("split_size")
        self._where = bound(options.text("where"), self.schema)
        self._translator = Translator(self.schema, zone)
        # The steps of a query are about the same leaves.
        self._found_once = lru_cache(maxsize=4)(self._found)

    def conditions(self, trees: Sequence[Tree]) -> list[Condition]:
        """What each condition of Spark is to Phalanx."""
        return [self._translator.truth(tree) for tree in trees]

    def found(self, trees: Sequence[Tree]) -> Found:
        """The leaves that rows are in for which all conditions may be TRUE."""
        return self._found_once(json.dumps(trees))

    def _found(self, trees: str) -> Found:
        condition = together(self.conditions(json.loads(trees)))
        rows = all_of((self._where, condition.on_rows))
        with told(f"plan a query of {self.manifest.root}"):
            plan = narrower = plan_of(self.manifest, rows)
            if condition.on_rows != condition.predicate:
                narrower = plan_of(self.manifest, all_of((self._where, condition.predicate)))
            return Found(self.manifest, narrower, tuple(_leaves(self.manifest, plan, narrower)))


@dataclass(frozen=True, slots=True)
class Leaf:
    """A leaf to read: its spec, its place among the plan's leaves of that spec, its fragments."""

    spec_id: int
    place: int
    predicate: Predicate
    pieces: tuple[Piece, ...]

    @property
    def rows(self) -> int:
        """The rows that are not deleted."""
        return sum(piece.rows for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class Found:
    """The leaves that a query needs, in the order of their plan."""

    manifest: LeafListing
    plan: ScanPlan
    leaves: tuple[Leaf, ...]

    @property
    def schema(self) -> Schema:
        """The columns of the table."""
        return self.manifest.properties.schema

    @property
    def filled(self) -> Found:
        """Those of the leaves that have rows."""
        return replace(self, leaves=tuple(leaf for leaf in self.leaves if leaf.rows))

    @property
    def pieces(self) -> list[Piece]:
        """The fragments of all leaves, in their order."""
        return [piece for leaf in self.leaves for piece in leaf.pieces]

    @property
    def is_whole(self) -> bool:
        """Whether every row of the leaves is wanted."""
        return all(leaf.predicate == TRUE for leaf in self.leaves)

    def common_fields(self) -> list[PartitionField]:
        """The partition fields that all leaves have a value of, as their newest spec has them."""
        specs = self.manifest.properties.specs
        used = sorted({leaf.spec_id for leaf in self.leaves})
        if not used:
            return list(self.manifest.properties.spec.fields)
        shared = set.intersection(*({f.meaning for f in specs[each].fields} for each in used))
        return [field for field in specs[used[-1]].fields if field.meaning in shared]

    def values(self, field: PartitionField) -> pa.Array:
        """The value that each leaf has of a common field."""
        specs = self.manifest.properties.specs
        parts = []
        for spec_id, places in self._places():
            own = next(f for f in specs[spec_id].fields if f.meaning == field.meaning)
            column = self.plan.leaves[spec_id].column(own.field_id).combine_chunks()
            parts.append(column.take(pa.array(places, pa.int64())).cast(field.result_type))
        return pa.concat_arrays(parts) if parts else pa.array([], field.result_type)

    def pruned(self, predicate: Predicate) -> Found:
        """The leaves that may hold a row which satisfies a predicate too."""
        specs = self.manifest.properties.specs
        kept: list[Leaf] = []
        waiting = iter(self.leaves)
        for spec_id, places in self._places():
            spec = specs[spec_id]
            values = self.plan.leaves[spec_id].take(pa.array(places, pa.int64()))
            holds = may_hold(inclusive(predicate, spec, self.schema), spec, values, len(places))
            kept += [leaf for keep, leaf in zip(holds.tolist(), waiting, strict=False) if keep]
        return replace(self, leaves=tuple(kept))

    def identified(self) -> Found:
        """The same leaves, of which rows come with their ids."""
        assert isinstance(self.manifest, Manifest)
        kept: list[Leaf] = []
        waiting = iter(self.leaves)
        for spec_id, places in self._places():
            locations = (
                self.plan.leaves[spec_id].column(LOCATION).take(pa.array(places, pa.int64()))
            )
            numbers = leaf_numbers(self.manifest, spec_id, locations.combine_chunks())
            for number, leaf in zip(numbers.tolist(), waiting, strict=False):
                pieces = tuple(identified(self.manifest, number, each) for each in leaf.pieces)
                kept.append(replace(leaf, pieces=pieces))
        return replace(self, leaves=tuple(kept))

    def _places(self) -> Iterable[tuple[int, list[int]]]:
        found: dict[int, list[int]] = {}
        for leaf in self.leaves:
            found.setdefault(leaf.spec_id, []).append(leaf.place)
        return found.items()


def _leaves(manifest: LeafListing, plan: ScanPlan, narrower: ScanPlan) -> Iterator[Leaf]:
    """The leaves of the narrower plan, filtered by what is left of the other one's predicate."""
    schema, paths = manifest.properties.schema, manifest.path_columns
    scans = Scan(plan, manifest.root, schema, (), path_columns=paths).leaf_scans()
    listed = [
        (spec.spec_id, location)
        for spec in plan.pruning.specs
        for location in plan.leaves[spec.spec_id].column(LOCATION).to_pylist()
    ]
    places = {
        (spec_id, location): place
        for spec_id, leaves in narrower.leaves.items()
        for place, location in enumerate(leaves.column(LOCATION).to_pylist())
    }
    kept = [(key, scan) for key, scan in zip(listed, scans, strict=True) if key in places]
    opened = pieces_of_all([scan for _, scan in kept])
    for (key, scan), found in zip(kept, opened, strict=True):
        yield Leaf(key[0], places[key], scan.predicate, tuple(found))
