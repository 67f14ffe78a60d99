"""An Iceberg table: plans of scans and rewrites, the rewrite, and units for an import."""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

import pyarrow as pa
from pyiceberg.table import Table
from pyiceberg.utils.concurrent import ExecutorFactory

from phalanx.arguments import RewriteArguments
from phalanx.errors import InvalidArgument, format_value
from phalanx.foreign.iceberg.deletes import assign_deletes
from phalanx.foreign.iceberg.manifests import SEQUENCE, ManifestEntries
from phalanx.foreign.iceberg.plan import IcebergPlan
from phalanx.foreign.iceberg.rewrite import IcebergRewritten, rewrite
from phalanx.foreign.iceberg.rows import IcebergUnit, make_units
from phalanx.foreign.iceberg.state import IcebergState, LoadedEntries
from phalanx.model.predicates.predicate import TRUE, Predicate
from phalanx.model.predicates.rendering import summarize
from phalanx.planning.pruning.projection import Reason, SpecProjection, project_on_spec
from phalanx.planning.rewrite import RewriteDataFilesPlanner
from phalanx.planning.rewrites.entries import FILE_BYTES, FILE_PATH, FILE_ROWS, file_entries
from phalanx.planning.rewrites.filter import FilterStats, MultiSpecPartitionFilter
from phalanx.planning.rewrites.options import build_rewrite_options
from phalanx.planning.rewrites.plan import RewritePlan


class IcebergTable(IcebergState):
    """An Iceberg table at one snapshot, with plans of scans and rewrites."""

    def plan(self, where: str | None = None, *, case_sensitive: bool = False) -> IcebergPlan:
        """Plan the files that may hold rows that match `where`; all files without it."""
        filter = self._make_filter(where, case_sensitive)
        projections = self._project_on_specs(filter)
        loaded = self.load_entries({spec_id: each.filter for spec_id, each in projections.items()})
        kept = {
            spec_id: self._filter_files(spec_id, table, filter)
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
            deletes=assign_deletes(ManifestEntries(kept, loaded.entries.deletes), self.specs),
            total_files=_count_files(loaded),
            manifests_read=len(loaded.selection.selected),
            manifests_skipped=loaded.selection.skipped,
            stats=FilterStats() if filter is None else filter.stats,
            diagnostics=() if filter is None else filter.diagnostics,
        )

    def plan_rewrite(
        self, where: str | None = None, **options: Unpack[RewriteArguments]
    ) -> RewritePlan:
        """Plan which files to rewrite together, with Iceberg's options in snake case."""
        chosen = build_rewrite_options(where, options)
        filter = self._make_filter(chosen.partition_filter, chosen.case_sensitive)
        projections = self._project_on_specs(filter)
        loaded = self.load_entries({spec_id: each.filter for spec_id, each in projections.items()})
        deletes = assign_deletes(loaded.entries, self.specs)
        entries = {
            spec_id: file_entries(
                table.select([field.field_id for field in self.specs[spec_id].fields]),
                table.column(FILE_PATH),
                bytes=table.column(FILE_BYTES),
                rows=table.column(FILE_ROWS),
                positions=table.column(SEQUENCE),
                deletes=deletes.to_arrow_lists(spec_id, table.num_rows),
            )
            for spec_id, table in loaded.entries.data.items()
        }
        plan = RewriteDataFilesPlanner(
            self.schema, self.specs, entries, chosen, filter=filter
        ).plan()
        totals = _count_files(loaded)
        return replace(
            plan,
            specs=tuple(replace(each, total_files=totals[each.spec_id]) for each in plan.specs),
        )

    def rewrite(self, plan: RewritePlan) -> IcebergRewritten:
        """Replace the files of each group by larger ones, in one snapshot for each group.

        Raises `PhalanxError`, before anything is written, if pyiceberg cannot do that safely, and
        `CommitConflict` if other writers changed the files of a group; earlier groups stay
        committed.
        """
        return rewrite(self, plan)

    def import_units(self) -> list[IcebergUnit]:
        """Return the data files with their deletes, in order, each readable on any machine.

        Counts their rows, which reads all position deletes, and all data files with equality
        deletes.
        """
        loaded = self.load_entries(dict.fromkeys(self.specs, TRUE))
        deletes = assign_deletes(loaded.entries, self.specs)
        context = self.read_context()
        units: list[IcebergUnit] = []
        for spec_id, table in loaded.entries.data.items():
            units += make_units(
                context, spec_id, table, deletes.list_by_file(spec_id, table.num_rows)
            )
        counts = ExecutorFactory.get_or_create().map(_count_rows, units)
        return [replace(unit, rows=rows) for unit, rows in zip(units, counts, strict=True)]

    def _make_filter(
        self, where: str | None, case_sensitive: bool
    ) -> MultiSpecPartitionFilter | None:
        if where is None:
            return None
        return MultiSpecPartitionFilter(
            where, self.specs, self.schema, case_sensitive=case_sensitive
        )

    def _project_on_specs(
        self, filter: MultiSpecPartitionFilter | None
    ) -> dict[int, SpecProjection]:
        predicate = TRUE if filter is None else filter.predicate
        return {spec_id: self._project_on_spec(predicate, spec_id) for spec_id in self.specs}

    def _project_on_spec(self, predicate: Predicate, spec_id: int) -> SpecProjection:
        """Project the predicate on a spec; if that fails, keep all files and record the reason."""
        try:
            return project_on_spec(predicate, self.specs[spec_id], self.schema)
        except Exception as error:
            text = summarize(predicate)
            reason = Reason(text, None, exact=False, fails_open=True, why=str(error))
            return SpecProjection(spec_id, TRUE, predicate, (reason,))

    def _filter_files(
        self, spec_id: int, table: pa.Table, filter: MultiSpecPartitionFilter | None
    ) -> pa.Table:
        if filter is None:
            return table
        values = table.select([field.field_id for field in self.specs[spec_id].fields])
        return table.filter(pa.array(filter.decide(spec_id, values, table.num_rows).kept))


def _count_rows(unit: IcebergUnit) -> int:
    return unit.count_live_rows() if unit.deletes else unit.written_rows


def _count_files(loaded: LoadedEntries) -> dict[int, int]:
    """Count the data files of each spec, including those of skipped manifests."""
    skipped = loaded.selection.skipped_files
    return {
        spec_id: table.num_rows + skipped.get(spec_id, 0)
        for spec_id, table in loaded.entries.data.items()
    }


def open_iceberg_table(
    table: Table, snapshot: int | str | None = None, *, trust_locations: bool = False
) -> IcebergTable:
    """Open a pyiceberg table at a snapshot; see `phalanx.iceberg.open`."""
    if not isinstance(table, Table):
        raise InvalidArgument(
            f"Cannot open {format_value(table)}: expected a table of pyiceberg, such as "
            "catalog.load_table('sales.orders')."
        )
    return IcebergTable(table, snapshot, trust_locations=trust_locations)
