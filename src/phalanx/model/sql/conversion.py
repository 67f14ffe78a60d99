"""From DataFusion's expression objects to `Node` values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from phalanx.errors import PhalanxError
from phalanx.model.sql.literals import NotExpressible, type_name
from phalanx.model.sql.session import type_called
from phalanx.model.sql.syntax import (
    INFIX_OPERATORS,
    Call,
    Case,
    Cast,
    Column,
    InList,
    LikePattern,
    Literal,
    Node,
)


class NotPerRow(PhalanxError):
    """An aggregate, a window, a subquery or a parameter: not a function of one row."""


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


# Operators that DataFusion shows by another name than it reads.
_SPELLED = {"BIT_XOR": "^"}


def to_node(expression: Any) -> Node:
    """The expression as a `Node`; raises `NotPerRow` or `NotExpressible`."""
    kind = expression.variant_name()
    if (what := _NOT_PER_ROW.get(kind)) is not None:
        raise NotPerRow(f"{what} {expression.canonical_name()}")
    if (test := _TESTS.get(kind)) is not None:
        return Call(test, (to_node(expression.to_variant().expr()),))
    if kind == "BinaryExpr":
        return _binary(expression)
    if (convert := _CONVERTERS.get(kind)) is not None:
        return convert(expression)
    raise NotExpressible(f"{kind} {expression.canonical_name()}")


def _binary(expression: Any) -> Node:
    """An operator; a chain of AND or OR, which may be very long, becomes a balanced tree."""
    variant = expression.to_variant()
    operator, right = _SPELLED.get(variant.op(), variant.op()), variant.right()
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
    return _balanced(operator, [to_node(operand) for operand in reversed(operands)])


def _balanced(operator: str, operands: list[Node]) -> Node:
    if len(operands) == 1:
        return operands[0]
    middle = len(operands) // 2
    halves = (operands[:middle], operands[middle:])
    return Call(operator, tuple(_balanced(operator, half) for half in halves))


def _alias(expression: Any) -> Node:
    return to_node(expression.to_variant().expr())


def _column(expression: Any) -> Node:
    return Column((expression.to_variant().name(),))


def _literal(expression: Any) -> Node:
    return Literal(decoded(expression.python_value()))


def decoded(value: pa.Scalar) -> pa.Scalar:
    """A constant in the plain type of its values."""
    if isinstance(value, pa.Int64Scalar | pa.Int32Scalar | pa.StringScalar):
        return value
    if pt.is_dictionary(value.type):
        return value.value if value.is_valid else pa.scalar(None, value.type.value_type)
    if pt.is_string_view(value.type):
        return value.cast(pa.string())
    if pt.is_binary_view(value.type):
        return value.cast(pa.binary())
    return value


def _function(expression: Any) -> Node:
    name = expression.rex_call_operator()
    args = tuple(to_node(arg) for arg in expression.rex_call_operands())
    match name, args:
        case "get_field", (Column(path=path), *keys):
            names = [key.value.as_py() for key in keys if isinstance(key, Literal)]
            if len(names) == len(keys) and all(isinstance(name, str) for name in names):
                return Column((*path, *names))
        case "arrow_cast" | "arrow_try_cast", (arg, Literal(value=kind)):
            if (target := _writable_type(kind.as_py())) is not None:
                return Cast(arg, target, strict=name == "arrow_cast")
        case "date_part", (Literal(value=part), arg) if pt.is_string(part.type):
            return Call(name, (Literal(pa.scalar(part.as_py().lower())), arg))
    return Call(name, args)


def _not(expression: Any) -> Node:
    return Call("NOT", (to_node(expression.to_variant().expr()),))


def _negative(expression: Any) -> Node:
    return Call("-", (to_node(expression.to_variant().expr()),))


def _cast(expression: Any) -> Node:
    target = _target_type(expression.canonical_name())
    return Cast(to_node(expression.to_variant().expr()), target)


def _try_cast(expression: Any) -> Node:
    target = _target_type(expression.canonical_name())
    return Cast(to_node(expression.to_variant().expr()), target, strict=False)


def _target_type(shown: str) -> pa.DataType:
    """The type in `CAST(… AS type)`: the binding tells it only as text."""
    return _type_called(shown[shown.rindex(" AS ") + len(" AS ") : -1])


def _writable_type(name: str) -> pa.DataType | None:
    """The type of this name, if it can be written down again."""
    try:
        found = _type_called(name)
        type_name(found)
    except NotExpressible:
        return None
    return found


def _type_called(name: str) -> pa.DataType:
    try:
        return type_called(name)
    except Exception as error:
        raise NotExpressible(f"cast to {name}") from error


def _in_list(expression: Any) -> Node:
    variant = expression.to_variant()
    listed = variant.list()
    try:
        # By far the most common list, and the only one that gets long.
        items: tuple[Node, ...] = tuple(Literal(decoded(item.python_value())) for item in listed)
    except Exception:
        items = tuple(map(to_node, listed))
    return InList(to_node(variant.expr()), items, variant.negated())


def _like(expression: Any) -> Node:
    variant = expression.to_variant()
    if variant.escape_char() not in (None, "", "\\"):
        raise NotExpressible(f"LIKE with ESCAPE '{variant.escape_char()}'")
    sensitive = "ilike" not in expression.rex_call_operator()
    pattern = to_node(variant.pattern())
    return LikePattern(to_node(variant.expr()), pattern, variant.negated(), sensitive)


def _similar(expression: Any) -> Node:
    """SIMILAR TO, which DataFusion takes for a match of a regular expression."""
    variant = expression.to_variant()
    if variant.escape_char() is not None:
        raise NotExpressible(f"SIMILAR TO with ESCAPE '{variant.escape_char()}'")
    operator = "!~" if variant.negated() else "~"
    return Call(operator, (to_node(variant.expr()), to_node(variant.pattern())))


def _between(expression: Any) -> Node:
    variant = expression.to_variant()
    arg, low, high = (to_node(part()) for part in (variant.expr, variant.low, variant.high))
    if variant.negated():
        return Call("OR", (Call("<", (arg, low)), Call(">", (arg, high))))
    return Call("AND", (Call(">=", (arg, low)), Call("<=", (arg, high))))


def _case(expression: Any) -> Node:
    variant = expression.to_variant()
    operand, otherwise = variant.expr(), variant.else_expr()
    return Case(
        None if operand is None else to_node(operand),
        tuple((to_node(when), to_node(then)) for when, then in variant.when_then_expr()),
        None if otherwise is None else to_node(otherwise),
    )


_CONVERTERS: dict[str, Callable[[Any], Node]] = {
    "Alias": _alias,
    "Column": _column,
    "Literal": _literal,
    "ScalarFunction": _function,
    "Not": _not,
    "Negative": _negative,
    "Cast": _cast,
    "TryCast": _try_cast,
    "InList": _in_list,
    "Like": _like,
    "RLike": _similar,
    "Between": _between,
    "Case": _case,
}
