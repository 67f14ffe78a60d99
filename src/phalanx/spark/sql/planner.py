"""A process that answers the classes in Java: they ask on its standard input, in JSON.

A question and its answer are each a length in four bytes, then the text. The process ends with
the one that asks.
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
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, BinaryIO

from pyspark import cloudpickle
from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.types import StructType, _parse_datatype_json_string
from pyspark.sql.worker.plan_data_source_read import write_read_func_and_partitions

from phalanx.errors import PhalanxError
from phalanx.model.predicates.predicate import all_of
from phalanx.model.predicates.rendering import summary
from phalanx.spark.pushdown.aggregates import answer
from phalanx.spark.pushdown.partitioning import (
    counted,
    identity_columns,
    keyed_tasks,
    keys_of,
    source_columns,
)
from phalanx.spark.pushdown.queries import Query
from phalanx.spark.runtime.options import READ, ROW_CHANGES, Options
from phalanx.spark.runtime.read_sets import looked
from phalanx.spark.source.reading import ScanPartition, TaskReader, check_schema
from phalanx.spark.source.row_changes import job_of
from phalanx.spark.source.source import PhalanxSource
from phalanx.spark.source.work_source import WorkReader
from phalanx.spark.sql import catalog
from phalanx.spark.sql.table_cache import KnownTables
from phalanx.storage.leaf.reading import ROW_ID
from phalanx.table.read.scan_tasks import first_rows, is_one_task, packed_tasks

# Queries that are being planned at one time, in one process.
_MOST_QUERIES = 16


class Planner:
    """Answers questions about queries, and remembers each query for its next question."""

    def __init__(self) -> None:
        self._queries: OrderedDict[str, Query] = OrderedDict()
        self._tables = KnownTables()

    def answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to one question of the classes in Java."""
        if "catalog" in question:
            return catalog.answer(question)
        if "work" in question:
            return _work(question)
        query = self._query(question)
        match question["ask"]:
            case "conditions":
                conditions = query.conditions(question["conditions"])
                return {"exact": [condition.exact for condition in conditions]}
            case "aggregate":
                found = query.found(question["conditions"])
                rows = answer(found, question["by"], question["functions"])
                return {"rows": rows, "looked": looked(query.manifest, found.plan.predicate)}
            case "describe":
                return _described(query, question)
            case "tasks":
                return _tasks(query, question)
        raise AssertionError(question["ask"])

    def _query(self, question: Mapping[str, Any]) -> Query:
        name = question["query"]
        if name not in self._queries:
            # A process of Spark's has made it, of nothing but texts.
            source = cloudpickle.loads(base64.b64decode(question["source"]))
            changes_rows = question["changes_rows"]
            known = READ | ROW_CHANGES if changes_rows else READ
            options = Options.of(source.options, known, "read")
            _check_rows(options)
            # Rows that are to be changed are read as the change has found them.
            manifest = (
                job_of(options).manifest
                if changes_rows
                else self._tables.listing(options, source._snapshot)
            )
            self._queries[name] = Query(manifest, options, question["zone"], changes_rows)
            while len(self._queries) > _MOST_QUERIES:
                self._queries.popitem(last=False)
        self._queries.move_to_end(name)
        return self._queries[name]


def _check_rows(options: Options) -> None:
    """Refuse what has other columns than the table, by whose name it was asked for."""
    for name in ("changes", "metadata_table"):
        if (value := options.text(name)) is not None and value.lower() != "false":
            table = "changes" if name == "changes" else value
            raise PhalanxError(
                f"Cannot read a table by its name with {name}={value!r}: its columns are others. "
                f"Read <table>.{table} instead, without the option."
            )


def _described(query: Query, question: Mapping[str, Any]) -> dict[str, Any]:
    found = query.found(question["conditions"])
    filled = found.filled
    keys = keys_of(filled, question["columns"])
    rows, size = counted(found)
    # A change of rows is worth looking at the keys that it is by, whatever partitions are by.
    pruning = source_columns(query.manifest) if query.changes_rows else identity_columns(filled)
    return {
        "partitions": len(found.leaves),
        "total": found.plan.total_partitions,
        "where": summary(found.plan.predicate),
        "rows": rows,
        "bytes": size,
        "keys": [key.to_json() for key in keys],
        "groups": len(filled.leaves),
        "in_one_task": is_one_task(found.pieces, query.split_size),
        "filters": [name for name in pruning if name in question["columns"]],
    }


def _tasks(query: Query, question: Mapping[str, Any]) -> dict[str, Any]:
    schema = _parse_datatype_json_string(question["schema"])
    assert isinstance(schema, StructType)
    stored = StructType([field for field in schema if field.name not in ROW_ID.names])
    check_schema(stored, query.schema.arrow, query.manifest.root.uri)
    found = query.found(question["conditions"])
    keys = keys_of(found.filled, question["columns"]) if question["keyed"] else []
    conditions = [found.plan.predicate]
    for condition in query.conditions(question["runtime"]):
        conditions.append(condition.predicate)
        found = found.pruned(condition.predicate)
    if len(stored) < len(schema):
        found = found.identified()
    read = len(found.leaves)
    if keys:
        tasks, values = keyed_tasks(found.filled, keys, query.split_size)
    else:
        pieces = found.pieces
        if question["limit"] is not None:
            pieces = first_rows(pieces, question["limit"])
            read = len({piece.scan.location.uri for piece in pieces})
        tasks = packed_tasks(pieces, query.split_size)
        values = [[] for _ in tasks]
    columns = tuple(stored.names)
    return {
        "function": _function(question["schema"], question["batch_rows"]),
        "tasks": [_pickled(ScanPartition(task.reading(columns))) for task in tasks],
        "keys": values,
        "partitions": read,
        "looked": looked(query.manifest, all_of(conditions)),
    }


def _work(question: Mapping[str, Any]) -> dict[str, Any]:
    """The tasks of work, which the session's own process has handed to the classes in Java."""
    columns = _parse_datatype_json_string(question["schema"])
    assert isinstance(columns, StructType)
    reader = WorkReader(pickle.loads(base64.b64decode(question["work"])), columns)
    return {
        "function": _reading(reader, columns, question["batch_rows"]),
        "tasks": [_pickled(task) for task in reader.partitions()],
    }


@lru_cache(maxsize=64)
def _function(schema: str, batch_rows: int) -> str:
    """The function that reads a task of a scan."""
    columns = _parse_datatype_json_string(schema)
    assert isinstance(columns, StructType)
    return _reading(TaskReader(columns), columns, batch_rows)


def _reading(reader: DataSourceReader, columns: StructType, batch_rows: int) -> str:
    """The function that reads a task, as Spark makes it of a source in Python."""
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
    function = _read(out)
    assert function is not None
    return base64.b64encode(function).decode()


def _pickled(value: object) -> str:
    return base64.b64encode(pickle.dumps(value)).decode()


def _read(stream: BinaryIO) -> bytes | None:
    head = stream.read(4)
    return stream.read(struct.unpack("!i", head)[0]) if len(head) == 4 else None


def _told(error: BaseException) -> str:
    if isinstance(error, PhalanxError):
        return f"{type(error).__module__}.{type(error).__qualname__}: {error}"
    return "".join(traceback.format_exception(error))


def main() -> None:
    """Answer until the one that asks is gone."""
    questions, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    # What others print is no answer.
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    planner = Planner()
    while (question := _read(questions)) is not None:
        try:
            found = planner.answer(json.loads(question))
        except Exception as error:
            found = {"error": _told(error)}
        text = json.dumps(found).encode()
        answers.write(struct.pack("!i", len(text)) + text)
        answers.flush()


if __name__ == "__main__":
    main()
