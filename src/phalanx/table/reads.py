"""Reading from a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import lance
import pyarrow as pa

from phalanx.planning.pruning.scan_plan import ScanPlan
from phalanx.planning.search_options import RRF, SearchOptions
from phalanx.storage.lance.failures import tells
from phalanx.table.handle import HeldTable
from phalanx.table.read import inspection
from phalanx.table.read.keys import leaf_with
from phalanx.table.read.scan import Scan, bound, plan_of, scan_of
from phalanx.table.read.search import search


class Reads(HeldTable):
    """What is there: rows, partitions and files."""

    @tells("plan a scan of")
    def plan(self, where: str | None = None) -> ScanPlan:
        """Which partitions a predicate needs, and why."""
        manifest = self._refreshed()
        return plan_of(manifest, bound(where, manifest.properties.schema))

    @tells("scan")
    def scan(
        self,
        where: str | None = None,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
    ) -> Scan:
        """The rows that match, in the order of spec, partition values (NULL last) and leaf."""
        return scan_of(self._refreshed(), where, columns, limit)

    @tells("search")
    def search(
        self,
        column: str,
        query: Any,
        k: int = 10,
        where: str | None = None,
        columns: Sequence[str] | None = None,
        *,
        metric: str | None = None,
        use_index: bool = True,
        nprobes: int | None = None,
        refine_factor: int | None = None,
        ef: int | None = None,
        operator: str = "or",
        hybrid: tuple[str, str] | None = None,
        rrf: int = RRF,
    ) -> pa.Table:
        """The k best rows of all partitions that `where` plans: by a vector, or by words.

        Of a column of vectors these are the nearest, with their `_distance`; of a column of text
        those that match words best, with their `_score` (BM25 by the statistics of all these
        partitions). With `hybrid=(text column, words)` both rankings become one, by reciprocal
        rank fusion, with a `_relevance_score`. Only rows that match `where` count. The columns are
        those chosen and those that the table is partitioned by. Equal rows come in the order of a
        scan. Partitions without an index are searched exactly; for the other options see
        `phalanx.planning.search_options.SearchOptions`.
        """
        options = SearchOptions(
            metric=metric,
            use_index=use_index,
            nprobes=nprobes,
            refine_factor=refine_factor,
            ef=ef,
            operator=operator,
            hybrid=hybrid,
            rrf=rrf,
        )
        return search(self._refreshed(), column, query, k, where, columns, options)

    @tells("open a partition of")
    def partition(self, **values: Any) -> lance.LanceDataset:
        """One leaf as an ordinary Lance table, by the values of all its partition fields."""
        manifest = self._refreshed()
        location, version = leaf_with(manifest, values)
        return location.open_leaf(version)

    @tells("list the partitions of")
    def partitions(self) -> pa.Table:
        """Every partition with its values, its location, rows and bytes."""
        return inspection.partitions(self._refreshed())

    @tells("list the files of")
    def files(self) -> pa.Table:
        """Every fragment of every partition with its files, rows, deleted rows and bytes."""
        return inspection.files(self._refreshed())
