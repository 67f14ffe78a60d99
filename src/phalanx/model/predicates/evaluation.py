"""Which rows a bound predicate matches.

DataFusion computes each leaf by itself, and never a whole predicate: it would simplify it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, reduce

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from phalanx.errors import InvalidPredicate
from phalanx.model.predicates.predicate import (
    Always,
    And,
    Leaf,
    Opaque,
    Or,
    Predicate,
    columns_of,
    is_on_column,
    leaves,
)
from phalanx.model.predicates.rendering import summary, to_datafusion
from phalanx.model.sql import engine
from phalanx.model.sql.syntax import Column, Node

Flags = npt.NDArray[np.bool_]


def matches(predicate: Predicate, rows: pa.RecordBatch) -> pa.BooleanArray:
    """For each row whether it matches; a predicate that is NULL for a row does not match it."""
    columns = dict(zip(rows.schema.names, rows.columns, strict=True))
    try:
        return holds(predicate, columns, rows.num_rows)
    except engine.BadExpression as error:
        raise InvalidPredicate(
            f"Cannot evaluate the predicate {summary(predicate)} on these rows: {error}"
        ) from None


def holds(predicate: Predicate, columns: Mapping[str, pa.Array], rows: int) -> pa.BooleanArray:
    """For each row whether the predicate is TRUE; raises `BadExpression` where it has no value."""
    return pa.array(_holds(predicate, columns, rows))


def _holds(predicate: Predicate, columns: Mapping[str, pa.Array], rows: int) -> Flags:
    match predicate:
        case Always(value=value):
            return np.full(rows, value)
        case Opaque(sql=sql):
            return _flags(engine.evaluate(_parsed(sql, _schema(columns)), columns, rows))
        case And(parts=parts) | Or(parts=parts):
            cheap = [part for part in parts if _is_cheap(part)]
            costly = [part for part in parts if not _is_cheap(part)]
            if not costly:
                return _of_columns(predicate, columns, rows)
            return _joined(predicate, cheap, costly, columns, rows)
    return _of_columns(predicate, columns, rows)


def _joined(
    whole: And | Or,
    cheap: Sequence[Predicate],
    costly: Sequence[Predicate],
    columns: Mapping[str, pa.Array],
    rows: int,
) -> Flags:
    """The parts in turn, each asked only about the rows that are not decided yet.

    A division that fails for some rows is thus not tried for rows that a comparison rules out.
    """
    is_all = isinstance(whole, And)
    found = np.full(rows, is_all)
    if cheap:
        found = _of_columns(And(tuple(cheap)) if is_all else Or(tuple(cheap)), columns, rows)
    for part in costly:
        places = np.flatnonzero(found == is_all)
        some, count = columns, rows
        if len(places) < rows:
            taken, count = pa.array(places), len(places)
            some = {name: column.take(taken) for name, column in columns.items()}
        found[places] = _holds(part, some, count)
    return found


def _is_cheap(predicate: Predicate) -> bool:
    return all(map(is_on_column, leaves(predicate)))


def _of_columns(predicate: Predicate, columns: Mapping[str, pa.Array], rows: int) -> Flags:
    """Where a predicate holds, at most one of whose leaves is on another term than a column.

    All leaves are asked for at once, each by itself.
    """
    available = dict(columns)
    if isinstance(predicate, Leaf) and not isinstance(predicate.term, Column):
        name = engine.unused("term", available)
        available[name] = engine.evaluate(predicate.term, columns, rows)
        predicate = replace(predicate, term=Column((name,)))
    read = {path[0] for path in columns_of(predicate)}
    texts = list(dict.fromkeys(map(to_datafusion, leaves(predicate))))
    used = {name: column for name, column in available.items() if name in read}
    values = engine.evaluate_each(texts, used, rows)
    found = dict(zip(texts, map(_flags, values), strict=True))
    return _combined(predicate, found)


def _combined(predicate: Predicate, found: Mapping[str, Flags]) -> Flags:
    match predicate:
        case And(parts=parts):
            return reduce(np.logical_and, [_combined(part, found) for part in parts])
        case Or(parts=parts):
            return reduce(np.logical_or, [_combined(part, found) for part in parts])
    return found[to_datafusion(predicate)]


def _flags(values: pa.Array) -> Flags:
    flags: Flags = values.cast(pa.bool_()).fill_null(False).to_numpy(zero_copy_only=False)
    return flags


def _schema(columns: Mapping[str, pa.Array]) -> pa.Schema:
    return pa.schema([(name, column.type) for name, column in columns.items()])


@lru_cache(maxsize=64)
def _parsed(sql: str, schema: pa.Schema) -> Node:
    return engine.bind_node(engine.parse(sql, schema, exact_numbers=True), schema).node
