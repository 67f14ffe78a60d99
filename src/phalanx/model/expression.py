"""Partition expressions (format: Partition Expression): SQL over `col0`, `col1`, …

The six requirements of the format are checked when an expression is made, so that a spec that
exists can be trusted. An expression that *is* a well-known transform is stored as that transform.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.types as pt

from phalanx.errors import InvalidSpec, SchemaMismatch
from phalanx.model import engine
from phalanx.model.buckets import Bucket, MultiBucket
from phalanx.model.calendar_parts import DATE_CHAIN
from phalanx.model.literals import NotExpressible, distinct, one_form
from phalanx.model.predicate import TRUE, In, IsNull, Leaf, among
from phalanx.model.session import volatile_functions
from phalanx.model.syntax import Call, Column, Literal, Node, walk
from phalanx.model.transform import IDENTITY, Projection, Transform
from phalanx.model.truncate import Truncate

_SIGNED = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_UNSIGNED = (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
_FLOATS = (pa.float16(), pa.float32(), pa.float64())
_WHOLE_SAMPLES = (0, 1, -1, 2, 5, -7, 10, 34, 100, 127, -128, 255, 1000, 32767, -32768, 10**6)
# The long one is 0.1 in 32 bits, which 64 bits hold too.
_FLOAT_SAMPLES = (0.0, 0.5, -1.5, 0.10000000149011612, 2.0, 3.25, 1e4, -1e4, math.inf, math.nan)


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
        available = {f"col{place}": _in_utc(one_form(col)) for place, col in enumerate(columns)}
        try:
            values = engine.evaluate(self.node, available, len(columns[0]))
            return one_form(values.cast(self.result))
        except (engine.BadExpression, pa.ArrowInvalid) as error:
            raise SchemaMismatch(
                f"Cannot compute the partition value {self.text!r} as {self.result}: {error}"
            ) from None

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


def checked(text: str, sources: Sequence[pa.DataType], result: pa.DataType) -> Transform:
    """The expression over sources of these types, as a transform if it is a well-known one.

    Raises `InvalidSpec` that says which requirement of the format it breaks.
    """
    if pt.is_nested(result) or pt.is_null(result) or pt.is_dictionary(result):
        raise _refused(text, f"its result type {result} cannot be a partition value")
    node = _parse(text, len(sources))
    if (known := well_known(node, len(sources))) is not None:
        return _checked_known(text, node, known, sources, result)
    if len(sources) > 1 and (narrower := well_known(node, 1)) is not None:
        raise _refused(text, f"it is {narrower.name} of col0 alone, so it takes one column")
    schema = pa.schema([(f"col{place}", _utc_type(kind)) for place, kind in enumerate(sources)])
    try:
        inferred = engine.bind_node(node, schema).type
    except engine.BadExpression as error:
        raise _refused(text, str(error)) from None
    if not _is_consistent(inferred, result):
        raise _refused(text, f"it gives {inferred}, but its result type is declared {result}")
    expression = Expression(text, result, node)
    _check_null(expression, sources)
    _check_widths(expression, sources)
    return expression


def parsed(text: object, sources: int, result: pa.DataType) -> Transform:
    """An expression read from a stored spec, whose source types are not known yet."""
    if not isinstance(text, str):
        raise InvalidSpec(f"Cannot use the expression {text!r}: expected SQL text.")
    node = _parse(text, sources)
    return well_known(node, sources) or Expression(text, result, node)


def _parse(text: str, sources: int) -> Node:
    placeholders = pa.schema([(f"col{place}", pa.null()) for place in range(sources)])
    try:
        node = engine.parse(text, placeholders)
    except engine.BadExpression as error:
        raise _refused(text, str(error)) from None
    except NotExpressible as error:
        raise _refused(text, f"{error} cannot be used in a partition expression") from None
    _check_functions(text, node)
    return node


def well_known(node: Node, sources: int) -> Transform | None:
    """The well-known transform that the expression spells out; None for any other expression."""
    if sources == 1:
        match node:
            case Column(path=("col0",)):
                return IDENTITY
            case Call(name="date_part", args=(Literal(value=part), Column(path=("col0",)))):
                return next((known for known in DATE_CHAIN if known.name == part.as_py()), None)
            case Call(name="left", args=(Column(path=("col0",)), Literal(value=width))):
                return _truncate(width)
            case Call(
                name="-",
                args=(
                    Column(path=("col0",)),
                    Call(name="%", args=(Column(path=("col0",)), Literal(value=width))),
                ),
            ):
                return _truncate(width)
    match node:
        case Call(name="%", args=(Call(name="abs", args=(hashed,)), Literal(value=count))):
            return _well_known_bucket(hashed, count, sources)
    return None


def _well_known_bucket(hashed: Node, count: pa.Scalar, sources: int) -> Transform | None:
    if not pt.is_integer(count.type) or count.as_py() < 1:
        return None
    match hashed:
        case Call(name="murmur3", args=(Column(path=("col0",)),)) if sources == 1:
            return Bucket(count.as_py())
        case Call(name="murmur3_multi", args=args):
            if args == tuple(Column((f"col{place}",)) for place in range(sources)):
                return MultiBucket(count.as_py())
    return None


def _truncate(width: pa.Scalar) -> Transform | None:
    if not pt.is_integer(width.type) or width.as_py() < 1:
        return None
    return Truncate(width.as_py())


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
    return InvalidSpec(f"Cannot use the expression {text!r}: {why}{end}")


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


def _check_widths(expression: Expression, sources: Sequence[pa.DataType]) -> None:
    """The format's third requirement, tried on samples in every width that can hold them."""
    alone = [(place,) for place in range(len(sources))]
    alike = [tuple(n for n, kind in enumerate(sources) if kind == one) for one in sources]
    for places in dict.fromkeys([*alone, *alike]):
        source = sources[places[0]]
        for other in _other_widths(source):
            samples = list(_samples(source, other))
            pairs = zip(
                _values(expression, sources, places, pa.array(samples, source)),
                _values(expression, sources, places, pa.array(samples, other)),
                strict=True,
            )
            for sample, (one, two) in zip(samples, pairs, strict=True):
                # What only the narrower type fails on could never be written in it.
                lost = two is None and other.bit_width > source.bit_width
                if one is not None and (lost or (two is not None and str(one) != str(two))):
                    raise _refused(
                        expression.text,
                        f"{sample} as {source} gives {one} but as {other} gives "
                        f"{'an error' if two is None else two}, "
                        "and equal numbers must fall in one partition",
                    )


def _other_widths(source: pa.DataType) -> Iterator[pa.DataType]:
    for family in (_SIGNED, _UNSIGNED, _FLOATS):
        if source in family:
            # Nothing is ever narrowed to a half float, which DataFusion compares oddly.
            yield from (kind for kind in family if kind not in (source, pa.float16()))
    if pt.is_decimal(source) and source.precision < 38:
        yield pa.decimal128(38, source.scale)


def _samples(source: pa.DataType, other: pa.DataType) -> Iterator[Any]:
    """Values that both types hold exactly."""
    extremes = (2 ** (kind.bit_width - sign) - 1 for kind in (source, other) for sign in (0, 1))
    whole = (*_WHOLE_SAMPLES, *extremes)
    for sample in _FLOAT_SAMPLES if pt.is_floating(source) else whole:
        try:
            held = pa.scalar(sample, source).as_py()
            if repr(pa.scalar(held, other).as_py()) == repr(held):
                yield held
        except (pa.ArrowInvalid, OverflowError):
            continue


def _values(
    expression: Expression, sources: Sequence[pa.DataType], places: Sequence[int], samples: pa.Array
) -> list[pa.Scalar | None]:
    """The partition values of the samples in some sources; None where one cannot be had."""
    fillers = (_filler(source, len(samples)) for source in sources)
    columns = [samples if place in places else filler for place, filler in enumerate(fillers)]
    try:
        return list(expression.apply(*columns))
    except SchemaMismatch:
        if len(samples) == 1:
            return [None]
    singles = (samples.slice(index, 1) for index in range(len(samples)))
    return [value for one in singles for value in _values(expression, sources, places, one)]


def _filler(source: pa.DataType, rows: int) -> pa.Array:
    for plain in (1, "a", b"a", True):
        try:
            return pa.array([plain] * rows, source)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
            continue
    return pa.nulls(rows, source)


def _utc_type(source: pa.DataType) -> pa.DataType:
    if pt.is_dictionary(source):
        return _utc_type(source.value_type)
    zoned = pt.is_timestamp(source) and source.tz is not None
    return pa.timestamp(source.unit, "UTC") if zoned else source


def _in_utc(column: pa.Array) -> pa.Array:
    return column.cast(_utc_type(column.type))
