"""Ranges over year, month, day and hour of one column, which compare like the digits of a number.

Only `year` keeps order by itself. Together with their coarser siblings the other parts do too:
`ts >= '2025-03-10'` is a later year, or 2025 and a later month, or March 2025 from the 10th on.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from phalanx.model.predicates.predicate import FALSE, TRUE, Compare, In, Predicate, all_of, any_of
from phalanx.model.sql.literals import ordinal, predecessor, successor
from phalanx.model.sql.syntax import Column
from phalanx.model.transforms.calendar_parts import DATE_CHAIN
from phalanx.model.transforms.transform import Bound, inclusive_bound
from phalanx.planning.pruning.fields import BoundField, Path


def chain_of(path: Path, fields: Sequence[BoundField]) -> tuple[BoundField, ...]:
    """The fields that hold year, month, … of the column without a gap; empty if there is no year.

    A year alone is a chain of one.
    """
    by_part = {each.derivation.calendar_part: each for each in fields if each.sources == (path,)}
    chain: list[BoundField] = []
    for part in DATE_CHAIN:
        if part not in by_part:
            break
        chain.append(by_part[part])
    return tuple(chain)


def project_chain(bounds: Sequence[Compare], chain: Sequence[BoundField]) -> Predicate:
    """What bounds on the column say about the parts in the chain."""
    lowest: Bound | None = None
    highest: Bound | None = None
    for leaf in bounds:
        bound = inclusive_bound(leaf)
        if bound is None:
            return FALSE
        if bound.is_upper:
            highest = min(highest or bound, bound, key=_position)
        else:
            lowest = max(lowest or bound, bound, key=_position)
    return _between(
        [field.target for field in chain],
        [] if lowest is None else _digits(lowest, chain),
        [] if highest is None else _digits(highest, chain),
    )


def ends_on_a_part(leaf: Compare, chain: Sequence[BoundField]) -> bool:
    """Whether the range takes or leaves every partition of the chain as a whole."""
    bound = inclusive_bound(leaf)
    return bound is None or _depth(bound, chain) is not None


def _position(bound: Bound) -> int:
    position: int = ordinal(bound.value)
    return position


def _digits(bound: Bound, chain: Sequence[BoundField]) -> list[pa.Scalar]:
    """The parts of the bound, without those that it does not cut into."""
    depth = _depth(bound, chain) or len(chain)
    return _parts(bound.value, chain[:depth])


def _depth(bound: Bound, chain: Sequence[BoundField]) -> int | None:
    """How many parts tell the bound from its neighbour outside; None if not even all do."""
    outside = (successor if bound.is_upper else predecessor)(bound.value)
    if outside is None:
        return 1
    pairs = zip(_parts(bound.value, chain), _parts(outside, chain), strict=True)
    return next((depth for depth, (one, two) in enumerate(pairs, start=1) if one != two), None)


def _parts(value: pa.Scalar, chain: Sequence[BoundField]) -> list[pa.Scalar]:
    array = pa.array([value], value.type)
    return [field.derivation.apply(array)[0] for field in chain]


def _between(
    targets: Sequence[Column], low: Sequence[pa.Scalar], high: Sequence[pa.Scalar]
) -> Predicate:
    """The tuples from `low` to `high`, both included; an empty end leaves that side open."""
    if not low and not high:
        return TRUE
    target, rest = targets[0], targets[1:]
    if low and high and low[0] == high[0]:
        return all_of((_equal(target, low[0]), _between(rest, low[1:], high[1:])))
    inside: list[Predicate] = []
    edges: list[Predicate] = []
    for end, is_upper in ((low, False), (high, True)):
        if not end:
            continue
        whole = len(end) == 1
        operator = ("<" if is_upper else ">") + ("=" if whole else "")
        inside.append(Compare(target, operator, end[0]))
        if not whole:
            below = _between(rest, *(([], end[1:]) if is_upper else (end[1:], [])))
            edges.append(all_of((_equal(target, end[0]), below)))
    between = all_of(inside)
    if low and high and high[0].as_py() - low[0].as_py() == 1 and len(low) > 1 and len(high) > 1:
        between = FALSE
    return any_of((between, *edges))


def _equal(target: Column, value: pa.Scalar) -> Predicate:
    return In(target, pa.array([value], value.type))
