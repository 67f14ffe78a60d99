"""COUNT, MIN and MAX from metadata, for leaves whose rows all match."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from phalanx.model.specs.spec import PartitionField
from phalanx.spark.pushdown.conditions import ExpressionTree
from phalanx.spark.pushdown.partitioning import identity_fields, to_texts
from phalanx.spark.pushdown.queries import QueryLeaves

# Above this, tasks are faster.
_MAX_GROUPS = 10_000
_ROWS = "rows"


def answer_aggregates(
    found: QueryLeaves, by: Sequence[ExpressionTree], functions: Sequence[Mapping[str, Any]]
) -> list[list[str | None]] | None:
    """Return one row for each group, its values as text; None if rows have to be read.

    `by` are the columns of GROUP BY; `functions` the aggregates: `{"name": "MIN", "column": […]}`.
    """
    if not found.is_unfiltered:
        return None
    filled = found.non_empty
    known = identity_fields(filled)
    grouped = [_identity_name(tree, known) for tree in by]
    measures = [_measure(each, filled, known) for each in functions]
    if None in grouped or any(each is None for each in measures):
        return None
    if not by and not filled.leaves:
        return [["0" if each["name"].startswith("COUNT") else None for each in functions]]
    keys = [_plain_values(filled, known[name]) for name in grouped if name is not None]
    columns = [column for each in measures if each is not None for column in each[:1]]
    names = [f"key{place}" for place in range(len(keys))]
    table = pa.table(
        [*keys, *columns], names=[*names, *(f"measure{place}" for place in range(len(columns)))]
    )
    wanted = [(f"measure{n}", each[1]) for n, each in enumerate(measures) if each is not None]
    result = table.group_by(names).aggregate(wanted)
    if result.num_rows > _MAX_GROUPS:
        return None
    shown = [
        to_texts(result.column(name).combine_chunks(), found.schema.arrow.field(column))
        for name, column in zip(names, grouped, strict=True)
        if column is not None
    ]
    for place, (measure, function) in enumerate(zip(measures, functions, strict=True)):
        assert measure is not None
        column = result.column(f"measure{place}_{measure[1]}").combine_chunks()
        field = (
            pa.field("", pa.int64())
            if function["name"].startswith("COUNT")
            else found.schema.arrow.field(function["column"][0])
        )
        shown.append(to_texts(column.cast(field.type), field))
    return [list(row) for row in zip(*shown, strict=True)]


def _identity_name(tree: ExpressionTree, known: Mapping[str, PartitionField]) -> str | None:
    path = tree.get("column")
    return path[0] if path is not None and len(path) == 1 and path[0] in known else None


def _measure(
    function: Mapping[str, Any], found: QueryLeaves, known: Mapping[str, PartitionField]
) -> tuple[pa.Array, str] | None:
    """Return the value of each leaf and the Arrow function that combines them."""
    rows = pa.array([leaf.rows for leaf in found.leaves], pa.int64())
    if function["name"] == "COUNT_STAR":
        return rows, "sum"
    # An expression may be counted, for which there is no metadata.
    path = function.get("column")
    if path is None or len(path) != 1:
        return None
    name = path[0]
    if function["name"] == "COUNT":
        if not found.schema.arrow.field(name).nullable:
            return rows, "sum"
        if name not in known:
            return None
        present = found.partition_values(known[name]).is_valid()
        return pc.if_else(present, rows, pa.scalar(0, pa.int64())), "sum"
    if name not in known or function["name"] not in ("MIN", "MAX"):
        return None
    values = _plain_values(found, known[name])
    if pt.is_boolean(values.type):
        return None
    return values, function["name"].lower()


def _plain_values(found: QueryLeaves, field: PartitionField) -> pa.Array:
    values = found.partition_values(field)
    return values.dictionary_decode() if pt.is_dictionary(values.type) else values
