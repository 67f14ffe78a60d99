"""Partition expressions (format: Partition Expression): SQL over `col0`, `col1`, …

The six requirements of the format are checked when an expression is made, so that a spec that
exists can be trusted. An expression that *is* a well-known transform is stored as that transform.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice, product
from typing import ClassVar

import pyarrow as pa
import pyarrow.types as pt

from phalanx.errors import InvalidSchema, InvalidSpec, SchemaMismatch, shown
from phalanx.model.predicates.predicate import TRUE, In, IsNull, Leaf, among
from phalanx.model.schema.arrow_json import type_to_json
from phalanx.model.sql import engine
from phalanx.model.sql.literals import NotExpressible, distinct, one_form
from phalanx.model.sql.session import volatile_functions
from phalanx.model.sql.syntax import Call, Column, Node, walk
from phalanx.model.transforms.transform import Projection, Transform
from phalanx.model.transforms.width_check import width_conflict
from phalanx.model.well_known import well_known

# What a source that is gone may have been: some functions refuse a NULL without a type.
_POSSIBLE_TYPES = (
    *(pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.date32(), pa.time64("us")),
    *(pa.int64(), pa.float64(), pa.decimal128(38, 10), pa.bool_(), pa.string(), pa.binary()),
    *(pa.duration("us"), pa.list_(pa.string()), pa.list_(pa.int64())),
)
_MOST_GUESSES = 500


@dataclass(frozen=True, slots=True)
class Expression(Transform):
    """A custom expression with its declared result type; equal if it parses to the same tree."""

    text: str = field(compare=False)
    result: pa.DataType
    node: Node
    name: ClassVar[str] = "expression"

    def result_type(self, *sources: pa.DataType) -> pa.DataType:
        return self.result

    def apply(self, *columns: pa.Array) -> pa.Array:
        inputs = [_in_utc(one_form(column)) for column in columns]
        kinds = tuple(column.type for column in inputs)
        if pa.null() in kinds:
            kinds = _with_types(self, kinds)
            inputs = [column.cast(kind) for column, kind in zip(inputs, kinds, strict=True)]
        try:
            return self._evaluate(inputs)
        except (engine.BadExpression, pa.ArrowException) as error:
            raise SchemaMismatch(
                f"Cannot compute the partition value {self.text!r} as {self.result}: {error}"
            ) from None

    def _evaluate(self, inputs: Sequence[pa.Array]) -> pa.Array:
        available = {f"col{place}": column for place, column in enumerate(inputs)}
        values = engine.evaluate(self.node, available, len(inputs[0]))
        return one_form(values.cast(self.result))

    def computes(self, sources: Sequence[pa.DataType]) -> bool:
        """Whether it gives its result type for NULLs of these types."""
        try:
            inferred = engine.bind_node(self.node, _placeholders(sources)).type
            self._evaluate([pa.nulls(1, source) for source in sources])
        except (engine.BadExpression, NotExpressible, pa.ArrowException):
            return False
        return pt.is_null(inferred) or _is_consistent(inferred, self.result)

    def sql(self, *sources: pa.DataType) -> str:
        return self.text

    def label(self, *names: str) -> str:
        return f"expression({self.text!r}, {', '.join(names)})"

    def project(self, leaf: Leaf, source: pa.DataType, target: Column) -> Projection:
        match leaf:
            case In(values=values):
                return self._project_values(values, target)
            case IsNull():
                return self._project_values(pa.nulls(1, source), target)
        return Projection(TRUE, False, "only equality passes through an expression")

    def _project_values(self, values: pa.Array, target: Column) -> Projection:
        found = distinct(self.apply(values))
        reason = "the expression may hold many values"
        return Projection(among(target, found), False, reason)


@lru_cache(maxsize=256)
def _with_types(
    expression: Expression, sources: tuple[pa.DataType, ...]
) -> tuple[pa.DataType, ...]:
    """The types with one that the expression takes in place of each NULL.

    A source that is gone counts as NULL (format: Partition Expression), and has no type left.
    """
    for guess in islice(_guesses(expression.result, sources.count(pa.null())), _MOST_GUESSES):
        missing = iter(guess)
        typed = tuple(next(missing) if pt.is_null(kind) else kind for kind in sources)
        if expression.computes(typed):
            return typed
    return sources


def _guesses(result: pa.DataType, count: int) -> Iterator[tuple[pa.DataType, ...]]:
    """Types for so many sources: first all alike, then every mixture."""
    possible = (pa.null(), result, *_POSSIBLE_TYPES)
    yield from ((kind,) * count for kind in possible)
    yield from product(possible, repeat=count)


def checked(text: str, sources: Sequence[pa.DataType], result: pa.DataType) -> Transform:
    """The expression over sources of these types, as a transform if it is a well-known one.

    Raises `InvalidSpec` that says which requirement of the format it breaks.
    """
    if pt.is_nested(result) or pt.is_null(result) or pt.is_dictionary(result):
        raise _refused(text, f"its result type {result} cannot be a partition value")
    try:
        type_to_json(result)
    except InvalidSchema:
        raise _refused(
            text, f"its result type {result} has no name in a stored spec. Cast it to another"
        ) from None
    node = _parse(text, len(sources))
    if (known := well_known(node, len(sources), result)) is not None:
        return _checked_known(text, node, known, sources, result)
    if len(sources) > 1 and (narrower := well_known(node, 1, result)) is not None:
        raise _refused(text, f"it is {narrower.name} of col0 alone, so it takes one column")
    try:
        inferred = engine.bind_node(node, _placeholders(sources)).type
    except engine.BadExpression as error:
        raise _refused(text, str(error)) from None
    if not _is_consistent(inferred, result):
        raise _refused(text, f"it gives {inferred}, but its result type is declared {result}")
    expression = Expression(text, result, node)
    _check_null(expression, sources)
    if (conflict := width_conflict(expression, sources)) is not None:
        raise _refused(text, conflict)
    return expression


def parsed(text: object, sources: int, result: pa.DataType) -> Transform:
    """An expression read from a stored spec, whose source types are not known yet."""
    if not isinstance(text, str):
        raise InvalidSpec(f"Cannot use the expression {text!r}: expected SQL text.")
    node = _parse(text, sources)
    return well_known(node, sources, result) or Expression(text, result, node)


def _parse(text: str, sources: int) -> Node:
    try:
        node = engine.parse(text, _placeholders([pa.null()] * sources))
    except engine.BadExpression as error:
        raise _refused(text, str(error)) from None
    except NotExpressible as error:
        raise _refused(text, f"{error} cannot be used in a partition expression") from None
    _check_functions(text, node)
    return node


def _checked_known(
    text: str, node: Node, known: Transform, sources: Sequence[pa.DataType], declared: pa.DataType
) -> Transform:
    expected = known.result_type(*sources)
    if _parse(known.sql(*sources), len(sources)) != node:
        raise _refused(text, f"for {sources[0]} it is not {known.name}: {known.sql(*sources)!r} is")
    if declared != expected:
        raise _refused(
            text, f"it is the transform {known.name}, whose type is {expected}, not {declared}"
        )
    return known


def _refused(text: str, why: str) -> InvalidSpec:
    end = "" if why.endswith((".", "?")) else "."
    return InvalidSpec(f"Cannot use the expression {shown(text)}: {why}{end}")


def _check_functions(text: str, node: Node) -> None:
    for part in walk(node):
        if isinstance(part, Call) and part.name in volatile_functions():
            raise _refused(
                text, f"{part.name}() depends on more than the row, and a partition must not"
            )


def _is_consistent(inferred: pa.DataType, declared: pa.DataType) -> bool:
    """Whether a checked cast between the two only changes width."""
    alike = (
        pt.is_integer,
        pt.is_floating,
        pt.is_decimal,
        lambda kind: pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind),
        lambda kind: pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_binary_view(kind),
        pt.is_date,
        lambda kind: pt.is_timestamp(kind) and kind.tz == getattr(declared, "tz", None),
        pt.is_time,
    )
    return inferred == declared or any(test(inferred) and test(declared) for test in alike)


def _check_null(expression: Expression, sources: Sequence[pa.DataType]) -> None:
    try:
        expression.apply(*(pa.nulls(1, source) for source in sources))
    except SchemaMismatch as error:
        raise _refused(expression.text, f"it fails for NULL: {error}") from None


def _placeholders(sources: Sequence[pa.DataType]) -> pa.Schema:
    return pa.schema([(f"col{place}", _utc_type(kind)) for place, kind in enumerate(sources)])


def _utc_type(source: pa.DataType) -> pa.DataType:
    if pt.is_dictionary(source):
        return _utc_type(source.value_type)
    zoned = pt.is_timestamp(source) and source.tz is not None
    return pa.timestamp(source.unit, "UTC") if zoned else source


def _in_utc(column: pa.Array) -> pa.Array:
    return column.cast(_utc_type(column.type))
