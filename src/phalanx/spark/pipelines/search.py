"""Search in Spark: many queries at once, spread over leaves and queries."""

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

from phalanx.errors import PhalanxError, SchemaMismatch
from phalanx.model.schema.rows import chosen_schema
from phalanx.model.search.indexes import is_text
from phalanx.model.search.ranking import Hits
from phalanx.model.search.vectors import query_vectors, searched_column
from phalanx.planning.search_options import SearchOptions, checked_count
from phalanx.spark.runtime.failures import in_one_line
from phalanx.spark.runtime.types import arrow_schema, for_spark, spark_schema
from phalanx.storage.search.vectors import Nearest
from phalanx.storage.state.properties import Properties
from phalanx.table.opening import open as open_table
from phalanx.table.read.search import DISTANCE, SCORE, Searcher, nearest_of, searcher_of, words_of
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
    metric: str | None = None,
    use_index: bool = True,
    nprobes: int | None = None,
    refine_factor: int | None = None,
    ef: int | None = None,
    operator: str = "or",
    storage_options: dict[str, str] | None = None,
) -> DataFrame:
    """For each row of `queries` the k best rows of the table, as `Table.search` finds them.

    `query_column` has the vectors or the words to look for; by default it is the column of the
    same name, else one called `query`, else the only column there is. Where it is NULL nothing is
    found. The result has the columns of `queries`, the `rank` from 1 on, those columns of the table
    that are chosen (all but the searched one) or that it is partitioned by, and `_distance` or
    `_score`. Leaves are read by many tasks, each for many queries; a search for words, whose
    scores need the statistics of all leaves, is spread over the queries only.
    """
    checked_count("k", k)
    found = open_table(table, storage_options=storage_options) if isinstance(table, str) else table
    manifest = found._refreshed()
    properties = manifest.properties
    field = searched_column(column, properties.schema)
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
    searcher = searcher_of(manifest, where, columns or properties.schema.names)
    asked = _query_column(queries, field.name, query_column)
    nearest = None
    if not is_text(field.type):
        nearest = nearest_of(field, [], k, properties, options)
    measure = DISTANCE if nearest is not None else SCORE
    _check_names(queries, searcher, measure)
    hits = pa.schema(
        [
            *chosen_schema(properties.schema, searcher.columns),
            pa.field(measure, pa.float32(), nullable=False),
        ]
    )
    result = st.StructType(
        [*queries.schema, st.StructField(RANK, st.IntegerType(), False), *spark_schema(hits)]
    )
    chunks = _chunks(searcher, nearest is not None, _parallelism(spark))
    task = _Task(
        searcher, field, properties, options, nearest, k, asked, tuple(queries.columns), chunks
    )
    crossed, tasks = _crossed(spark, queries, chunks)
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
        # Only a search for vectors is spread over several chunks: the nearest come first.
        window = Window.partitionBy(_QUERY).orderBy(measure, _PLACE, _ROW)
        rows = rows.withColumn(RANK, sf.row_number().over(window)).where(sf.col(RANK) <= k)
    return rows.select(*[_quoted(name) for name in result.names])


@dataclass(frozen=True, slots=True)
class _Task:
    """What a task does with a batch of queries, each with the leaves that it is for."""

    searcher: Searcher
    field: pa.Field
    properties: Properties
    options: SearchOptions
    nearest: Nearest | None
    k: int
    asked: str
    names: tuple[str, ...]
    chunks: tuple[tuple[int, int], ...]
    result: pa.Schema | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        assert self.result is not None
        with in_one_line():
            yield from for_spark(self._found(batches), self.result)

    def _found(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            batch = batch.filter(batch.column(self.asked).is_valid())
            numbers = batch.column(_CHUNK).to_numpy()
            for number in np.unique(numbers):
                mine = batch.filter(pa.array(numbers == number))
                yield from self._of_chunk(mine, *self.chunks[int(number)])

    def _of_chunk(self, queries: pa.RecordBatch, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        searcher = replace(self.searcher, scans=self.searcher.scans[start:stop])
        found = self._hits(searcher, queries.column(self.asked))
        of = np.repeat(np.arange(len(found)), [len(each) for each in found])
        if not len(of):
            return
        measure = next(iter(found[0].measures))
        rows = searcher.rows(
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
        arrays |= {name: _flat(rows.column(name)) for name in rows.column_names}
        arrays |= {_QUERY: asking.column(_QUERY), _PLACE: pa.array(places), _ROW: pa.array(ids)}
        yield pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))

    def _hits(self, searcher: Searcher, queries: pa.Array) -> list[Hits]:
        if self.nearest is not None:
            if not (pt.is_list(queries.type) or pt.is_large_list(queries.type)):
                raise PhalanxError(
                    f"Cannot search column {self.field.name!r} ({self.field.type}) by the column "
                    f"{self.asked!r} ({queries.type}): expected vectors."
                )
            vectors = query_vectors(queries, self.field, self.nearest.metric)
            return searcher.nearest(replace(self.nearest, queries=vectors))
        return [
            searcher.matching(words_of(self.field, text, self.properties, self.options), self.k)
            for text in queries.to_pylist()
        ]


def _flat(column: pa.ChunkedArray) -> pa.Array:
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
        f"Cannot tell which of the columns {', '.join(names)} has the queries: expected one called "
        f"{searched!r} or 'query'. Name it with query_column."
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


def _chunks(searcher: Searcher, may_split: bool, tasks: int) -> tuple[tuple[int, int], ...]:
    """Which leaves are searched together: first and last, one after the other."""
    total = len(searcher.scans)
    count = min(total, tasks) if may_split else 1
    size = math.ceil(total / max(count, 1)) or 1
    return tuple((start, min(start + size, total)) for start in range(0, max(total, 1), size))


def _crossed(
    spark: SparkSession, queries: DataFrame, chunks: Sequence[tuple[int, int]]
) -> tuple[DataFrame, int]:
    """Every query with every chunk of leaves, and among how many tasks they are spread."""
    numbered = queries.withColumn(_QUERY, sf.monotonically_increasing_id())
    numbers = spark.range(len(chunks)).withColumnRenamed("id", _CHUNK)
    tasks = max(len(chunks), _parallelism(spark))
    return numbered.crossJoin(sf.broadcast(numbers)), tasks


def _parallelism(spark: SparkSession) -> int:
    try:
        return int(spark.sparkContext.defaultParallelism)
    except Exception:
        # By Spark Connect nobody knows it.
        return _USUAL_TASKS


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
