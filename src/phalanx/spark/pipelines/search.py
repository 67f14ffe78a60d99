"""Search in Spark: many queries at once, distributed over leaves and queries."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from phalanx.arguments import Metric, WordOperator
from phalanx.errors import PhalanxError, SchemaMismatch
from phalanx.model.schema.rows import select_schema
from phalanx.model.search.indexes import is_searchable_text
from phalanx.model.search.ranking import Hits
from phalanx.model.search.vectors import resolve_search_column, to_query_vectors
from phalanx.planning.search_options import SearchOptions, check_count
from phalanx.spark.runtime.failures import hide_traceback
from phalanx.spark.runtime.types import arrow_schema, spark_schema, to_spark_batches
from phalanx.storage.search.vectors import VectorQuery
from phalanx.storage.state.properties import Properties
from phalanx.table.handle import handle_of
from phalanx.table.opening import open as open_table
from phalanx.table.read.search import (
    DISTANCE,
    SCORE,
    Searcher,
    make_searcher,
    make_text_query,
    make_vector_query,
)
from phalanx.table.table import Table

RANK = "rank"
_QUERY, _CHUNK = "__phalanx_query", "__phalanx_chunk"
_PLACE, _ROW = "__phalanx_place", "__phalanx_row"
_USUAL_TASKS = 8


def search(
    spark: SparkSession,
    table: str | Table,
    queries: DataFrame,
    column: str,
    k: int = 10,
    *,
    query_column: str | None = None,
    where: str | None = None,
    columns: Sequence[str] | None = None,
    metric: Metric | None = None,
    use_index: bool = True,
    nprobes: int | None = None,
    refine_factor: int | None = None,
    ef: int | None = None,
    operator: WordOperator = "or",
    storage_options: dict[str, str] | None = None,
) -> DataFrame:
    """Return for each row of `queries` the k best rows of the table, as `Table.search` does.

    `query_column` has the vectors or texts to search for; by default it is the column of the same
    name, else one called `query`, else the only column. NULL finds nothing. The result has the
    columns of `queries`, the `rank` from 1, the chosen columns of the table (all but the searched
    one by default) and its partition columns, and `_distance` or `_score`. Many tasks read leaves,
    each for many queries; a text search, whose scores need the statistics of all leaves, is
    distributed over queries only.
    """
    check_count("k", k)
    found = open_table(table, storage_options=storage_options) if isinstance(table, str) else table
    manifest = handle_of(found).refresh()
    properties = manifest.properties
    field = resolve_search_column(column, properties.schema)
    options = SearchOptions(
        metric=metric,
        use_index=use_index,
        nprobes=nprobes,
        refine_factor=refine_factor,
        ef=ef,
        operator=operator,
    )
    if columns is None:
        columns = [name for name in properties.schema.names if name != field.name]
    searcher = make_searcher(manifest, where, columns or properties.schema.names)
    asked = _query_column(queries, field.name, query_column)
    nearest = None
    if not is_searchable_text(field.type):
        nearest = make_vector_query(field, [], k, properties, options)
    measure = DISTANCE if nearest is not None else SCORE
    _check_names(queries, searcher, measure)
    hits = pa.schema(
        [
            *select_schema(properties.schema, searcher.columns),
            pa.field(measure, pa.float32(), nullable=False),
        ]
    )
    result = st.StructType(
        [*queries.schema, st.StructField(RANK, st.IntegerType(), False), *spark_schema(hits)]
    )
    chunks = _plan_chunks(searcher, nearest is not None, _parallelism(spark))
    task = _Task(
        searcher, field, properties, options, nearest, k, asked, tuple(queries.columns), chunks
    )
    crossed, tasks = _cross_join(spark, queries, chunks)
    helpers = [
        st.StructField(_QUERY, st.LongType(), False),
        st.StructField(_PLACE, st.LongType(), False),
        st.StructField(_ROW, st.LongType(), False),
    ]
    task = replace(task, result=arrow_schema(st.StructType([*result, *helpers])))
    rows = crossed.repartition(tasks, _CHUNK, sf.col(_QUERY) % tasks).mapInArrow(
        task, st.StructType([*result, *helpers])
    )
    if len(chunks) > 1:
        # Only a vector search has several chunks: the smallest distances come first.
        window = Window.partitionBy(_QUERY).orderBy(measure, _PLACE, _ROW)
        rows = rows.withColumn(RANK, sf.row_number().over(window)).where(sf.col(RANK) <= k)
    return rows.select(*[_quote(name) for name in result.names])


@dataclass(frozen=True, slots=True)
class _Task:
    """Searches a batch of queries, each in one chunk of leaves."""

    searcher: Searcher
    field: pa.Field
    properties: Properties
    options: SearchOptions
    nearest: VectorQuery | None
    k: int
    asked: str
    names: tuple[str, ...]
    chunks: tuple[tuple[int, int], ...]
    result: pa.Schema | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        assert self.result is not None
        with hide_traceback():
            yield from to_spark_batches(self._search(batches), self.result)

    def _search(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            batch = batch.filter(batch.column(self.asked).is_valid())
            numbers = batch.column(_CHUNK).to_numpy()
            for number in np.unique(numbers):
                queries = batch.filter(pa.array(numbers == number))
                yield from self._search_chunk(queries, *self.chunks[int(number)])

    def _search_chunk(
        self, queries: pa.RecordBatch, start: int, stop: int
    ) -> Iterator[pa.RecordBatch]:
        searcher = replace(self.searcher, scans=self.searcher.scans[start:stop])
        found = self._find_hits(searcher, queries.column(self.asked))
        of = np.repeat(np.arange(len(found)), [len(each) for each in found])
        if not len(of):
            return
        measure = next(iter(found[0].measures))
        rows = searcher.fetch_rows(
            Hits(
                np.concatenate([each.leaves for each in found]),
                np.concatenate([each.rows for each in found]),
                {measure: np.concatenate([each.measures[measure] for each in found])},
            )
        ).combine_chunks()
        ranks = np.concatenate([np.arange(1, len(each) + 1) for each in found])
        places = np.concatenate([each.leaves for each in found]) + start
        ids = np.concatenate([each.rows for each in found]).astype(np.int64)
        asking = queries.take(pa.array(of))
        arrays = {name: asking.column(name) for name in self.names}
        arrays[RANK] = pa.array(ranks, pa.int32())
        arrays |= {name: _flatten(rows.column(name)) for name in rows.column_names}
        arrays |= {_QUERY: asking.column(_QUERY), _PLACE: pa.array(places), _ROW: pa.array(ids)}
        yield pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))

    def _find_hits(self, searcher: Searcher, queries: pa.Array) -> list[Hits]:
        if self.nearest is not None:
            if not (pt.is_list(queries.type) or pt.is_large_list(queries.type)):
                raise PhalanxError(
                    f"Cannot search column {self.field.name!r} ({self.field.type}) by the column "
                    f"{self.asked!r} ({queries.type}): expected vectors."
                )
            vectors = to_query_vectors(queries, self.field, self.nearest.metric)
            return searcher.find_nearest(replace(self.nearest, queries=vectors))
        return [
            searcher.find_matching(
                make_text_query(self.field, text, self.properties, self.options), self.k
            )
            for text in queries.to_pylist()
        ]


def _flatten(column: pa.ChunkedArray) -> pa.Array:
    found: pa.Array = column.combine_chunks()
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def _query_column(queries: DataFrame, searched: str, chosen: str | None) -> str:
    names = queries.columns
    if chosen is not None:
        if chosen not in names:
            raise SchemaMismatch(
                f"Cannot take the queries from column {chosen!r}: expected one of "
                f"{', '.join(names)}."
            )
        return chosen
    usual = [name for name in (searched, "query") if name in names] or names
    if usual != names or len(names) == 1:
        return str(usual[0])
    raise SchemaMismatch(
        f"Cannot choose the query column among {', '.join(names)}: expected one called "
        f"{searched!r} or 'query'. Set query_column."
    )


def _check_names(queries: DataFrame, searcher: Searcher, measure: str) -> None:
    taken = {RANK, measure, *searcher.columns}
    if both := [name for name in queries.columns if name in taken]:
        raise SchemaMismatch(
            f"Cannot search: both the queries and the result have a column {both[0]!r}. Rename it "
            "in the queries, or choose other columns of the table."
        )
    if RANK in searcher.columns:
        raise SchemaMismatch(
            f"Cannot search: the table has a column {RANK!r}, as the result has. Choose other "
            "columns, or rename it."
        )


def _plan_chunks(searcher: Searcher, may_split: bool, tasks: int) -> tuple[tuple[int, int], ...]:
    """Return the ranges of leaves that are searched together."""
    total = len(searcher.scans)
    count = min(total, tasks) if may_split else 1
    size = math.ceil(total / max(count, 1)) or 1
    return tuple((start, min(start + size, total)) for start in range(0, max(total, 1), size))


def _cross_join(
    spark: SparkSession, queries: DataFrame, chunks: Sequence[tuple[int, int]]
) -> tuple[DataFrame, int]:
    """Pair every query with every chunk of leaves; return the number of tasks too."""
    numbered = queries.withColumn(_QUERY, sf.monotonically_increasing_id())
    numbers = spark.range(len(chunks)).withColumnRenamed("id", _CHUNK)
    tasks = max(len(chunks), _parallelism(spark))
    return numbered.crossJoin(sf.broadcast(numbers)), tasks


def _parallelism(spark: SparkSession) -> int:
    try:
        return int(spark.sparkContext.defaultParallelism)
    except Exception:
        # Spark Connect does not expose it.
        return _USUAL_TASKS


def _quote(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
