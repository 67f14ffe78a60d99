"""Project ranges onto year, month, day and hour of one column, which compare like digits.

Only `year` preserves order by itself. The other parts do so together with all coarser parts:
`ts >= '2025-03-10'` is a later year, or 2025 and a later month, or March 2025 from the 10th on.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from phalanx.model.predicates.predicate import FALSE, TRUE, Compare, In, Predicate, all_of, any_of
from phalanx.model.schema.names import FieldPath
from phalanx.model.sql.literals import find_predecessor, find_successor, to_ordinal
from phalanx.model.sql.syntax import Column
from phalanx.model.transforms.calendar_parts import DATE_CHAIN
from phalanx.model.transforms.transform import RangeBound, to_inclusive_bound
from phalanx.planning.pruning.fields import BoundField


def find_chain(path: FieldPath, fields: Sequence[BoundField]) -> tuple[BoundField, ...]:
    """Return the fields with year, month, … of the column without a gap; empty without a year.

    A year alone is a chain of one field.
    """
    by_part = {each.derivation.calendar_part: each for each in fields if each.sources == (path,)}
    chain: list[BoundField] = []
    for part in DATE_CHAIN:
        if part not in by_part:
            break
        chain.append(by_part[part])
    return tuple(chain)


def project_chain(bounds: Sequence[Compare], chain: Sequence[BoundField]) -> Predicate:
    """Project bounds on the column onto the fields of the chain."""
    lowest: RangeBound | None = None
    highest: RangeBound | None = None
    for atom in bounds:
        bound = to_inclusive_bound(atom)
        if bound is None:
            return FALSE
        if bound.is_upper:
            highest = min(highest or bound, bound, key=_ordinal_of)
        else:
            lowest = max(lowest or bound, bound, key=_ordinal_of)
    return _build_range(
        [field.target for field in chain],
        [] if lowest is None else _split_bound(lowest, chain),
        [] if highest is None else _split_bound(highest, chain),
    )


def is_aligned_with_chain(atom: Compare, chain: Sequence[BoundField]) -> bool:
    """Return whether the range includes or excludes every partition of the chain entirely."""
    bound = to_inclusive_bound(atom)
    return bound is None or _find_depth(bound, chain) is not None


def _ordinal_of(bound: RangeBound) -> int:
    position: int = to_ordinal(bound.value)
    return position


def _split_bound(bound: RangeBound, chain: Sequence[BoundField]) -> list[pa.Scalar]:
    """Return the leading parts of the bound that are needed to compare with it."""
    depth = _find_depth(bound, chain) or len(chain)
    return _compute_parts(bound.value, chain[:depth])


def _find_depth(bound: RangeBound, chain: Sequence[BoundField]) -> int | None:
    """Return how many parts distinguish the bound from the next value outside; None if too few."""
    outside = (find_successor if bound.is_upper else find_predecessor)(bound.value)
    if outside is None:
        return 1
    pairs = zip(_compute_parts(bound.value, chain), _compute_parts(outside, chain), strict=True)
    return next((depth for depth, (one, two) in enumerate(pairs, start=1) if one != two), None)


def _compute_parts(value: pa.Scalar, chain: Sequence[BoundField]) -> list[pa.Scalar]:
    array = pa.array([value], value.type)
    return [field.derivation.apply(array)[0] for field in chain]


def _build_range(
    targets: Sequence[Column], low: Sequence[pa.Scalar], high: Sequence[pa.Scalar]
) -> Predicate:
    """Match tuples from `low` to `high`, inclusive; an empty end leaves that side open."""
    if not low and not high:
        return TRUE
    target, rest = targets[0], targets[1:]
    if low and high and low[0] == high[0]:
        return all_of((_build_equality(target, low[0]), _build_range(rest, low[1:], high[1:])))
    inside: list[Predicate] = []
    edges: list[Predicate] = []
    for end, is_upper in ((low, False), (high, True)):
        if not end:
            continue
        whole = len(end) == 1
        operator = ("<" if is_upper else ">") + ("=" if whole else "")
        inside.append(Compare(target, operator, end[0]))
        if not whole:
            below = _build_range(rest, *(([], end[1:]) if is_upper else (end[1:], [])))
            edges.append(all_of((_build_equality(target, end[0]), below)))
    between = all_of(inside)
    if low and high and high[0].as_py() - low[0].as_py() == 1 and len(low) > 1 and len(high) > 1:
        between = FALSE
    return any_of((between, *edges))


def _build_equality(target: Column, value: pa.Scalar) -> Predicate:
    return In(target, pa.array([value], value.type))
