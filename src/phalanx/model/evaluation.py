"""Which rows a bound predicate matches, by DataFusion."""

from __future__ import annotations

from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

from phalanx.errors import InvalidPredicate
from phalanx.model import engine
from phalanx.model.predicate import FALSE, TRUE, Predicate
from phalanx.model.rendering import summary, to_datafusion
from phalanx.model.session import LIFTED_FUNCTIONS
from phalanx.model.syntax import Node


def matches(predicate: Predicate, rows: pa.RecordBatch) -> pa.BooleanArray:
    """For each row whether it matches; a predicate that is NULL for a row does not match it."""
    if predicate in (TRUE, FALSE):
        return pa.repeat(pa.scalar(predicate == TRUE), rows.num_rows)
    sql = to_datafusion(predicate)
    columns = dict(zip(rows.schema.names, rows.columns, strict=True))
    try:
        if any(name in sql for name in LIFTED_FUNCTIONS):
            kept = engine.evaluate(_parsed(sql, rows.schema), columns, rows.num_rows)
        else:
            kept = engine.evaluate_sql(sql, columns, rows.num_rows)
    except engine.BadExpression as error:
        raise InvalidPredicate(
            f"Cannot evaluate the predicate {summary(predicate)} on these rows: {error}"
        ) from None
    return pc.fill_null(kept, False)


@lru_cache(maxsize=64)
def _parsed(sql: str, schema: pa.Schema) -> Node:
    return engine.parse(sql, schema)
