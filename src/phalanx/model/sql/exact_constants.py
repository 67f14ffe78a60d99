"""Conversion of constants to the type of what they are compared with, without rounding.

DataFusion parses `0.1` as a float, rounds the text '0.105' to a decimal of two places, and fails on
a timestamp that the column's unit cannot hold. Here a constant keeps its exact value. If the other
side cannot have that value, it is compared with the next smaller one, or depends on NULL alone.

A comparison with a float on either side is done as float64, as SQL does for approximate numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import TypeAlias

import pyarrow as pa
import pyarrow.types as pt

from phalanx.errors import PhalanxError
from phalanx.model.sql.exact_order import can_compare_exactly, find_floor
from phalanx.model.sql.literals import add_both_zeros, is_text
from phalanx.model.sql.syntax import (
    Call,
    Case,
    Cast,
    Column,
    Constant,
    InList,
    Node,
    find_columns,
    map_nodes,
)

InferType: TypeAlias = Callable[[Node], pa.DataType]
Fold: TypeAlias = Callable[[Node], Node]

_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "!=": "!="}
_DISTINCTIONS = frozenset({"IS DISTINCT FROM", "IS NOT DISTINCT FROM"})
_COMPARISONS = frozenset(_MIRRORED) | _DISTINCTIONS
_EXACT_OPERATORS = frozenset({"+", "-", "*", "%"})
# Functions that return one of their arguments.
_CHOICES = frozenset({"coalesce", "nvl", "ifnull", "nvl2", "nullif", "greatest", "least"})
_BOOLEAN = pa.scalar(None, pa.bool_())
# Arrow's limit.
MAX_DECIMAL_DIGITS = 76


def make_constants_exact(node: Node, infer_type: InferType, fold: Fold) -> Node:
    """Make every comparison of a parsed expression, whose numbers are decimals, exact.

    `infer_type` returns DataFusion's type of a part; `fold` evaluates a part without columns.
    """
    typer = _ConstantConverter(infer_type, fold)
    return map_nodes(node, typer.convert)


def false_or_null(term: Node) -> Node:
    """Return an expression that is FALSE, but NULL where the term is NULL."""
    return Call("AND", (Call("IS NULL", (term,)), Constant(_BOOLEAN)))


def true_or_null(term: Node) -> Node:
    """Return an expression that is TRUE, but NULL where the term is NULL."""
    return Call("OR", (Call("IS NOT NULL", (term,)), Constant(_BOOLEAN)))


class _ConstantConverter:
    """Converts the constants of an expression from its operands upwards."""

    def __init__(self, infer_type: InferType, fold: Fold) -> None:
        self._infer_type = infer_type
        self._fold = fold

    def convert(self, node: Node) -> Node:
        """Convert the constants of a node; those of its parts are converted already."""
        match node:
            case Cast(arg=Constant() as constant, type=kind):
                if is_text(constant.value.type) and kind == pa.timestamp("ns"):
                    # `TIMESTAMP '9999-12-31'` is out of the range of nanoseconds.
                    timestamp = self._to_timestamp(constant, None)
                    return self._fold(node) if timestamp is None else Constant(timestamp)
                return self._fold(node)
            case Call(name=name, args=(left, right)) if name in _COMPARISONS:
                return self._convert_comparison(name, left, right, node)
            case InList(arg=arg, items=items, negated=negated):
                return self._convert_membership(arg, items, negated, node)
            case Call(name=name, args=args) if name in _EXACT_OPERATORS and len(args) == 2:
                return self._align_decimals(node, args, lambda kept: replace(node, args=kept))
            case Call(name=name, args=args) if name in _CHOICES:
                return self._align_decimals(node, args, lambda kept: replace(node, args=kept))
            case Call(name="AND" | "OR" | "NOT"):
                return node
            case Call(args=args) if any(map(_is_decimal, args)):
                return replace(node, args=tuple(map(_to_float_node, args)))
            case Case():
                return self._convert_case(node)
        return node

    def _convert_case(self, node: Case) -> Node:
        """Align the values of a CASE with each other, and a tested operand with its tests."""
        if (operand := node.operand) is not None:
            tests = tuple(
                (self._convert_comparison("=", operand, when, Call("=", (operand, when))), then)
                for when, then in node.branches
            )
            if all(
                test == Call("=", (operand, when))
                for (test, _), (when, _) in zip(tests, node.branches, strict=True)
            ):
                tests = node.branches
            else:
                operand = None
            node = Case(operand, tests, node.otherwise)
        values = [then for _, then in node.branches]
        values += [] if node.otherwise is None else [node.otherwise]

        def rebuild(kept: tuple[Node, ...]) -> Node:
            pairs = zip(node.branches, kept, strict=False)
            branches = tuple((when, value) for (when, _), value in pairs)
            return Case(node.operand, branches, None if node.otherwise is None else kept[-1])

        return self._align_decimals(node, tuple(values), rebuild)

    def _align_decimals(
        self, node: Node, args: tuple[Node, ...], rebuild: Callable[[tuple[Node, ...]], Node]
    ) -> Node:
        """Turn decimal constants into floats if another argument is neither integer nor decimal."""
        if not any(map(_is_decimal, args)):
            return node
        others = [self._type_of(arg) for arg in args if not _is_decimal(arg)]
        if all(pt.is_integer(kind) or pt.is_decimal(kind) or pt.is_null(kind) for kind in others):
            return node
        return rebuild(tuple(map(_to_float_node, args)))

    def _convert_comparison(self, operator: str, left: Node, right: Node, node: Node) -> Node:
        if not find_columns(left):
            left, right = right, left
            operator = _MIRRORED.get(operator, operator)
        if not find_columns(left):
            return node
        if find_columns(right):
            return self._convert_term_comparison(operator, left, right, node)
        constant = self._fold(right)
        if not isinstance(constant, Constant) or not constant.value.is_valid:
            return node
        found = self._compare_exactly(operator, left, constant.value)
        return node if found is None else found

    def _convert_term_comparison(self, operator: str, left: Node, right: Node, node: Node) -> Node:
        """Compare two terms in a common type that holds the values of both."""
        kinds = self._type_of(left), self._type_of(right)
        if any(map(pt.is_decimal, kinds)):
            if any(map(pt.is_floating, kinds)):
                wide: pa.DataType = pa.float64()
            elif (common := _find_common_decimal(*kinds)) is not None:
                wide = common
            else:
                return node
            sides = zip((left, right), kinds, strict=True)
            return Call(
                operator,
                tuple(side if kind == wide else Cast(side, wide) for side, kind in sides),
            )
        return node

    def _compare_exactly(self, operator: str, term: Node, value: pa.Scalar) -> Node | None:
        """Return `term operator value` with a constant of the term's type; None to keep it."""
        kind = self._type_of(term)
        if kind == value.type:
            return None
        if pt.is_floating(kind):
            if not (pt.is_decimal(value.type) or pt.is_integer(value.type)):
                return None
            return Call(operator, (term, Constant(_to_float(value))))
        if pt.is_decimal(kind) and pt.is_floating(value.type):
            if not _is_beyond_decimals(value):
                return Call(operator, (Cast(term, pa.float64()), Constant(_to_float(value))))
        elif (comparable := self._to_comparable(kind, value)) is None:
            return None
        else:
            value = comparable
        return _compare_with_floor(operator, term, kind, value)

    def _to_comparable(self, kind: pa.DataType, value: pa.Scalar) -> pa.Scalar | None:
        """Return the constant in a type that compares exactly with `kind`; None if none does."""
        if pt.is_integer(kind) and pt.is_floating(value.type):
            return value if _is_beyond_decimals(value) else None
        if is_text(value.type):
            return self._parse_text(kind, value.as_py())
        if pt.is_timestamp(kind) and kind.tz is not None:
            naive = pt.is_date(value.type) or (pt.is_timestamp(value.type) and not value.type.tz)
            if naive:
                return self._to_timestamp(Constant(value), kind.tz)
        return value if can_compare_exactly(kind, value.type) else None

    def _parse_text(self, kind: pa.DataType, text: str) -> pa.Scalar | None:
        """Parse a text as a value comparable with `kind`; None if it is not one."""
        if pt.is_decimal(kind):
            return _parse_decimal(text)
        if pt.is_timestamp(kind):
            return self._to_timestamp(Constant(pa.scalar(text)), kind.tz)
        if pt.is_date(kind):
            return self._to_timestamp(Constant(pa.scalar(text)), None)
        if pt.is_time(kind):
            return self._try_cast(Constant(pa.scalar(text)), pa.time64("ns"))
        return None

    def _to_timestamp(self, constant: Constant, zone: str | None) -> pa.Scalar | None:
        """Convert a text, date or local timestamp to a timestamp of the finest unit that fits."""
        units = (
            self._try_cast(constant, pa.timestamp(unit, zone)) for unit in ("ns", "us", "ms", "s")
        )
        return next((timestamp for timestamp in units if timestamp is not None), None)

    def _try_cast(self, constant: Constant, kind: pa.DataType) -> pa.Scalar | None:
        try:
            found = self._fold(Cast(constant, kind))
        except PhalanxError:
            return None
        return found.value if isinstance(found, Constant) and found.value.is_valid else None

    def _convert_membership(
        self, arg: Node, items: tuple[Node, ...], negated: bool, node: InList
    ) -> Node:
        if not find_columns(arg):
            return node
        kind = self._type_of(arg)
        constants: list[pa.Scalar] = []
        for item in items:
            found = item if isinstance(item, Constant) or find_columns(item) else self._fold(item)
            if not isinstance(found, Constant):
                return self._expand_membership(arg, items, negated)
            constants.append(found.value)
        if all(_is_compared_exactly(arg, kind, value) for value in constants):
            return node if not pt.is_floating(kind) else _add_zeros(node, constants, kind)
        listed: list[Node] = []
        compared: Node = arg
        for value in constants:
            if not value.is_valid:
                listed.append(Constant(value))
                continue
            match self._compare_exactly("=", arg, value) or Call("=", (arg, Constant(value))):
                case Call(name="=", args=(side, Constant() as constant)):
                    compared = side
                    listed.append(constant)
                case _:
                    # The term cannot have this value: only whether the term is NULL matters.
                    pass
        if not listed:
            return true_or_null(arg) if negated else false_or_null(arg)
        sides = {item.value.type for item in listed if isinstance(item, Constant)}
        if len(sides - {pa.null()}) > 1:
            return self._expand_membership(arg, items, negated)
        found = InList(compared, tuple(listed), negated)
        if pt.is_floating(kind):
            values = [item.value for item in listed if isinstance(item, Constant)]
            return _add_zeros(found, values, pa.float64())
        return found

    def _expand_membership(self, arg: Node, items: tuple[Node, ...], negated: bool) -> Node:
        """Write IN as a chain of equalities."""
        tests = [self._convert_comparison("=", arg, item, Call("=", (arg, item))) for item in items]
        found = tests[0]
        for test in tests[1:]:
            found = Call("OR", (found, test))
        return Call("NOT", (found,)) if negated else found

    def _type_of(self, node: Node) -> pa.DataType:
        match node:
            case Constant(value=value):
                return value.type
            case Cast(type=kind):
                return kind
        kind = self._infer_type(node)
        return kind.value_type if pt.is_dictionary(kind) else kind


def _compare_with_floor(
    operator: str, term: Node, kind: pa.DataType, value: pa.Scalar
) -> Node | None:
    if not can_compare_exactly(kind, value.type):
        return None
    floor, flag = find_floor(kind, value)
    if floor is not None and flag:
        return Call(operator, (term, Constant(floor)))
    match operator:
        case "=":
            return false_or_null(term)
        case "!=":
            return true_or_null(term)
        case "IS DISTINCT FROM":
            return Constant(pa.scalar(True))
        case "IS NOT DISTINCT FROM":
            return Constant(pa.scalar(False))
    if floor is None:
        is_above = flag
        return true_or_null(term) if (operator in (">", ">=")) == is_above else false_or_null(term)
    return Call({"<": "<=", ">=": ">"}.get(operator, operator), (term, Constant(floor)))


def _add_zeros(node: InList, values: Sequence[pa.Scalar], kind: pa.DataType) -> InList:
    valid = [value for value in values if value.is_valid]
    both = add_both_zeros(pa.array(valid, kind))
    if len(both) == len(valid):
        return node
    known = tuple(Constant(value) for value in both)
    unknown = tuple(
        item for item in node.items if isinstance(item, Constant) and not item.value.is_valid
    )
    return replace(node, items=known + unknown)


def _is_compared_exactly(arg: Node, kind: pa.DataType, value: pa.Scalar) -> bool:
    """Return whether DataFusion already compares the constant exactly."""
    if kind == value.type or not value.is_valid:
        return True
    return bool(
        isinstance(arg, Column)
        and pt.is_integer(kind)
        and value.type == pa.int64()
        and kind != pa.uint64()
    )


def _find_common_decimal(one: pa.DataType, two: pa.DataType) -> pa.DataType | None:
    """Return a decimal256 type for both if decimal128 has too few digits; else None."""
    shapes = [_count_digits(kind) for kind in (one, two)]
    if None in shapes:
        return None
    known = [shape for shape in shapes if shape is not None]
    scale = max(scale for _, scale in known)
    digits = max(whole for whole, _ in known) + scale
    return pa.decimal256(digits, scale) if 38 < digits <= MAX_DECIMAL_DIGITS else None


def _count_digits(kind: pa.DataType) -> tuple[int, int] | None:
    """Return the number of digits before and after the decimal point."""
    if pt.is_integer(kind):
        return 20, 0
    return (kind.precision - kind.scale, max(kind.scale, 0)) if pt.is_decimal(kind) else None


def _is_decimal(node: Node) -> bool:
    return isinstance(node, Constant) and pt.is_decimal(node.value.type)


def _to_float_node(node: Node) -> Node:
    if isinstance(node, Constant) and pt.is_decimal(node.value.type):
        return Constant(_to_float(node.value))
    return node


def _to_float(value: pa.Scalar) -> pa.Scalar:
    """Return the float nearest to a number; Arrow's cast rounds twice."""
    number = value.as_py()
    return pa.scalar(None if number is None else float(number), pa.float64())


def _is_beyond_decimals(value: pa.Scalar) -> bool:
    """Return whether a float is too large or too small for a decimal."""
    number = value.as_py()
    if number != number or number in (float("inf"), float("-inf")) or number == 0:
        return False
    size = abs(Fraction(number))
    return not Fraction(1, 10**MAX_DECIMAL_DIGITS) <= size < 10**MAX_DECIMAL_DIGITS


def _parse_decimal(text: str) -> pa.Scalar | None:
    try:
        number = Decimal(text.strip())
        _, digits, exponent = number.as_tuple()
    except InvalidOperation:
        return None
    if not isinstance(exponent, int):
        return None
    scale = max(-exponent, 0)
    precision = max(len(digits) + max(exponent, 0), scale, 1)
    if precision > MAX_DECIMAL_DIGITS:
        return None
    return pa.scalar(number, pa.decimal256(precision, scale))
