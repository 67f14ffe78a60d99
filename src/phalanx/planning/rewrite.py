"""Plan which data files to rewrite together: a partition filter over all specs, then bin-packing.

Entries by spec id → partition filter → candidates by size and deletes → groups by partition key →
bins of a bounded size → groups worth rewriting → order → limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import pyarrow as pa

from phalanx.arguments import JobOrder
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.partition_key import PartitionKey
from phalanx.model.specs.spec import PartitionSpec
from phalanx.planning.rewrites.entries import file_entries, normalize_entries
from phalanx.planning.rewrites.filter import (
    Diagnostic,
    FilterStats,
    MultiSpecPartitionFilter,
    unknown_spec_error,
)
from phalanx.planning.rewrites.groups import PackedSpec, combine_specs, pack_files
from phalanx.planning.rewrites.options import JOB_ORDERS, RewriteOptions
from phalanx.planning.rewrites.plan import (
    DeleteFile,
    LeftOut,
    RewriteFile,
    RewriteGroup,
    RewritePlan,
    SpecSummary,
)
from phalanx.planning.rewrites.selection import select_groups

__all__ = [
    "JOB_ORDERS",
    "DeleteFile",
    "Diagnostic",
    "FilterStats",
    "JobOrder",
    "LeftOut",
    "MultiSpecPartitionFilter",
    "PartitionKey",
    "RewriteDataFilesPlanner",
    "RewriteDataFilesPlanningResult",
    "RewriteFile",
    "RewriteGroup",
    "RewriteOptions",
    "RewritePlan",
    "file_entries",
]


class RewriteDataFilesPlanningResult(NamedTuple):
    """A plan with the statistics of its filter."""

    plan: RewritePlan
    filter_stats: FilterStats


class RewriteDataFilesPlanner:
    """Plans a rewrite of the entries, given as one table for each spec (see `file_entries`).

    `filter` is an existing filter for the options' `partition_filter`, for example one that chose
    which entries to load. Its earlier decisions are not evaluated again.
    """

    def __init__(
        self,
        schema: Schema,
        specs: Mapping[int, PartitionSpec],
        entries: Mapping[int, pa.Table],
        options: RewriteOptions | None = None,
        *,
        filter: MultiSpecPartitionFilter | None = None,
    ) -> None:
        self._schema = schema
        self._specs = specs
        self._entries = entries
        self._options = options or RewriteOptions()
        self._filter = filter

    def plan(self) -> RewritePlan:
        """Return the plan. It does not depend on the order of the entries."""
        return self.plan_with_stats().plan

    def plan_with_stats(self) -> RewriteDataFilesPlanningResult:
        """Return the plan and the statistics of its filter."""
        options, filter = self._options, self._bind_filter()
        packed = [self._pack_spec(spec_id, filter) for spec_id in sorted(self._entries)]
        if filter is not None and options.strict:
            filter.check()
        stats = FilterStats() if filter is None else filter.stats
        stats = replace(stats, fail_open_files=sum(each.fail_open for each in packed))
        candidates = combine_specs(packed)
        selection = select_groups(candidates, options)
        plan = RewritePlan(
            where=None if filter is None else str(filter),
            options=options,
            specs=tuple(map(self._summarize, packed)),
            stats=stats,
            diagnostics=() if filter is None else filter.diagnostics,
            more_diagnostics=0 if filter is None else filter.more_diagnostics,
            keys={each.spec_id: each.keys for each in packed},
            candidates=candidates.files,
            chosen=selection.chosen,
            ids=selection.ids,
            left=selection.left,
            reasons=selection.reasons,
        )
        return RewriteDataFilesPlanningResult(plan, stats)

    def _bind_filter(self) -> MultiSpecPartitionFilter | None:
        """Return the filter, bound to the schema; None if there is none."""
        where, case_sensitive = self._options.partition_filter, self._options.case_sensitive
        if self._filter is not None or where is None:
            return self._filter
        return MultiSpecPartitionFilter(
            where, self._specs, self._schema, case_sensitive=case_sensitive
        )

    def _pack_spec(self, spec_id: int, filter: MultiSpecPartitionFilter | None) -> PackedSpec:
        if spec_id not in self._specs:
            raise unknown_spec_error(spec_id, self._specs)
        entries = normalize_entries(self._entries[spec_id], spec_id, self._specs[spec_id])
        return pack_files(spec_id, entries, self._options, filter)

    def _summarize(self, found: PackedSpec) -> SpecSummary:
        label = self._specs[found.spec_id].label(self._schema)
        return SpecSummary(found.spec_id, label, found.total, found.matching)
