"""The planner process: answers the questions that the Java classes of the bridge ask.

`Planner` is the Python side of the protocol, and the Java class `phalanx.bridge.Planner` the other:
docs/BRIDGE.md specifies each question, its fields and its answer. Questions and answers are JSON
texts on standard input and output, each after its length in four bytes.
"""

from __future__ import annotations

import base64
import io
import json
import os
import pickle
import struct
import sys
import traceback
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, BinaryIO, TypeAlias

from pyspark import cloudpickle
from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.types import StructType, _parse_datatype_json_string
from pyspark.sql.worker.plan_data_source_read import write_read_func_and_partitions

from phalanx.errors import PhalanxError
from phalanx.model.predicates.predicate import all_of
from phalanx.model.predicates.rendering import summarize
from phalanx.spark.pushdown.aggregates import answer_aggregates
from phalanx.spark.pushdown.conditions import ExpressionTree
from phalanx.spark.pushdown.partitioning import (
    count_rows_and_bytes,
    fields_by_column,
    identity_fields,
    plan_keyed_tasks,
    spark_keys,
)
from phalanx.spark.pushdown.queries import Query
from phalanx.spark.runtime.options import READ_OPTIONS, ROW_CHANGE_OPTIONS, Options
from phalanx.spark.runtime.read_sets import pack_read_set
from phalanx.spark.source.reading import ScanPartition, TaskReader, check_read_schema
from phalanx.spark.source.row_changes import job_options, resume_job
from phalanx.spark.source.source import PhalanxSource
from phalanx.spark.source.work_source import WorkReader
from phalanx.spark.sql.catalog import Catalog, RowFilter
from phalanx.spark.sql.catalog_ddl import TableDefinition
from phalanx.spark.sql.catalog_tables import list_partition_values
from phalanx.spark.sql.table_cache import TableCache
from phalanx.storage.lance.failures import translate_errors
from phalanx.storage.lance.location import Location
from phalanx.storage.leaf.reading import ROW_ID_FIELDS
from phalanx.table.handle import handle_of
from phalanx.table.jobs.row_job import RowJob
from phalanx.table.opening import open
from phalanx.table.read.scan_tasks import is_one_task, limit_pieces, pack_tasks
from phalanx.table.table import Table
from phalanx.table.write import operations

# Queries that one process plans at a time.
_MAX_QUERIES = 16

Question: TypeAlias = Mapping[str, Any]
Answer: TypeAlias = dict[str, Any]


class Planner:
    """Answers questions, and keeps the state of each query for its next question."""

    def __init__(self) -> None:
        self._queries: OrderedDict[str, Query] = OrderedDict()
        self._tables = TableCache()

    def answer(self, question: Question) -> Answer:
        """Answer one question, as docs/BRIDGE.md specifies it."""
        match question["ask"]:
            case "conditions":
                conditions = self._query(question).translate_conditions(question["conditions"])
                return {"exact": [condition.exact for condition in conditions]}
            case "aggregate":
                query = self._query(question)
                found = query.find_leaves(question["conditions"])
                rows = answer_aggregates(found, question["by"], question["functions"])
                return {"rows": rows, "read_set": pack_read_set(query.state, found.plan.predicate)}
            case "describe":
                query = self._query(question)
                return _describe(query, question["conditions"], question["columns"])
            case "tasks":
                return _plan_tasks(
                    self._query(question),
                    question["conditions"],
                    question["columns"],
                    schema=question["schema"],
                    limit=question["limit"],
                    keyed=question["keyed"],
                    runtime=question["runtime"],
                    batch_rows=question["batch_rows"],
                )
            case "work":
                return _plan_work(question["work"], question["schema"], question["batch_rows"])
        return self._answer_catalog(question)

    def _answer_catalog(self, question: Question) -> Answer:
        """Answer a question about a catalog."""
        catalog = Catalog(Location.of(question["root"], question["storage"] or None))
        with translate_errors(f"{question['ask'].replace('_', ' ')} in {catalog.root}"):
            match question["ask"]:
                case "load":
                    version, time = question.get("version"), question.get("time")
                    return catalog.load(question["name"], version, time)
                case "list":
                    return catalog.list_names(question["name"])
                case "create":
                    return catalog.create(question["name"], _definition(question))
                case "stage":
                    return catalog.stage(
                        question["name"],
                        _definition(question),
                        question["may_create"],
                        question["may_replace"],
                    )
                case "finish":
                    new, staged = question.get("new", {}), question.get("staged")
                    return catalog.finish(question["name"], new, staged, question["may_replace"])
                case "abort":
                    new, staged = question.get("new", {}), question.get("staged")
                    return catalog.abort(question["name"], new, staged)
                case "alter":
                    return catalog.alter(question["name"], question["changes"])
                case "drop":
                    return catalog.drop(question["name"])
                case "create_namespace":
                    return catalog.create_namespace(question["name"])
                case "drop_namespace":
                    return catalog.drop_namespace(question["name"])
                case "where":
                    return {"where": _filter(question).to_predicate(_open(question))}
                case "delete":
                    table = _open(question)
                    where = _filter(question).to_predicate(table)
                    deleted = operations.delete(
                        *handle_of(table).for_statement(), where, serializable=True
                    )
                    return {"deleted": deleted}
                case "can_delete":
                    return {"can_delete": _filter(question).is_exact(_open(question))}
                case "begin_changes":
                    version = question.get("version")
                    job = RowJob.begin(
                        handle_of(_open(question)).for_write("rows"),
                        question["command"],
                        version=None if version is None else int(version),
                    )
                    return {"options": job_options(job)}
                case "partitions":
                    return list_partition_values(_open(question))
        raise AssertionError(question["ask"])

    def _query(self, question: Question) -> Query:
        """Return the query that a question belongs to, opening its table at the first one."""
        name = question["query"]
        if name not in self._queries:
            # Pickled by Spark's own process, from texts only, so it is safe to load.
            source = cloudpickle.loads(base64.b64decode(question["source"]))
            changes_rows = question["changes_rows"]
            known = READ_OPTIONS | ROW_CHANGE_OPTIONS if changes_rows else READ_OPTIONS
            options = Options.of(source.options, known, "read")
            _check_rows(options)
            # A change of rows reads the version that it began with.
            state = (
                resume_job(options).manifest
                if changes_rows
                else self._tables.get_state(options, source._snapshot)
            )
            self._queries[name] = Query(state, options, question["zone"], changes_rows)
            while len(self._queries) > _MAX_QUERIES:
                self._queries.popitem(last=False)
        self._queries.move_to_end(name)
        return self._queries[name]


def _definition(question: Question) -> TableDefinition:
    return TableDefinition(question["schema"], question["partitioning"], question["properties"])


def _filter(question: Question) -> RowFilter:
    return RowFilter(question["conditions"], question["texts"], question["zone"])


def _open(question: Question) -> Table:
    return open(question["path"], storage_options=question["storage"] or None)


def _check_rows(options: Options) -> None:
    """Refuse options that read other columns than those of the table that the query names."""
    for name in ("changes", "metadata_table"):
        if (value := options.text(name)) is not None and value.lower() != "false":
            table = "changes" if name == "changes" else value
            raise PhalanxError(
                f"Cannot read a table by its name with {name}={value!r}: it has other columns. "
                f"Read <table>.{table} instead, without the option."
            )


def _describe(query: Query, conditions: Sequence[ExpressionTree], columns: Sequence[str]) -> Answer:
    """Describe what a scan reads: its size, its partitioning, and its runtime filters."""
    found = query.find_leaves(conditions)
    filled = found.non_empty
    keys = spark_keys(filled, columns)
    rows, size = count_rows_and_bytes(found)
    # For a change of rows any partition source column is worth a runtime filter.
    pruning = fields_by_column(query.state) if query.changes_rows else identity_fields(filled)
    return {
        "partitions": len(found.leaves),
        "total": found.plan.total_partitions,
        "where": summarize(found.plan.predicate),
        "rows": rows,
        "bytes": size,
        "keys": [key.to_json() for key in keys],
        "groups": len(filled.leaves),
        "in_one_task": is_one_task(found.pieces, query.split_size),
        "filters": [name for name in pruning if name in columns],
    }


def _plan_tasks(
    query: Query,
    conditions: Sequence[ExpressionTree],
    columns: Sequence[str],
    *,
    schema: str,
    limit: int | None,
    keyed: bool,
    runtime: Sequence[ExpressionTree],
    batch_rows: int,
) -> Answer:
    """Plan the tasks of a scan, once Spark knows its runtime filters."""
    wanted = _parse_datatype_json_string(schema)
    assert isinstance(wanted, StructType)
    stored = StructType([field for field in wanted if field.name not in ROW_ID_FIELDS.names])
    check_read_schema(stored, query.schema.arrow, query.state.root.uri)
    found = query.find_leaves(conditions)
    keys = spark_keys(found.non_empty, columns) if keyed else []
    predicates = [found.plan.predicate]
    for condition in query.translate_conditions(runtime):
        predicates.append(condition.predicate)
        found = found.prune(condition.predicate)
    if len(stored) < len(wanted):
        found = found.with_row_ids()
    read = len(found.leaves)
    if keys:
        tasks, values = plan_keyed_tasks(found.non_empty, keys, query.split_size)
    else:
        pieces = found.pieces
        if limit is not None:
            pieces = limit_pieces(pieces, limit)
            read = len({piece.scan.location.uri for piece in pieces})
        tasks = pack_tasks(pieces, query.split_size)
        values = [[] for _ in tasks]
    names = tuple(stored.names)
    return {
        "function": _pickle_scan_function(schema, batch_rows),
        "tasks": [_pickle(ScanPartition(task.select_columns(names))) for task in tasks],
        "keys": values,
        "partitions": read,
        "read_set": pack_read_set(query.state, all_of(predicates)),
    }


def _plan_work(work: str, schema: str, batch_rows: int) -> Answer:
    """Plan the tasks of work that the session's own process handed to the Java classes."""
    columns = _parse_datatype_json_string(schema)
    assert isinstance(columns, StructType)
    reader = WorkReader(pickle.loads(base64.b64decode(work)), columns)
    return {
        "function": _pickle_function(reader, columns, batch_rows),
        "tasks": [_pickle(task) for task in reader.partitions()],
    }


@lru_cache(maxsize=64)
def _pickle_scan_function(schema: str, batch_rows: int) -> str:
    """Pickle the function that reads a task of a scan."""
    columns = _parse_datatype_json_string(schema)
    assert isinstance(columns, StructType)
    return _pickle_function(TaskReader(columns), columns, batch_rows)


def _pickle_function(reader: DataSourceReader, columns: StructType, batch_rows: int) -> str:
    """Pickle the function that reads a task, as Spark does for a Python data source."""
    out = io.BytesIO()
    write_read_func_and_partitions(
        out,
        reader=reader,
        data_source=PhalanxSource({}),
        schema=columns,
        max_arrow_batch_size=batch_rows,
        binary_as_bytes=True,
    )
    out.seek(0)
    function = _read_message(out)
    assert function is not None
    return base64.b64encode(function).decode()


def _pickle(value: object) -> str:
    return base64.b64encode(pickle.dumps(value)).decode()


def _read_message(stream: BinaryIO) -> bytes | None:
    """Read a length in four bytes and as many bytes; None at the end of the stream."""
    head = stream.read(4)
    return stream.read(struct.unpack("!i", head)[0]) if len(head) == 4 else None


def _format_error(error: BaseException) -> str:
    """Format an error of Phalanx in one line, and others with their stack."""
    if isinstance(error, PhalanxError):
        return f"{type(error).__module__}.{type(error).__qualname__}: {error}"
    return "".join(traceback.format_exception(error))


def answer_questions() -> None:
    """Answer questions until standard input is closed."""
    questions, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    # Whatever else prints to standard output must not reach the answers.
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    planner = Planner()
    while (question := _read_message(questions)) is not None:
        try:
            found = planner.answer(json.loads(question))
        except Exception as error:
            found = {"error": _format_error(error)}
        text = json.dumps(found).encode()
        answers.write(struct.pack("!i", len(text)) + text)
        answers.flush()


if __name__ == "__main__":
    answer_questions()
