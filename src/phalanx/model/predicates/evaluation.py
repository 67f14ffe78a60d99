"""Evaluation of bound predicates on rows.

DataFusion evaluates each atomic predicate on its own: it would simplify a whole predicate.
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
    AtomicPredicate,
    Opaque,
    Or,
    Predicate,
    find_predicate_columns,
    is_on_column,
    walk_atomic_predicates,
)
from phalanx.model.predicates.rendering import summarize, to_datafusion
from phalanx.model.sql import engine
from phalanx.model.sql.syntax import Column, Node

Flags = npt.NDArray[np.bool_]


def match_rows(predicate: Predicate, rows: pa.RecordBatch) -> pa.BooleanArray:
    """Return for each row whether it matches; a row for which the predicate is NULL does not."""
    columns = dict(zip(rows.schema.names, rows.columns, strict=True))
    try:
        return match_arrays(predicate, columns, rows.num_rows)
    except engine.BadExpression as error:
        raise InvalidPredicate(
            f"Cannot evaluate the predicate {summarize(predicate)} on these rows: {error}"
        ) from None


def match_arrays(
    predicate: Predicate, columns: Mapping[str, pa.Array], rows: int
) -> pa.BooleanArray:
    """Return for each row whether the predicate is TRUE; raise `BadExpression` if it fails."""
    return pa.array(_match(predicate, columns, rows))


def _match(predicate: Predicate, columns: Mapping[str, pa.Array], rows: int) -> Flags:
    match predicate:
        case Always(value=value):
            return np.full(rows, value)
        case Opaque(sql=sql):
            return _to_flags(
                engine.evaluate(_parse_opaque(sql, _schema_of(columns)), columns, rows)
            )
        case And(parts=parts) | Or(parts=parts):
            cheap = [part for part in parts if _is_cheap(part)]
            costly = [part for part in parts if not _is_cheap(part)]
            if not costly:
                return _match_atoms(predicate, columns, rows)
            return _match_in_turn(predicate, cheap, costly, columns, rows)
    return _match_atoms(predicate, columns, rows)


def _match_in_turn(
    whole: And | Or,
    cheap: Sequence[Predicate],
    costly: Sequence[Predicate],
    columns: Mapping[str, pa.Array],
    rows: int,
) -> Flags:
    """Evaluate the parts in turn, each only on the rows that are still undecided.

    So a division that fails for some rows is not evaluated on rows that a comparison excludes.
    """
    is_all = isinstance(whole, And)
    found = np.full(rows, is_all)
    if cheap:
        found = _match_atoms(And(tuple(cheap)) if is_all else Or(tuple(cheap)), columns, rows)
    for part in costly:
        undecided = np.flatnonzero(found == is_all)
        some, count = columns, rows
        if len(undecided) < rows:
            taken, count = pa.array(undecided), len(undecided)
            some = {name: column.take(taken) for name, column in columns.items()}
        found[undecided] = _match(part, some, count)
    return found


def _is_cheap(predicate: Predicate) -> bool:
    return all(map(is_on_column, walk_atomic_predicates(predicate)))


def _match_atoms(predicate: Predicate, columns: Mapping[str, pa.Array], rows: int) -> Flags:
    """Evaluate a predicate on columns, or a single atomic predicate on another term.

    One query evaluates all atomic predicates, each on its own.
    """
    available = dict(columns)
    if isinstance(predicate, AtomicPredicate) and not isinstance(predicate.term, Column):
        name = engine.choose_unused_name("term", available)
        available[name] = engine.evaluate(predicate.term, columns, rows)
        predicate = replace(predicate, term=Column((name,)))
    read = {path[0] for path in find_predicate_columns(predicate)}
    texts = list(dict.fromkeys(map(to_datafusion, walk_atomic_predicates(predicate))))
    used = {name: column for name, column in available.items() if name in read}
    values = engine.evaluate_sqls(texts, used, rows)
    found = dict(zip(texts, map(_to_flags, values), strict=True))
    return _combine(predicate, found)


def _combine(predicate: Predicate, found: Mapping[str, Flags]) -> Flags:
    match predicate:
        case And(parts=parts):
            return reduce(np.logical_and, [_combine(part, found) for part in parts])
        case Or(parts=parts):
            return reduce(np.logical_or, [_combine(part, found) for part in parts])
    return found[to_datafusion(predicate)]


def _to_flags(values: pa.Array) -> Flags:
    flags: Flags = values.cast(pa.bool_()).fill_null(False).to_numpy(zero_copy_only=False)
    return flags


def _schema_of(columns: Mapping[str, pa.Array]) -> pa.Schema:
    return pa.schema([(name, column.type) for name, column in columns.items()])


@lru_cache(maxsize=64)
def _parse_opaque(sql: str, schema: pa.Schema) -> Node:
    return engine.bind_node(engine.parse_expression(sql, schema, exact_numbers=True), schema).node
