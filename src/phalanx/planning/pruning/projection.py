"""Project a predicate on rows onto the partition values of one spec.

Each atom is projected by the transform of each field. Two cases need several fields at once: finite
sets of values, which give tuples of partition values, and ranges over the date chain, where year,
month, day and hour compare like digits.
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
    AtomicPredicate,
    Compare,
    In,
    IsNull,
    Like,
    NotIn,
    NotNull,
    Opaque,
    Or,
    Predicate,
    all_of,
    any_of,
    find_predicate_columns,
    split_conjuncts,
    walk_atomic_predicates,
)
from phalanx.model.predicates.rendering import summarize, to_datafusion
from phalanx.model.predicates.uncast import uncast_comparison, uncast_membership
from phalanx.model.schema.names import FieldPath
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.spec import PartitionSpec
from phalanx.model.sql.syntax import Column, find_columns
from phalanx.model.transforms.buckets import MultiBucket
from phalanx.model.transforms.transform import Projection
from phalanx.planning.pruning.date_chain import find_chain, is_aligned_with_chain, project_chain
from phalanx.planning.pruning.fields import BoundField, bind_fields
from phalanx.planning.pruning.points import find_points, project_points

_MAX_DISJUNCTS = 64


@dataclass(frozen=True, slots=True)
class Reason:
    """How one condition was projected on a spec, and why.

    Attributes:
        condition: The condition as text.
        pushed: The condition on partition values that follows from it; None if there is none.
        exact: Whether that condition decides it, so that the scan need not apply it to rows.
        fails_open: Whether it is a condition on a partition source that prunes nothing.
        why: Why it is not exact, or prunes nothing.
    """

    condition: str
    pushed: str | None
    exact: bool
    fails_open: bool
    why: str


@dataclass(frozen=True, slots=True)
class SpecProjection:
    """A predicate projected on one spec.

    `filter` applies to the spec's manifest columns. `residual` is the filter that the scan still
    has to apply in each matching partition. `reasons` explain each condition.
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
    fields = bind_fields(spec, schema)
    found = _project(predicate, fields)
    parts = split_conjuncts(predicate)
    pushed = [found] if len(parts) == 1 else [_project(part, fields) for part in parts]
    exact = [_is_exact(part, fields) for part in parts]
    residual = all_of(part for part, decided in zip(parts, exact, strict=True) if not decided)
    return SpecProjection(
        spec.id,
        found,
        FALSE if found == FALSE else residual,
        tuple(_build_reason(*each, fields) for each in zip(parts, pushed, exact, strict=True)),
    )


def project_inclusive(predicate: Predicate, spec: PartitionSpec, schema: Schema) -> Predicate:
    """Return a condition on the partition values of all rows that satisfy the predicate."""
    return _project(predicate, bind_fields(spec, schema))


def _project(predicate: Predicate, fields: Sequence[BoundField]) -> Predicate:
    cases = _to_disjuncts(predicate)
    if cases is not None:
        return any_of(_project_conjunction(case, fields) for case in cases)
    match predicate:
        case And(parts=parts):
            return all_of(_project(part, fields) for part in parts)
        case Or(parts=parts):
            return any_of(_project(part, fields) for part in parts)
    return TRUE


_Conjunction: TypeAlias = tuple[AtomicPredicate | Opaque, ...]


def _to_disjuncts(predicate: Predicate) -> list[_Conjunction] | None:
    """Return the disjunctive normal form of the predicate; None if it is too large."""
    match predicate:
        case Always(value=value):
            return [()] if value else []
        case Or(parts=parts):
            cases: list[_Conjunction] = []
            for part in parts:
                inner = _to_disjuncts(part)
                if inner is None or len(cases) + len(inner) > _MAX_DISJUNCTS:
                    return None
                cases += inner
            return cases
        case And(parts=parts):
            products: list[_Conjunction] = [()]
            for part in parts:
                inner = _to_disjuncts(part)
                if inner is None or len(products) * len(inner) > _MAX_DISJUNCTS:
                    return None
                products = [one + other for one in products for other in inner]
            return products
    return [(predicate,)]


def _project_conjunction(
    atoms: Sequence[AtomicPredicate | Opaque], fields: Sequence[BoundField]
) -> Predicate:
    points = find_points(atoms)
    if points is None:
        return FALSE
    found: list[Predicate] = list(project_points(fields, points.values))
    ranges: dict[FieldPath, list[Compare]] = {}
    for atom in atoms:
        if isinstance(atom, Opaque):
            continue
        path = atom.term.path if isinstance(atom.term, Column) else None
        if isinstance(atom, Compare) and path is not None and path not in points.exact:
            ranges.setdefault(path, []).append(atom)
        for field in fields:
            if path in field.sources and (
                (
                    field.derivation.is_repeatable
                    and all(source in points.exact for source in field.sources)
                )
                or _is_covered_by_chain(atom, field, fields)
            ):
                continue
            if (projection := _project_atom(atom, field)) is not None:
                found.append(projection.predicate)
    for path, bounds in ranges.items():
        if chain := find_chain(path, fields):
            found.extend(_project_ranges(bounds, chain))
    return all_of(sorted(_drop_duplicates(found), key=_level_in(fields)))


def _project_ranges(bounds: Sequence[Compare], chain: Sequence[BoundField]) -> Iterator[Predicate]:
    try:
        yield project_chain(bounds, chain)
    except PhalanxError:
        # One bound has no year in int32: project the other bounds alone.
        if len(bounds) > 1:
            for bound in bounds:
                yield from _project_ranges([bound], chain)


def _level_in(fields: Sequence[BoundField]) -> Callable[[Predicate], int]:
    """Return a sort key: the outermost field of a condition, in the order of the spec."""
    levels = {field.target.path: level for level, field in enumerate(fields)}

    def level(part: Predicate) -> int:
        return min((levels[path] for path in find_predicate_columns(part)), default=0)

    return level


def _is_covered_by_chain(
    atom: AtomicPredicate, field: BoundField, fields: Sequence[BoundField]
) -> bool:
    """Return whether the date chain projects the atom, a range, for this field."""
    if not isinstance(atom, Compare) or field.source is None:
        return False
    return field in find_chain(field.source, fields)


def _drop_duplicates(parts: Iterable[Predicate]) -> Iterator[Predicate]:
    """Drop parts with the same text: two conditions often imply the same one."""
    seen: set[str] = set()
    for part in parts:
        # Lists of values come from points and never repeat.
        text = "" if isinstance(part, In | Or) else to_datafusion(part)
        if text not in seen:
            yield part
        seen |= {text} - {""}


def _project_atom(atom: AtomicPredicate, field: BoundField) -> Projection | None:
    """Project one atom onto one field; None if they are unrelated."""
    if atom.term == field.term and not isinstance(atom.term, Column):
        return _project_own_term(atom, field)
    if not isinstance(atom.term, Column) or atom.term.path not in field.sources:
        return None
    if field.source is None:
        return _project_one_of_many(atom, field)
    try:
        return field.derivation.project(atom, field.types[0], field.target)
    except (PhalanxError, pa.ArrowInvalid) as error:
        return Projection(TRUE, False, f"it cannot be evaluated: {error}")


def _project_own_term(atom: AtomicPredicate, field: BoundField) -> Projection:
    """Project an atom on the same expression that the field stores."""
    target, stored = field.target, field.field.result_type
    if isinstance(atom, IsNull) and field.derivation.has_gaps_in_sql(field.types[0]):
        return Projection(
            TRUE, False, f"SQL has no {field.derivation.name} for dates that far away"
        )
    found: Predicate | None
    match atom:
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


def _project_one_of_many(atom: AtomicPredicate, field: BoundField) -> Projection:
    """Project an atom on one of several sources; a hash is NULL only if all sources are."""
    if isinstance(field.derivation, MultiBucket) and not isinstance(atom, IsNull):
        return Projection(NotNull(field.target), False, "multi_bucket needs all of its columns")
    return Projection(TRUE, False, f"{field.derivation.name} needs all of its columns")


def _list_projections(atom: AtomicPredicate, fields: Sequence[BoundField]) -> Iterator[Projection]:
    """Yield the projection on each field, with one for all fields of a date chain."""
    chain = find_chain(atom.term.path, fields) if isinstance(atom.term, Column) else ()
    if chain and isinstance(atom, Compare):
        yield _project_on_chain(atom, chain)
    for field in fields:
        if isinstance(atom, Compare) and field in chain:
            continue
        if (projection := _project_atom(atom, field)) is not None:
            yield projection


def _project_on_chain(atom: Compare, chain: Sequence[BoundField]) -> Projection:
    try:
        exact = is_aligned_with_chain(atom, chain)
    except PhalanxError as error:
        return Projection(TRUE, False, f"it cannot be evaluated: {error}")
    finest = chain[-1].derivation.name
    return Projection(TRUE, exact, "" if exact else f"the range ends within one {finest}")


def _is_exact(predicate: Predicate, fields: Sequence[BoundField]) -> bool:
    """Return whether the manifest filter alone decides the predicate."""
    match predicate:
        case Always():
            return True
        case And(parts=parts) | Or(parts=parts):
            return all(_is_exact(part, fields) for part in parts)
        case Opaque():
            return False
    return any(projection.exact for projection in _list_projections(predicate, fields))


def _build_reason(
    part: Predicate, pushed: Predicate, exact: bool, fields: Sequence[BoundField]
) -> Reason:
    sources = {path for field in fields for path in field.sources}
    return Reason(
        condition=summarize(part),
        pushed=None if pushed == TRUE else summarize(pushed),
        exact=exact,
        fails_open=pushed == TRUE and not exact and bool(find_predicate_columns(part) & sources),
        why="" if exact else "; ".join(dict.fromkeys(_explain(part, fields))),
    )


def _explain(predicate: Predicate, fields: Sequence[BoundField]) -> Iterator[str]:
    sources = {path for field in fields for path in field.sources}
    for atom in walk_atomic_predicates(predicate):
        if isinstance(atom, Opaque):
            read = atom.columns
        else:
            read = find_columns(atom.term)
            found = list(_list_projections(atom, fields))
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
