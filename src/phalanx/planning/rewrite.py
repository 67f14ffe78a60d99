"""Which data files to rewrite together: a partition filter over several specs, then bin-packing.

Entries of any source, by spec id → partition filter → candidates by size and deletes → groups by
key → bins of a bounded size → groups that are worth it → in order → limited.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import pyarrow as pa

from phalanx.model.schema.schema import Schema
from phalanx.model.specs.partition_key import PartitionKey
from phalanx.model.specs.spec import PartitionSpec
from phalanx.planning.rewrites.entries import checked, file_entries
from phalanx.planning.rewrites.filter import (
    Diagnostic,
    FilterStats,
    MultiSpecPartitionFilter,
    unknown_spec,
)
from phalanx.planning.rewrites.groups import Packed, joined, packed
from phalanx.planning.rewrites.options import JOB_ORDERS, JobOrder, RewriteOptions
from phalanx.planning.rewrites.plan import (
    DeleteFile,
    LeftOut,
    RewriteFile,
    RewriteGroup,
    RewritePlan,
    SpecSummary,
)
from phalanx.planning.rewrites.selection import selected

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
    """A plan, and how far its filter could be evaluated."""

    plan: RewritePlan
    filter_stats: FilterStats


class RewriteDataFilesPlanner:
    """Plans a rewrite of the entries, a table of them for each spec (see `file_entries`).

    `filter` is one that was made of the options' `partition_filter` before, to choose which entries
    to load: what it decided then is not evaluated again.
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
        """The plan; the same entries in any order give the same one."""
        return self.plan_with_stats().plan

    def plan_with_stats(self) -> RewriteDataFilesPlanningResult:
        """The plan, and how far its filter could be evaluated."""
        options, filter = self._options, self._bound()
        found = [self._packed(spec_id, filter) for spec_id in sorted(self._entries)]
        if filter is not None and options.strict:
            filter.check()
        stats = FilterStats() if filter is None else filter.stats
        stats = replace(stats, fail_open_files=sum(each.fail_open for each in found))
        candidates = joined(found)
        selection = selected(candidates, options)
        plan = RewritePlan(
            where=None if filter is None else str(filter),
            options=options,
            specs=tuple(map(self._summary, found)),
            stats=stats,
            diagnostics=() if filter is None else filter.diagnostics,
            untold=0 if filter is None else filter.untold,
            keys={each.spec_id: each.keys for each in found},
            candidates=candidates.files,
            chosen=selection.chosen,
            ids=selection.ids,
            left=selection.left,
            reasons=selection.reasons,
        )
        return RewriteDataFilesPlanningResult(plan, stats)

    def _bound(self) -> MultiSpecPartitionFilter | None:
        """The filter, whose names and types must fit the schema; None if everything is meant."""
        where, case_sensitive = self._options.partition_filter, self._options.case_sensitive
        if self._filter is not None or where is None:
            return self._filter
        return MultiSpecPartitionFilter(
            where, self._specs, self._schema, case_sensitive=case_sensitive
        )

    def _packed(self, spec_id: int, filter: MultiSpecPartitionFilter | None) -> Packed:
        if spec_id not in self._specs:
            raise unknown_spec(spec_id, self._specs)
        entries = checked(self._entries[spec_id], spec_id, self._specs[spec_id])
        return packed(spec_id, entries, self._options, filter)

    def _summary(self, found: Packed) -> SpecSummary:
        label = self._specs[found.spec_id].label(self._schema)
        return SpecSummary(found.spec_id, label, found.total, found.matching)
