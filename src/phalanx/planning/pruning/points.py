"""Finite sets of source values: the whole tuples of partition values they lead to.

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
from phalanx.model.predicates.evaluation import holds
from phalanx.model.predicates.predicate import (
    TRUE,
    Compare,
    In,
    IsNull,
    Leaf,
    NotNull,
    Opaque,
    Predicate,
    all_of,
    among,
    any_of,
)
from phalanx.model.sql import engine
from phalanx.model.sql.literals import distinct, encoded, from_ordinal, is_discrete, ordinal
from phalanx.model.sql.syntax import Column, columns
from phalanx.model.transforms.transform import IDENTITY, inclusive_bound
from phalanx.planning.pruning.fields import BoundField, Path

_MOST_TUPLES = 65_536
_MOST_BRANCHES = 4_096


@dataclass(frozen=True, slots=True)
class Points:
    """The values that columns may have; NULL may be one of them.

    For a `settled` column the values satisfy every condition on it, so nothing is left to say
    about fields that come from settled columns alone.
    """

    values: dict[Path, pa.Array]
    settled: frozenset[Path]


def points_of(leaves: Sequence[Leaf | Opaque]) -> Points | None:
    """The points of the columns that have finitely many; None where the leaves cannot all hold."""
    values: dict[Path, pa.Array] = {}
    settled: set[Path] = set()
    for path, own in _by_column(leaves).items():
        if any(isinstance(leaf, IsNull) for leaf in own):
            if not all(isinstance(leaf, IsNull) for leaf in own):
                return None
            values[path] = pa.nulls(1)
            settled.add(path)
            continue
        span = _span([leaf for leaf in own if isinstance(leaf, Compare)])
        if span is not None and len(span) == 0:
            return None
        sets = [leaf.values for leaf in own if isinstance(leaf, In)]
        candidates = min(sets, key=len) if sets else span
        if candidates is None:
            continue
        # A candidate among floats stands for all that are equal to it: no condition is tried.
        if not pt.is_floating(candidates.type):
            candidates = _satisfying(candidates, path, leaves)
        if len(own) == 1 or not pt.is_floating(candidates.type):
            settled.add(path)
        if len(candidates) == 0:
            return None
        values[path] = candidates
    return Points(values, frozenset(settled))


def project_points(
    fields: Sequence[BoundField], points: Mapping[Path, pa.Array]
) -> Iterator[Predicate]:
    """What the points say about the fields all of whose sources have some."""
    covered = [
        field
        for field in fields
        if field.derivation.is_repeatable
        and field.sources
        and all(path is not None and path in points for path in field.sources)
    ]
    for group in _sharing_sources(covered):
        try:
            yield _project_group(group, points)
        except (PhalanxError, pa.ArrowInvalid):
            yield from _project_each(group, points)


def _project_each(
    fields: Sequence[BoundField], points: Mapping[Path, pa.Array]
) -> Iterator[Predicate]:
    """The fields one by one: an expression that cannot take a value says nothing of the others."""
    for field in fields:
        try:
            yield _project_group([field], points)
        except (PhalanxError, pa.ArrowInvalid):
            continue


def _by_column(leaves: Sequence[Leaf | Opaque]) -> dict[Path, list[Leaf]]:
    found: dict[Path, list[Leaf]] = {}
    for leaf in leaves:
        if not isinstance(leaf, Opaque) and isinstance(leaf.term, Column):
            found.setdefault(leaf.term.path, []).append(leaf)
    return found


def _span(bounds: Sequence[Compare]) -> pa.Array | None:
    """The one value that a range leaves, an empty array if it leaves none, None if more."""
    if not bounds or pt.is_floating(bounds[0].value.type):
        return None
    data_type = bounds[0].value.type
    nothing = pa.array([], data_type)
    lowers: list[tuple[Any, bool]] = []
    uppers: list[tuple[Any, bool]] = []
    for bound in bounds:
        value, open_end = bound.value, bound.operator in ("<", ">")
        if open_end and is_discrete(data_type):
            last = inclusive_bound(bound)
            if last is None:
                return nothing
            value, open_end = last.value, False
        if bound.operator in (">", ">="):
            lowers.append((ordinal(value), open_end))
        else:
            uppers.append((ordinal(value), not open_end))
    if not lowers or not uppers:
        return None
    (low, low_is_open), (high, high_is_closed) = max(lowers), min(uppers)
    if low > high or (low == high and (low_is_open or not high_is_closed)):
        return nothing
    return pa.array([from_ordinal(low, data_type)], data_type) if low == high else None


def _satisfying(candidates: pa.Array, path: Path, leaves: Sequence[Leaf | Opaque]) -> pa.Array:
    """The candidates for which every condition on this column alone holds, as DataFusion sees it.

    Conditions on the bare column are tried first: they never fail, as a division may.
    """
    # Candidates are never NULL.
    is_value = NotNull(Column(path))
    alone = [leaf for leaf in leaves if _reads_only(leaf, path) and leaf != is_value]
    plain = [leaf for leaf in alone if not isinstance(leaf, Opaque) and leaf.term == Column(path)]
    tests = [leaf for leaf in alone if leaf not in plain]
    if len(plain) > 1:
        candidates = candidates.filter(_holds(all_of(plain), path, candidates))
    for test in tests:
        try:
            candidates = candidates.filter(_holds(test, path, candidates))
        except engine.BadExpression:
            continue
    return candidates


def _holds(condition: Predicate, path: Path, candidates: pa.Array) -> pa.Array:
    column = candidates
    for name in reversed(path[1:]):
        column = pa.StructArray.from_arrays([column], names=[name])
    return holds(condition, {path[0]: column}, len(candidates))


def _reads_only(leaf: Leaf | Opaque, path: Path) -> bool:
    read = leaf.columns if isinstance(leaf, Opaque) else columns(leaf.term)
    return read == {path}


def _sharing_sources(fields: Sequence[BoundField]) -> list[list[BoundField]]:
    """The fields in groups, such that fields with a common source are in one group."""
    groups: list[tuple[set[Path | None], list[BoundField]]] = []
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


def _project_group(fields: Sequence[BoundField], points: Mapping[Path, pa.Array]) -> Predicate:
    paths = sorted({path for field in fields for path in field.sources if path is not None})
    sizes = [len(points[path]) for path in paths]
    if len(paths) > 1 and math.prod(sizes) > _MOST_TUPLES:
        single = [field for field in fields if field.source is not None]
        return all_of(_project_each(single, points))
    places = np.indices(sizes).reshape(len(sizes), -1)
    rows = {
        path: points[path].take(pa.array(place)) for path, place in zip(paths, places, strict=True)
    }
    values = [
        field.derivation.apply(*(_typed(rows[path], kind) for path, kind in _inputs(field)))
        for field in fields
    ]
    identities = {field.source for field in fields if field.derivation == IDENTITY}
    if len(fields) == 1 or identities >= set(paths):
        each = zip(fields, values, strict=True)
        return all_of(among(field.target, distinct(found)) for field, found in each)
    return _tuples(fields, values)


def _inputs(field: BoundField) -> Iterator[tuple[Path, pa.DataType]]:
    for path, kind in zip(field.sources, field.types, strict=True):
        assert path is not None
        yield path, kind


def _typed(values: pa.Array, data_type: pa.DataType) -> pa.Array:
    return values.cast(data_type) if pt.is_null(values.type) else values


def _tuples(fields: Sequence[BoundField], values: Sequence[pa.Array]) -> Predicate:
    """One of the tuples of values, as nested conditions that share their common parts."""
    columns = [encoded(found) for found in values]
    codes = (column.indices.to_pylist() for column in columns)
    tree = _grouped(sorted(set(zip(*codes, strict=True))))
    if _branches(tree) > _MOST_BRANCHES:
        each = zip(fields, values, strict=True)
        return all_of(among(field.target, distinct(found)) for field, found in each)
    return _nested(tree, fields, [column.dictionary for column in columns])


Tree: TypeAlias = tuple[tuple[tuple[int, ...], "Tree"], ...]


def _grouped(rows: Sequence[tuple[int, ...]]) -> Tree:
    """Rows of codes as a tree whose branches hold all first codes with the same continuations."""
    if not rows or not rows[0]:
        return ()
    rests: dict[int, list[tuple[int, ...]]] = {}
    for row in rows:
        rests.setdefault(row[0], []).append(row[1:])
    branches: dict[tuple[tuple[int, ...], ...], list[int]] = {}
    for first, rest in rests.items():
        branches.setdefault(tuple(rest), []).append(first)
    return tuple((tuple(firsts), _grouped(rest)) for rest, firsts in branches.items())


def _branches(tree: Tree) -> int:
    return sum(1 + _branches(below) for _, below in tree)


def _nested(tree: Tree, fields: Sequence[BoundField], values: Sequence[pa.Array]) -> Predicate:
    if not fields:
        return TRUE
    return any_of(
        all_of(
            (
                among(fields[0].target, values[0].take(pa.array(codes))),
                _nested(below, fields[1:], values[1:]),
            )
        )
        for codes, below in tree
    )
