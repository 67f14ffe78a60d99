"""An opened Iceberg table: what it holds, plans on it, and rewrites of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyiceberg.utils.concurrent import ExecutorFactory

from phalanx.foreign.iceberg.deletes import assigned
from phalanx.foreign.iceberg.manifests import SEQUENCE, Entries
from phalanx.foreign.iceberg.plan import IcebergPlan
from phalanx.foreign.iceberg.rewrite import IcebergRewritten, rewrite
from phalanx.foreign.iceberg.rows import IcebergUnit, units_of
from phalanx.foreign.iceberg.state import IcebergState, Loaded
from phalanx.model.predicates.predicate import TRUE, Predicate
from phalanx.model.predicates.rendering import summary
from phalanx.planning.pruning.projection import Reason, SpecProjection, project_on_spec
from phalanx.planning.rewrite import RewriteDataFilesPlanner
from phalanx.planning.rewrites.entries import BYTES, PATH, ROWS, file_entries
from phalanx.planning.rewrites.filter import FilterStats, MultiSpecPartitionFilter
from phalanx.planning.rewrites.options import rewrite_options
from phalanx.planning.rewrites.plan import RewritePlan


class IcebergTable(IcebergState):
    """An Iceberg table at one snapshot: its schema and specs, and what can be planned on them."""

    def plan(self, where: str | None = None, *, case_sensitive: bool = False) -> IcebergPlan:
        """The files that may hold a row for which `where`, in SQL, is true; all without it."""
        filter = self._filter(where, case_sensitive)
        projections = self._projections(filter)
        loaded = self.load({spec_id: each.filter for spec_id, each in projections.items()})
        kept = {
            spec_id: self._kept(spec_id, table, filter)
            for spec_id, table in loaded.entries.data.items()
        }
        return IcebergPlan(
            table=self.name,
            snapshot_id=self.snapshot_id,
            where=None if filter is None else str(filter),
            specs=self.specs,
            labels={spec_id: spec.label(self.schema) for spec_id, spec in self.specs.items()},
            projections={} if filter is None else projections,
            kept=kept,
            deletes=assigned(Entries(kept, loaded.entries.deletes), self.specs),
            total_files=_totals(loaded),
            manifests_read=len(loaded.choice.read),
            manifests_skipped=loaded.choice.skipped,
            stats=FilterStats() if filter is None else filter.stats,
            diagnostics=() if filter is None else filter.diagnostics,
        )

    def plan_rewrite(self, where: str | None = None, **options: Any) -> RewritePlan:
        """Which files to rewrite together: Iceberg's options in snake case (`RewriteOptions`)."""
        chosen = rewrite_options(where, options)
        filter = self._filter(chosen.partition_filter, chosen.case_sensitive)
        projections = self._projections(filter)
        loaded = self.load({spec_id: each.filter for spec_id, each in projections.items()})
        deletes = assigned(loaded.entries, self.specs)
        entries = {
            spec_id: file_entries(
                table.select([field.field_id for field in self.specs[spec_id].fields]),
                table.column(PATH),
                bytes=table.column(BYTES),
                rows=table.column(ROWS),
                positions=table.column(SEQUENCE),
                deletes=deletes.lists(spec_id, table.num_rows),
            )
            for spec_id, table in loaded.entries.data.items()
        }
        plan = RewriteDataFilesPlanner(
            self.schema, self.specs, entries, chosen, filter=filter
        ).plan()
        totals = _totals(loaded)
        return replace(
            plan,
            specs=tuple(replace(each, total_files=totals[each.spec_id]) for each in plan.specs),
        )

    def rewrite(self, plan: RewritePlan) -> IcebergRewritten:
        """Replace the files of each group by larger ones, one snapshot for each group.

        Nothing is written if pyiceberg cannot do that safely; the error says why. A group whose
        files others changed meanwhile raises `CommitConflict`, and groups before it stand.
        """
        return rewrite(self, plan)

    def import_units(self) -> list[IcebergUnit]:
        """The data files with their deletes, each to be read anywhere, in order.

        Their rows are counted: that reads the files of position deletes, and reads as a whole the
        data files that have deletes by equality.
        """
        loaded = self.load(dict.fromkeys(self.specs, TRUE))
        deletes = assigned(loaded.entries, self.specs)
        context = self.read_context()
        units: list[IcebergUnit] = []
        for spec_id, table in loaded.entries.data.items():
            units += units_of(context, spec_id, table, deletes.of(spec_id, table.num_rows))
        counts = ExecutorFactory.get_or_create().map(_live_rows, units)
        return [replace(unit, rows=rows) for unit, rows in zip(units, counts, strict=True)]

    def _filter(self, where: str | None, case_sensitive: bool) -> MultiSpecPartitionFilter | None:
        if where is None:
            return None
        return MultiSpecPartitionFilter(
            where, self.specs, self.schema, case_sensitive=case_sensitive
        )

    def _projections(self, filter: MultiSpecPartitionFilter | None) -> dict[int, SpecProjection]:
        predicate = TRUE if filter is None else filter.predicate
        return {spec_id: self._projection(predicate, spec_id) for spec_id in self.specs}

    def _projection(self, predicate: Predicate, spec_id: int) -> SpecProjection:
        """What the predicate says about a spec; nothing, with the reason, where that fails."""
        try:
            return project_on_spec(predicate, self.specs[spec_id], self.schema)
        except Exception as error:
            text = summary(predicate)
            reason = Reason(text, None, exact=False, fails_open=True, why=str(error))
            return SpecProjection(spec_id, TRUE, predicate, (reason,))

    def _kept(
        self, spec_id: int, table: pa.Table, filter: MultiSpecPartitionFilter | None
    ) -> pa.Table:
        if filter is None:
            return table
        values = table.select([field.field_id for field in self.specs[spec_id].fields])
        return table.filter(pa.array(filter.decide(spec_id, values, table.num_rows).kept))


def _live_rows(unit: IcebergUnit) -> int:
    return unit.live_rows() if unit.deletes else unit.written_rows


def _totals(loaded: Loaded) -> dict[int, int]:
    """How many data files there are under each spec, those of skipped manifests included."""
    skipped = loaded.choice.skipped_files
    return {
        spec_id: table.num_rows + skipped.get(spec_id, 0)
        for spec_id, table in loaded.entries.data.items()
    }
