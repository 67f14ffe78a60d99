"""Partition expressions (format: Partition Expression): SQL over `col0`, `col1`, …

The six requirements of the format are checked when an expression is built, so existing specs need
no checks. An expression that spells out a well-known transform is stored as that transform.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice, product
from typing import ClassVar

import pyarrow as pa
import pyarrow.types as pt

from phalanx.errors import InvalidSchema, InvalidSpec, SchemaMismatch, format_value
from phalanx.model.predicates.predicate import TRUE, AtomicPredicate, In, IsNull, one_of
from phalanx.model.schema.arrow_json import type_to_json
from phalanx.model.sql import engine
from phalanx.model.sql.literals import NotExpressible, drop_duplicates, normalize_values
from phalanx.model.sql.session import list_volatile_functions
from phalanx.model.sql.syntax import Call, Column, Constant, Node, walk_nodes
from phalanx.model.transforms.buckets import Bucket, MultiBucket
from phalanx.model.transforms.calendar_parts import DATE_CHAIN
from phalanx.model.transforms.transform import IDENTITY, Projection, Transform
from phalanx.model.transforms.truncate import Truncate, is_string_type
from phalanx.model.transforms.width_check import find_width_conflict

# The types a dropped source may have had. Some functions reject a NULL without a type.
_POSSIBLE_TYPES = (
    *(pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.date32(), pa.time64("us")),
    *(pa.int64(), pa.float64(), pa.decimal128(38, 10), pa.bool_(), pa.string(), pa.binary()),
    *(pa.duration("us"), pa.list_(pa.string()), pa.list_(pa.int64())),
)
_MAX_GUESSES = 500


@dataclass(frozen=True, slots=True)
class Expression(Transform):
    """A custom expression with its declared result type. Equal if the syntax trees are equal."""

    text: str = field(compare=False)
    result: pa.DataType
    node: Node
    name: ClassVar[str] = "expression"

    def result_type(self, *sources: pa.DataType) -> pa.DataType:
        return self.result

    def apply(self, *columns: pa.Array) -> pa.Array:
        inputs = [_to_utc(normalize_values(column)) for column in columns]
        kinds = tuple(column.type for column in inputs)
        if pa.null() in kinds:
            kinds = _guess_null_types(self, kinds)
            inputs = [column.cast(kind) for column, kind in zip(inputs, kinds, strict=True)]
        try:
            return self._evaluate(inputs)
        except (engine.BadExpression, pa.ArrowException) as error:
            raise SchemaMismatch(
                f"Cannot compute the partition value {self.text!r} as {self.result}: {error}"
            ) from None

    def _evaluate(self, inputs: Sequence[pa.Array]) -> pa.Array:
        available = {f"col{position}": column for position, column in enumerate(inputs)}
        values = engine.evaluate(self.node, available, len(inputs[0]))
        return normalize_values(values.cast(self.result))

    def can_compute(self, sources: Sequence[pa.DataType]) -> bool:
        """Return whether it evaluates to its result type for NULLs of these types."""
        try:
            inferred = engine.bind_node(self.node, _placeholder_schema(sources)).type
            self._evaluate([pa.nulls(1, source) for source in sources])
        except (engine.BadExpression, NotExpressible, pa.ArrowException):
            return False
        return pt.is_null(inferred) or _is_consistent(inferred, self.result)

    def sql(self, *sources: pa.DataType) -> str:
        return self.text

    def label(self, *names: str) -> str:
        return f"expression({self.text!r}, {', '.join(names)})"

    def project(self, atom: AtomicPredicate, source: pa.DataType, target: Column) -> Projection:
        match atom:
            case In(values=values):
                return self._project_values(values, target)
            case IsNull():
                return self._project_values(pa.nulls(1, source), target)
        return Projection(TRUE, False, "only equality can be projected through an expression")

    def _project_values(self, values: pa.Array, target: Column) -> Projection:
        found = drop_duplicates(self.apply(values))
        reason = "a partition of the expression may hold many values"
        return Projection(one_of(target, found), False, reason)


@lru_cache(maxsize=256)
def _guess_null_types(
    expression: Expression, sources: tuple[pa.DataType, ...]
) -> tuple[pa.DataType, ...]:
    """Replace each NULL type with a type that the expression accepts.

    A dropped source counts as NULL (format: Partition Expression), and its type is unknown.
    """
    for guess in islice(_list_guesses(expression.result, sources.count(pa.null())), _MAX_GUESSES):
        missing = iter(guess)
        typed = tuple(next(missing) if pt.is_null(kind) else kind for kind in sources)
        if expression.can_compute(typed):
            return typed
    return sources


def _list_guesses(result: pa.DataType, count: int) -> Iterator[tuple[pa.DataType, ...]]:
    """Yield types for `count` sources: first all the same, then every combination."""
    possible = (pa.null(), result, *_POSSIBLE_TYPES)
    yield from ((kind,) * count for kind in possible)
    yield from product(possible, repeat=count)


def build_expression(text: str, sources: Sequence[pa.DataType], result: pa.DataType) -> Transform:
    """Build the transform of an expression over sources of these types.

    Return the well-known transform if the expression spells one out. Raise `InvalidSpec` with the
    requirement of the format that it violates.
    """
    if pt.is_nested(result) or pt.is_null(result) or pt.is_dictionary(result):
        raise _expression_error(text, f"its result type {result} cannot be a partition value")
    try:
        type_to_json(result)
    except InvalidSchema:
        raise _expression_error(
            text, f"its result type {result} cannot be stored in a spec. Cast it to another"
        ) from None
    node = _parse(text, len(sources))
    if (known := match_well_known(node, len(sources), result)) is not None:
        return _check_well_known(text, node, known, sources, result)
    if len(sources) > 1 and (narrower := match_well_known(node, 1, result)) is not None:
        raise _expression_error(text, f"it is {narrower.name} of col0 only, so it takes one column")
    try:
        inferred = engine.bind_node(node, _placeholder_schema(sources)).type
    except engine.BadExpression as error:
        raise _expression_error(text, str(error)) from None
    if not _is_consistent(inferred, result):
        raise _expression_error(
            text, f"it gives {inferred}, but its result type is declared {result}"
        )
    expression = Expression(text, result, node)
    _check_null(expression, sources)
    if (conflict := find_width_conflict(expression, sources)) is not None:
        raise _expression_error(text, conflict)
    return expression


def read_expression(text: object, sources: int, result: pa.DataType) -> Transform:
    """Read an expression of a stored spec, whose source types are not known yet."""
    if not isinstance(text, str):
        raise InvalidSpec(f"Cannot use the expression {text!r}: expected SQL text.")
    node = _parse(text, sources)
    return match_well_known(node, sources, result) or Expression(text, result, node)


def _parse(text: str, sources: int) -> Node:
    try:
        node = engine.parse_expression(text, _placeholder_schema([pa.null()] * sources))
    except engine.BadExpression as error:
        raise _expression_error(text, str(error)) from None
    except NotExpressible as error:
        raise _expression_error(text, f"{error} cannot be used in a partition expression") from None
    _check_functions(text, node)
    return node


def _check_well_known(
    text: str, node: Node, known: Transform, sources: Sequence[pa.DataType], declared: pa.DataType
) -> Transform:
    expected = known.result_type(*sources)
    if _parse(known.sql(*sources), len(sources)) != node:
        raise _expression_error(
            text, f"for {sources[0]} it is not {known.name}: {known.sql(*sources)!r} is"
        )
    if declared != expected:
        raise _expression_error(
            text, f"it is the transform {known.name}, whose type is {expected}, not {declared}"
        )
    return known


def _expression_error(text: str, why: str) -> InvalidSpec:
    end = "" if why.endswith((".", "?")) else "."
    return InvalidSpec(f"Cannot use the expression {format_value(text)}: {why}{end}")


def _check_functions(text: str, node: Node) -> None:
    for part in walk_nodes(node):
        if isinstance(part, Call) and part.name in list_volatile_functions():
            raise _expression_error(
                text, f"{part.name}() is volatile, and a partition must depend on the row only"
            )


def _is_consistent(inferred: pa.DataType, declared: pa.DataType) -> bool:
    """Return whether a safe cast between the types changes only the width."""
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
        raise _expression_error(expression.text, f"it fails for NULL: {error}") from None


def _placeholder_schema(sources: Sequence[pa.DataType]) -> pa.Schema:
    return pa.schema([(f"col{position}", _utc_type(kind)) for position, kind in enumerate(sources)])


def _utc_type(source: pa.DataType) -> pa.DataType:
    if pt.is_dictionary(source):
        return _utc_type(source.value_type)
    zoned = pt.is_timestamp(source) and source.tz is not None
    return pa.timestamp(source.unit, "UTC") if zoned else source


def _to_utc(column: pa.Array) -> pa.Array:
    return column.cast(_utc_type(column.type))


def match_well_known(node: Node, sources: int, result: pa.DataType) -> Transform | None:
    """Return the well-known transform that the expression spells out, or None.

    The result type selects between the text and number forms of truncate.
    """
    if sources == 1:
        match node:
            case Column(path=("col0",)):
                return IDENTITY
            case Call(name="date_part", args=(Constant(value=part), Column(path=("col0",)))):
                return next((known for known in DATE_CHAIN if known.name == part.as_py()), None)
            case Call(name="left", args=(Column(path=("col0",)), Constant(value=width))):
                return _match_truncate(width) if is_string_type(result) else None
            case Call(
                name="-",
                args=(
                    Column(path=("col0",)),
                    Call(name="%", args=(Column(path=("col0",)), Constant(value=width))),
                ),
            ):
                return _match_truncate(width) if _is_number(result) else None
    match node:
        case Call(name="%", args=(Call(name="abs", args=(hashed,)), Constant(value=count))):
            return _match_bucket(hashed, count, sources)
    return None


def _match_bucket(hashed: Node, count: pa.Scalar, sources: int) -> Transform | None:
    if not pt.is_integer(count.type) or count.as_py() < 1:
        return None
    match hashed:
        case Call(name="murmur3", args=(Column(path=("col0",)),)) if sources == 1:
            return Bucket(count.as_py())
        case Call(name="murmur3_multi", args=args):
            if args == tuple(Column((f"col{position}",)) for position in range(sources)):
                return MultiBucket(count.as_py())
    return None


def _match_truncate(width: pa.Scalar) -> Transform | None:
    if not pt.is_integer(width.type) or width.as_py() < 1:
        return None
    return Truncate(width.as_py())


def _is_number(result: pa.DataType) -> bool:
    return bool(pt.is_integer(result) or pt.is_floating(result) or pt.is_decimal(result))
