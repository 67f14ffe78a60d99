"""Project finite sets of source values onto tuples of partition values.

`ts IN ('2024-01-05', '2025-06-07')` under (year, month) gives (2024, 1) or (2025, 6), and not
(2024, 6): fields that share a source are projected together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from phalanx.errors import PhalanxError
from phalanx.model.predicates.evaluation import match_arrays
from phalanx.model.predicates.predicate import (
    TRUE,
    AtomicPredicate,
    Compare,
    In,
    IsNull,
    NotNull,
    Opaque,
    Predicate,
    all_of,
    any_of,
    one_of,
)
from phalanx.model.schema.names import FieldPath
from phalanx.model.sql import engine
from phalanx.model.sql.literals import (
    dictionary_encode,
    drop_duplicates,
    from_ordinal,
    is_discrete,
    to_ordinal,
)
from phalanx.model.sql.syntax import Column, find_columns
from phalanx.model.transforms.transform import IDENTITY, to_inclusive_bound
from phalanx.planning.pruning.fields import BoundField

_MAX_TUPLES = 65_536
_MAX_BRANCHES = 4_096


@dataclass(frozen=True, slots=True)
class Points:
    """The possible values of columns, including NULL.

    The values of an `exact` column satisfy every condition on it, so fields that depend only on
    exact columns need no further projection.
    """

    values: dict[FieldPath, pa.Array]
    exact: frozenset[FieldPath]


def find_points(atoms: Sequence[AtomicPredicate | Opaque]) -> Points | None:
    """Return the columns with finitely many values; None if the atoms contradict each other."""
    values: dict[FieldPath, pa.Array] = {}
    settled: set[FieldPath] = set()
    for path, own in _group_by_column(atoms).items():
        if any(isinstance(atom, IsNull) for atom in own):
            if not all(isinstance(atom, IsNull) for atom in own):
                return None
            values[path] = pa.nulls(1)
            settled.add(path)
            continue
        span = _find_only_value([atom for atom in own if isinstance(atom, Compare)])
        if span is not None and len(span) == 0:
            return None
        sets = [atom.values for atom in own if isinstance(atom, In)]
        candidates = min(sets, key=len) if sets else span
        if candidates is None:
            continue
        # A float candidate represents all equal floats, so do not evaluate conditions on it.
        if not pt.is_floating(candidates.type):
            candidates = _filter_candidates(candidates, path, atoms)
        if len(own) == 1 or not pt.is_floating(candidates.type):
            settled.add(path)
        if len(candidates) == 0:
            return None
        values[path] = candidates
    return Points(values, frozenset(settled))


def project_points(
    fields: Sequence[BoundField], points: Mapping[FieldPath, pa.Array]
) -> Iterator[Predicate]:
    """Yield conditions on the fields whose sources all have points."""
    covered = [
        field
        for field in fields
        if field.derivation.is_repeatable
        and field.sources
        and all(path is not None and path in points for path in field.sources)
    ]
    for group in _group_by_shared_sources(covered):
        try:
            yield _project_group(group, points)
        except (PhalanxError, pa.ArrowInvalid):
            yield from _project_each(group, points)


def _project_each(
    fields: Sequence[BoundField], points: Mapping[FieldPath, pa.Array]
) -> Iterator[Predicate]:
    """Project the fields one by one, skipping expressions that fail for a value."""
    for field in fields:
        try:
            yield _project_group([field], points)
        except (PhalanxError, pa.ArrowInvalid):
            continue


def _group_by_column(
    atoms: Sequence[AtomicPredicate | Opaque],
) -> dict[FieldPath, list[AtomicPredicate]]:
    found: dict[FieldPath, list[AtomicPredicate]] = {}
    for atom in atoms:
        if not isinstance(atom, Opaque) and isinstance(atom.term, Column):
            found.setdefault(atom.term.path, []).append(atom)
    return found


def _find_only_value(bounds: Sequence[Compare]) -> pa.Array | None:
    """Return the only value in a range, an empty array if it is empty, None if it has more."""
    if not bounds or pt.is_floating(bounds[0].value.type):
        return None
    data_type = bounds[0].value.type
    nothing = pa.array([], data_type)
    lowers: list[tuple[Any, bool]] = []
    uppers: list[tuple[Any, bool]] = []
    for bound in bounds:
        value, open_end = bound.value, bound.operator in ("<", ">")
        if open_end and is_discrete(data_type):
            last = to_inclusive_bound(bound)
            if last is None:
                return nothing
            value, open_end = last.value, False
        if bound.operator in (">", ">="):
            lowers.append((to_ordinal(value), open_end))
        else:
            uppers.append((to_ordinal(value), not open_end))
    if not lowers or not uppers:
        return None
    (low, low_is_open), (high, high_is_closed) = max(lowers), min(uppers)
    if low > high or (low == high and (low_is_open or not high_is_closed)):
        return nothing
    return pa.array([from_ordinal(low, data_type)], data_type) if low == high else None


def _filter_candidates(
    candidates: pa.Array, path: FieldPath, atoms: Sequence[AtomicPredicate | Opaque]
) -> pa.Array:
    """Return the candidates that satisfy every condition on this column alone, by DataFusion.

    Evaluate conditions on the bare column first: unlike a division they cannot fail.
    """
    # Candidates are never NULL.
    is_value = NotNull(Column(path))
    alone = [atom for atom in atoms if _reads_only(atom, path) and atom != is_value]
    plain = [atom for atom in alone if not isinstance(atom, Opaque) and atom.term == Column(path)]
    tests = [atom for atom in alone if atom not in plain]
    if len(plain) > 1:
        candidates = candidates.filter(_evaluate(all_of(plain), path, candidates))
    for test in tests:
        try:
            candidates = candidates.filter(_evaluate(test, path, candidates))
        except engine.BadExpression:
            continue
    return candidates


def _evaluate(condition: Predicate, path: FieldPath, candidates: pa.Array) -> pa.Array:
    column = candidates
    for name in reversed(path[1:]):
        column = pa.StructArray.from_arrays([column], names=[name])
    return match_arrays(condition, {path[0]: column}, len(candidates))


def _reads_only(atom: AtomicPredicate | Opaque, path: FieldPath) -> bool:
    read = atom.columns if isinstance(atom, Opaque) else find_columns(atom.term)
    return read == {path}


def _group_by_shared_sources(fields: Sequence[BoundField]) -> list[list[BoundField]]:
    """Group the fields so that fields with a common source are in one group."""
    groups: list[tuple[set[FieldPath | None], list[BoundField]]] = []
    for field in fields:
        sources, members = set(field.sources), [field]
        apart = []
        for other_sources, others in groups:
            if sources & other_sources:
                sources |= other_sources
                members = others + members
            else:
                apart.append((other_sources, others))
        groups = [*apart, (sources, members)]
    return [members for _, members in groups]


def _project_group(fields: Sequence[BoundField], points: Mapping[FieldPath, pa.Array]) -> Predicate:
    paths = sorted({path for field in fields for path in field.sources if path is not None})
    sizes = [len(points[path]) for path in paths]
    if len(paths) > 1 and math.prod(sizes) > _MAX_TUPLES:
        single = [field for field in fields if field.source is not None]
        return all_of(_project_each(single, points))
    indices = np.indices(sizes).reshape(len(sizes), -1)
    rows = {
        path: points[path].take(pa.array(index)) for path, index in zip(paths, indices, strict=True)
    }
    values = [
        field.derivation.apply(
            *(_cast_nulls(rows[path], kind) for path, kind in _list_inputs(field))
        )
        for field in fields
    ]
    identities = {field.source for field in fields if field.derivation == IDENTITY}
    if len(fields) == 1 or identities >= set(paths):
        each = zip(fields, values, strict=True)
        return all_of(one_of(field.target, drop_duplicates(found)) for field, found in each)
    return _build_tuple_condition(fields, values)


def _list_inputs(field: BoundField) -> Iterator[tuple[FieldPath, pa.DataType]]:
    for path, kind in zip(field.sources, field.types, strict=True):
        assert path is not None
        yield path, kind


def _cast_nulls(values: pa.Array, data_type: pa.DataType) -> pa.Array:
    return values.cast(data_type) if pt.is_null(values.type) else values


def _build_tuple_condition(fields: Sequence[BoundField], values: Sequence[pa.Array]) -> Predicate:
    """Match any of the tuples with nested conditions that share common parts."""
    columns = [dictionary_encode(found) for found in values]
    codes = (column.indices.to_pylist() for column in columns)
    tree = _build_tree(sorted(set(zip(*codes, strict=True))))
    if _count_branches(tree) > _MAX_BRANCHES:
        each = zip(fields, values, strict=True)
        return all_of(one_of(field.target, drop_duplicates(found)) for field, found in each)
    return _build_nested_condition(tree, fields, [column.dictionary for column in columns])


CodeTree: TypeAlias = tuple[tuple[tuple[int, ...], "CodeTree"], ...]


def _build_tree(rows: Sequence[tuple[int, ...]]) -> CodeTree:
    """Build a tree that merges the first codes with the same continuations into one branch."""
    if not rows or not rows[0]:
        return ()
    rests: dict[int, list[tuple[int, ...]]] = {}
    for row in rows:
        rests.setdefault(row[0], []).append(row[1:])
    branches: dict[tuple[tuple[int, ...], ...], list[int]] = {}
    for first, rest in rests.items():
        branches.setdefault(tuple(rest), []).append(first)
    return tuple((tuple(firsts), _build_tree(rest)) for rest, firsts in branches.items())


def _count_branches(tree: CodeTree) -> int:
    return sum(1 + _count_branches(below) for _, below in tree)


def _build_nested_condition(
    tree: CodeTree, fields: Sequence[BoundField], values: Sequence[pa.Array]
) -> Predicate:
    if not fields:
        return TRUE
    return any_of(
        all_of(
            (
                one_of(fields[0].target, values[0].take(pa.array(codes))),
                _build_nested_condition(below, fields[1:], values[1:]),
            )
        )
        for codes, below in tree
    )
