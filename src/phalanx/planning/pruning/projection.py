"""What a predicate on rows says about the partition values of one spec.

Leaves go through the transform of each field alone. Two things need more than one field at once:
finite sets of values, which give whole tuples of partition values; and ranges over the date
chain, where year, month, day and hour compare like digits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
import pyarrow.types as pt

from phalanx.errors import PhalanxError
from phalanx.model.predicates.predicate import (
    FALSE,
    TRUE,
    Always,
    And,
    Compare,
    In,
    IsNull,
    Leaf,
    Like,
    NotIn,
    NotNull,
    Opaque,
    Or,
    Predicate,
    all_of,
    any_of,
    columns_of,
    conjuncts,
    leaves,
)
from phalanx.model.predicates.rendering import summary, to_datafusion
from phalanx.model.predicates.uncast import uncast_comparison, uncast_membership
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.spec import PartitionSpec
from phalanx.model.sql.syntax import Column, columns
from phalanx.model.transforms.buckets import MultiBucket
from phalanx.model.transforms.transform import Projection
from phalanx.planning.pruning.date_chain import chain_of, ends_on_a_part, project_chain
from phalanx.planning.pruning.fields import BoundField, Path, bound_fields
from phalanx.planning.pruning.points import points_of, project_points

_MOST_DISJUNCTS = 64


@dataclass(frozen=True, slots=True)
class Reason:
    """What became of one condition under a spec, and why.

    `fails_open` marks a condition on a partition source that prunes nothing all the same.
    """

    condition: str
    pushed: str | None
    exact: bool
    fails_open: bool
    why: str


@dataclass(frozen=True, slots=True)
class SpecProjection:
    """A predicate as one spec sees it.

    `filter` is over the spec's manifest columns; `residual` is what the scan still has to apply
    to every partition that passes; `reasons` say why, condition by condition.
    """

    spec_id: int
    filter: Predicate
    residual: Predicate
    reasons: tuple[Reason, ...]

    @property
    def fail_open(self) -> tuple[Reason, ...]:
        """The conditions on partition sources that prune nothing here."""
        return tuple(reason for reason in self.reasons if reason.fails_open)


def project_on_spec(predicate: Predicate, spec: PartitionSpec, schema: Schema) -> SpecProjection:
    """Project the predicate inclusively on the fields of the spec."""
    fields = bound_fields(spec, schema)
    found = _project(predicate, fields)
    parts = conjuncts(predicate)
    pushed = [found] if len(parts) == 1 else [_project(part, fields) for part in parts]
    exact = [_is_exact(part, fields) for part in parts]
    residual = all_of(part for part, decided in zip(parts, exact, strict=True) if not decided)
    return SpecProjection(
        spec.id,
        found,
        FALSE if found == FALSE else residual,
        tuple(_reason(*each, fields) for each in zip(parts, pushed, exact, strict=True)),
    )


def inclusive(predicate: Predicate, spec: PartitionSpec, schema: Schema) -> Predicate:
    """What holds for the partition values of every row that satisfies the predicate."""
    return _project(predicate, bound_fields(spec, schema))


def _project(predicate: Predicate, fields: Sequence[BoundField]) -> Predicate:
    cases = _disjuncts(predicate)
    if cases is not None:
        return any_of(_project_conjunction(case, fields) for case in cases)
    match predicate:
        case And(parts=parts):
            return all_of(_project(part, fields) for part in parts)
        case Or(parts=parts):
            return any_of(_project(part, fields) for part in parts)
    return TRUE


_Conjunction: TypeAlias = tuple[Leaf | Opaque, ...]


def _disjuncts(predicate: Predicate) -> list[_Conjunction] | None:
    """The predicate as alternatives of leaves that hold together; None if there are too many."""
    match predicate:
        case Always(value=value):
            return [()] if value else []
        case Or(parts=parts):
            cases: list[_Conjunction] = []
            for part in parts:
                inner = _disjuncts(part)
                if inner is None or len(cases) + len(inner) > _MOST_DISJUNCTS:
                    return None
                cases += inner
            return cases
        case And(parts=parts):
            products: list[_Conjunction] = [()]
            for part in parts:
                inner = _disjuncts(part)
                if inner is None or len(products) * len(inner) > _MOST_DISJUNCTS:
                    return None
                products = [one + other for one in products for other in inner]
            return products
    return [(predicate,)]


def _project_conjunction(
    leaves: Sequence[Leaf | Opaque], fields: Sequence[BoundField]
) -> Predicate:
    points = points_of(leaves)
    if points is None:
        return FALSE
    found: list[Predicate] = list(project_points(fields, points.values))
    ranges: dict[Path, list[Compare]] = {}
    for leaf in leaves:
        if isinstance(leaf, Opaque):
            continue
        path = leaf.term.path if isinstance(leaf.term, Column) else None
        if isinstance(leaf, Compare) and path is not None and path not in points.settled:
            ranges.setdefault(path, []).append(leaf)
        for field in fields:
            if path in field.sources and (
                (
                    field.derivation.is_repeatable
                    and all(source in points.settled for source in field.sources)
                )
                or _is_in_chain(leaf, field, fields)
            ):
                continue
            if (projection := _project_leaf(leaf, field)) is not None:
                found.append(projection.predicate)
    for path, bounds in ranges.items():
        if chain := chain_of(path, fields):
            found.extend(_project_ranges(bounds, chain))
    return all_of(sorted(_distinct(found), key=_place_in(fields)))


def _project_ranges(bounds: Sequence[Compare], chain: Sequence[BoundField]) -> Iterator[Predicate]:
    try:
        yield project_chain(bounds, chain)
    except PhalanxError:
        # A bound so far away that it has no year: each of the others still says something.
        if len(bounds) > 1:
            for bound in bounds:
                yield from _project_ranges([bound], chain)


def _place_in(fields: Sequence[BoundField]) -> Callable[[Predicate], int]:
    """The outermost level a condition speaks of: filters read in the order of the spec."""
    places = {field.target.path: place for place, field in enumerate(fields)}

    def place(part: Predicate) -> int:
        return min((places[path] for path in columns_of(part)), default=0)

    return place


def _is_in_chain(leaf: Leaf, field: BoundField, fields: Sequence[BoundField]) -> bool:
    """Whether the date chain speaks for this field: it does so for ranges."""
    if not isinstance(leaf, Compare) or field.source is None:
        return False
    return field in chain_of(field.source, fields)


def _distinct(parts: Iterable[Predicate]) -> Iterator[Predicate]:
    """The parts without those that render alike: two leaves often say the same of a field."""
    seen: set[str] = set()
    for part in parts:
        # A list of values comes from one set of points, and never twice.
        text = "" if isinstance(part, In | Or) else to_datafusion(part)
        if text not in seen:
            yield part
        seen |= {text} - {""}


def _project_leaf(leaf: Leaf, field: BoundField) -> Projection | None:
    """What one leaf says about one field; None where they have nothing to do with each other."""
    if leaf.term == field.term and not isinstance(leaf.term, Column):
        return _project_own_term(leaf, field)
    if not isinstance(leaf.term, Column) or leaf.term.path not in field.sources:
        return None
    if field.source is None:
        return _project_one_of_many(leaf, field)
    try:
        return field.derivation.project(leaf, field.types[0], field.target)
    except (PhalanxError, pa.ArrowInvalid) as error:
        return Projection(TRUE, False, f"it cannot be evaluated: {error}")


def _project_own_term(leaf: Leaf, field: BoundField) -> Projection:
    """The query uses the very expression that the field stores."""
    target, stored = field.target, field.field.result_type
    if isinstance(leaf, IsNull) and field.derivation.has_gaps_in_sql(field.types[0]):
        return Projection(TRUE, False, f"far moments have no {field.derivation.name} in SQL")
    found: Predicate | None
    match leaf:
        case Compare(operator=operator, value=value):
            found = uncast_comparison(target, stored, operator, value)
        case In(values=values):
            found = uncast_membership(target, stored, values, False)
        case NotIn(values=values):
            found = uncast_membership(target, stored, values, True)
        case IsNull():
            found = IsNull(target)
        case NotNull():
            found = NotNull(target)
        case Like(pattern=pattern, negated=negated, case_sensitive=sensitive):
            found = Like(target, pattern, negated, sensitive)
    if found is None or pt.is_floating(stored):
        return Projection(TRUE, False, "its constant does not fit the partition value's type")
    return Projection(found, True)


def _project_one_of_many(leaf: Leaf, field: BoundField) -> Projection:
    """One source of several: a hash of them is NULL only if all of them are."""
    if isinstance(field.derivation, MultiBucket) and not isinstance(leaf, IsNull):
        return Projection(NotNull(field.target), False, "multi_bucket needs all of its columns")
    return Projection(TRUE, False, f"{field.derivation.name} needs all of its columns")


def _projections(leaf: Leaf, fields: Sequence[BoundField]) -> Iterator[Projection]:
    """What each field says of the leaf, the date chain speaking for all of its own."""
    chain = chain_of(leaf.term.path, fields) if isinstance(leaf.term, Column) else ()
    if chain and isinstance(leaf, Compare):
        yield _chain_verdict(leaf, chain)
    for field in fields:
        if isinstance(leaf, Compare) and field in chain:
            continue
        if (projection := _project_leaf(leaf, field)) is not None:
            yield projection


def _chain_verdict(leaf: Compare, chain: Sequence[BoundField]) -> Projection:
    try:
        exact = ends_on_a_part(leaf, chain)
    except PhalanxError as error:
        return Projection(TRUE, False, f"it cannot be evaluated: {error}")
    finest = chain[-1].derivation.name
    return Projection(TRUE, exact, "" if exact else f"the range ends within one {finest}")


def _is_exact(predicate: Predicate, fields: Sequence[BoundField]) -> bool:
    """Whether the manifest filter alone decides the predicate."""
    match predicate:
        case Always():
            return True
        case And(parts=parts) | Or(parts=parts):
            return all(_is_exact(part, fields) for part in parts)
        case Opaque():
            return False
    return any(projection.exact for projection in _projections(predicate, fields))


def _reason(
    part: Predicate, pushed: Predicate, exact: bool, fields: Sequence[BoundField]
) -> Reason:
    sources = {path for field in fields for path in field.sources}
    return Reason(
        condition=summary(part),
        pushed=None if pushed == TRUE else summary(pushed),
        exact=exact,
        fails_open=pushed == TRUE and not exact and bool(columns_of(part) & sources),
        why="" if exact else "; ".join(dict.fromkeys(_whys(part, fields))),
    )


def _whys(predicate: Predicate, fields: Sequence[BoundField]) -> Iterator[str]:
    sources = {path for field in fields for path in field.sources}
    for leaf in leaves(predicate):
        if isinstance(leaf, Opaque):
            read = leaf.columns
        else:
            read = columns(leaf.term)
            found = list(_projections(leaf, fields))
            if any(projection.exact for projection in found):
                continue
            yield from (projection.reason for projection in found if projection.reason)
            if found:
                continue
        names = ", ".join(sorted(".".join(path) for path in read))
        if read & sources:
            yield f"only DataFusion can evaluate this on {names}"
        else:
            yield f"no partition field comes from {names or 'a constant'}"
