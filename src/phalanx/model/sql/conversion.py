"""Conversion of DataFusion's expression objects to `Node` values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from phalanx.errors import PhalanxError
from phalanx.model.sql.literals import NotExpressible, to_type_name
from phalanx.model.sql.session import parse_arrow_type
from phalanx.model.sql.syntax import (
    INFIX_OPERATORS,
    Call,
    Case,
    Cast,
    Column,
    Constant,
    InList,
    LikePattern,
    Node,
)


class NotPerRow(PhalanxError):
    """The expression has an aggregate, window, subquery or parameter: no function of one row."""


_NOT_PER_ROW = {
    "AggregateFunction": "the aggregate function",
    "WindowFunction": "the window function",
    "Exists": "the subquery",
    "InSubquery": "the subquery",
    "ScalarSubquery": "the subquery",
    "SetComparison": "the subquery",
    "OuterReferenceColumn": "the outer column",
    "Placeholder": "the parameter",
    "Unnest": "the set-returning function",
    "Wildcard": "the wildcard",
    "GroupingSet": "the grouping set",
}
_TESTS = {
    "IsNull": "IS NULL",
    "IsNotNull": "IS NOT NULL",
    "IsTrue": "IS TRUE",
    "IsNotTrue": "IS NOT TRUE",
    "IsFalse": "IS FALSE",
    "IsNotFalse": "IS NOT FALSE",
    "IsUnknown": "IS UNKNOWN",
    "IsNotUnknown": "IS NOT UNKNOWN",
}
# Operators whose displayed name differs from their SQL.
_OPERATOR_SPELLINGS = {"BIT_XOR": "^"}


def to_node(expression: Any) -> Node:
    """Convert an expression to a `Node`; raise `NotPerRow` or `NotExpressible` if it has none."""
    kind = expression.variant_name()
    if (what := _NOT_PER_ROW.get(kind)) is not None:
        raise NotPerRow(f"{what} {expression.canonical_name()}")
    if (test := _TESTS.get(kind)) is not None:
        return Call(test, (to_node(expression.to_variant().expr()),))
    if kind == "BinaryExpr":
        return _convert_binary(expression)
    if (convert := _CONVERTERS.get(kind)) is not None:
        return convert(expression)
    raise NotExpressible(f"{kind} {expression.canonical_name()}")


def _convert_binary(expression: Any) -> Node:
    """Convert an operator. A chain of AND or OR may be very long: make it a balanced tree."""
    variant = expression.to_variant()
    operator, right = _OPERATOR_SPELLINGS.get(variant.op(), variant.op()), variant.right()
    if operator not in INFIX_OPERATORS:
        raise NotExpressible(f"operator {operator}")
    if operator not in ("AND", "OR"):
        return Call(operator, (to_node(variant.left()), to_node(right)))
    operands = [right]
    expression = variant.left()
    while expression.variant_name() == "BinaryExpr":
        variant = expression.to_variant()
        if variant.op() != operator:
            break
        operands.append(variant.right())
        expression = variant.left()
    operands.append(expression)
    return _balance(operator, [to_node(operand) for operand in reversed(operands)])


def _balance(operator: str, operands: list[Node]) -> Node:
    if len(operands) == 1:
        return operands[0]
    middle = len(operands) // 2
    halves = (operands[:middle], operands[middle:])
    return Call(operator, tuple(_balance(operator, half) for half in halves))


def _convert_alias(expression: Any) -> Node:
    return to_node(expression.to_variant().expr())


def _convert_column(expression: Any) -> Node:
    return Column((expression.to_variant().name(),))


def _convert_literal(expression: Any) -> Node:
    return Constant(decode_constant(expression.python_value()))


def decode_constant(value: pa.Scalar) -> pa.Scalar:
    """Return a constant without dictionary encoding or view layout."""
    if isinstance(value, pa.Int64Scalar | pa.Int32Scalar | pa.StringScalar):
        return value
    if pt.is_dictionary(value.type):
        return value.value if value.is_valid else pa.scalar(None, value.type.value_type)
    if pt.is_string_view(value.type):
        return value.cast(pa.string())
    if pt.is_binary_view(value.type):
        return value.cast(pa.binary())
    return value


def _convert_function(expression: Any) -> Node:
    name = expression.rex_call_operator()
    args = tuple(to_node(arg) for arg in expression.rex_call_operands())
    match name, args:
        case "get_field", (Column(path=path), *keys):
            names = [key.value.as_py() for key in keys if isinstance(key, Constant)]
            if len(names) == len(keys) and all(isinstance(name, str) for name in names):
                return Column((*path, *names))
        case "arrow_cast" | "arrow_try_cast", (arg, Constant(value=kind)):
            if (target := _parse_writable_type(kind.as_py())) is not None:
                return Cast(arg, target, strict=name == "arrow_cast")
        case "date_part", (Constant(value=part), arg) if pt.is_string(part.type):
            return Call(name, (Constant(pa.scalar(part.as_py().lower())), arg))
    return Call(name, args)


def _convert_not(expression: Any) -> Node:
    return Call("NOT", (to_node(expression.to_variant().expr()),))


def _convert_negative(expression: Any) -> Node:
    return Call("-", (to_node(expression.to_variant().expr()),))


def _convert_cast(expression: Any) -> Node:
    target = _parse_cast_type(expression.canonical_name())
    return Cast(to_node(expression.to_variant().expr()), target)


def _convert_try_cast(expression: Any) -> Node:
    target = _parse_cast_type(expression.canonical_name())
    return Cast(to_node(expression.to_variant().expr()), target, strict=False)


def _parse_cast_type(rendered: str) -> pa.DataType:
    """Return the type in `CAST(… AS type)`: the Python binding has it only as text."""
    return _parse_type(rendered[rendered.rindex(" AS ") + len(" AS ") : -1])


def _parse_writable_type(name: str) -> pa.DataType | None:
    """Return the type with this name, or None if Phalanx cannot render it as SQL."""
    try:
        found = _parse_type(name)
        to_type_name(found)
    except NotExpressible:
        return None
    return found


def _parse_type(name: str) -> pa.DataType:
    try:
        return parse_arrow_type(name)
    except Exception as error:
        raise NotExpressible(f"cast to {name}") from error


def _convert_in_list(expression: Any) -> Node:
    variant = expression.to_variant()
    listed = variant.list()
    try:
        # Fast path: lists of constants are the most common, and the only ones that get long.
        items: tuple[Node, ...] = tuple(
            Constant(decode_constant(item.python_value())) for item in listed
        )
    except Exception:
        items = tuple(map(to_node, listed))
    return InList(to_node(variant.expr()), items, variant.negated())


def _convert_like(expression: Any) -> Node:
    variant = expression.to_variant()
    if variant.escape_char() not in (None, "", "\\"):
        raise NotExpressible(f"LIKE with ESCAPE '{variant.escape_char()}'")
    sensitive = "ilike" not in expression.rex_call_operator()
    pattern = to_node(variant.pattern())
    return LikePattern(to_node(variant.expr()), pattern, variant.negated(), sensitive)


def _convert_similar_to(expression: Any) -> Node:
    """Convert SIMILAR TO, which DataFusion evaluates as a regular expression match."""
    variant = expression.to_variant()
    if variant.escape_char() is not None:
        raise NotExpressible(f"SIMILAR TO with ESCAPE '{variant.escape_char()}'")
    operator = "!~" if variant.negated() else "~"
    return Call(operator, (to_node(variant.expr()), to_node(variant.pattern())))


def _convert_between(expression: Any) -> Node:
    variant = expression.to_variant()
    arg, low, high = (to_node(part()) for part in (variant.expr, variant.low, variant.high))
    if variant.negated():
        return Call("OR", (Call("<", (arg, low)), Call(">", (arg, high))))
    return Call("AND", (Call(">=", (arg, low)), Call("<=", (arg, high))))


def _convert_case(expression: Any) -> Node:
    variant = expression.to_variant()
    operand, otherwise = variant.expr(), variant.else_expr()
    return Case(
        None if operand is None else to_node(operand),
        tuple((to_node(when), to_node(then)) for when, then in variant.when_then_expr()),
        None if otherwise is None else to_node(otherwise),
    )


_CONVERTERS: dict[str, Callable[[Any], Node]] = {
    "Alias": _convert_alias,
    "Column": _convert_column,
    "Literal": _convert_literal,
    "ScalarFunction": _convert_function,
    "Not": _convert_not,
    "Negative": _convert_negative,
    "Cast": _convert_cast,
    "TryCast": _convert_try_cast,
    "InList": _convert_in_list,
    "Like": _convert_like,
    "RLike": _convert_similar_to,
    "Between": _convert_between,
    "Case": _convert_case,
}
