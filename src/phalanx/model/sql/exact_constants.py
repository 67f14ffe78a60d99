"""Constants of a predicate in the type of what they are compared with, and nothing rounded.

DataFusion takes `0.1` for a float, casts the text '0.105' to a decimal of two places, and fails on
a moment that the column's unit cannot hold. Here a constant keeps its exact value: where the other
side cannot have it, the comparison is with the next value below, or is decided by NULL alone.

A constant beside a float, an integer or a decimal beside a float, and a decimal beside a column of
floats are compared as float64: that is what SQL says of approximate numbers.
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
from phalanx.model.predicates.uncast import line_floor, lines_meet
from phalanx.model.sql.literals import is_text, with_both_zeros
from phalanx.model.sql.syntax import (
    Call,
    Case,
    Cast,
    Column,
    InList,
    Literal,
    Node,
    columns,
    transform,
)

TypeOf: TypeAlias = Callable[[Node], pa.DataType]
Folded: TypeAlias = Callable[[Node], Node]

_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "!=": "!="}
_DISTINCTIONS = frozenset({"IS DISTINCT FROM", "IS NOT DISTINCT FROM"})
_COMPARISONS = frozenset(_MIRRORED) | _DISTINCTIONS
_EXACT_OPERATORS = frozenset({"+", "-", "*", "%"})
# Functions that give one of their arguments back.
_CHOICES = frozenset({"coalesce", "nvl", "ifnull", "nvl2", "nullif", "greatest", "least"})
_BOOLEAN = pa.scalar(None, pa.bool_())
# What a decimal of Arrow can have.
MOST_DIGITS = 76


def exact_constants(node: Node, type_of: TypeOf, folded: Folded) -> Node:
    """A parsed expression, whose numbers are decimals, with every comparison made exact.

    `type_of` gives the type of a part as DataFusion has it, `folded` the constant that a part
    without columns is.
    """
    typer = _Typer(type_of, folded)
    return transform(node, typer.typed)


def never(term: Node) -> Node:
    """FALSE, and NULL where the term is NULL."""
    return Call("AND", (Call("IS NULL", (term,)), Literal(_BOOLEAN)))


def always(term: Node) -> Node:
    """TRUE, and NULL where the term is NULL."""
    return Call("OR", (Call("IS NOT NULL", (term,)), Literal(_BOOLEAN)))


class _Typer:
    def __init__(self, type_of: TypeOf, folded: Folded) -> None:
        self._ask = type_of
        self._folded = folded

    def typed(self, node: Node) -> Node:
        """The node, whose parts are typed already."""
        match node:
            case Cast(arg=Literal() as constant, type=kind):
                if is_text(constant.value.type) and kind == pa.timestamp("ns"):
                    # `TIMESTAMP '9999-12-31'`: a moment that nanoseconds cannot hold.
                    moment = self._moment(constant, None)
                    return self._folded(node) if moment is None else Literal(moment)
                return self._folded(node)
            case Call(name=name, args=(left, right)) if name in _COMPARISONS:
                return self._comparison(name, left, right, node)
            case InList(arg=arg, items=items, negated=negated):
                return self._membership(arg, items, negated, node)
            case Call(name=name, args=args) if name in _EXACT_OPERATORS and len(args) == 2:
                return self._beside(node, args, lambda kept: replace(node, args=kept))
            case Call(name=name, args=args) if name in _CHOICES:
                return self._beside(node, args, lambda kept: replace(node, args=kept))
            case Call(name="AND" | "OR" | "NOT"):
                return node
            case Call(args=args) if any(map(_is_decimal, args)):
                return replace(node, args=tuple(map(_as_float, args)))
            case Case():
                return self._case(node)
        return node

    def _case(self, node: Case) -> Node:
        """The values of a CASE are beside each other; a tested operand is beside its tests."""
        if (operand := node.operand) is not None:
            tests = tuple(
                (self._comparison("=", operand, when, Call("=", (operand, when))), then)
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

        def rebuilt(kept: tuple[Node, ...]) -> Node:
            pairs = zip(node.branches, kept, strict=False)
            branches = tuple((when, value) for (when, _), value in pairs)
            return Case(node.operand, branches, None if node.otherwise is None else kept[-1])

        return self._beside(node, tuple(values), rebuilt)

    def _beside(
        self, node: Node, args: tuple[Node, ...], rebuilt: Callable[[tuple[Node, ...]], Node]
    ) -> Node:
        """Decimal constants become floats beside a float, and beside what is no number."""
        if not any(map(_is_decimal, args)):
            return node
        others = [self._type(arg) for arg in args if not _is_decimal(arg)]
        if all(pt.is_integer(kind) or pt.is_decimal(kind) or pt.is_null(kind) for kind in others):
            return node
        return rebuilt(tuple(map(_as_float, args)))

    def _comparison(self, operator: str, left: Node, right: Node, node: Node) -> Node:
        if not columns(left):
            left, right = right, left
            operator = _MIRRORED.get(operator, operator)
        if not columns(left):
            return node
        if columns(right):
            return self._of_terms(operator, left, right, node)
        constant = self._folded(right)
        if not isinstance(constant, Literal) or not constant.value.is_valid:
            return node
        found = self._exact(operator, left, constant.value)
        return node if found is None else found

    def _of_terms(self, operator: str, left: Node, right: Node, node: Node) -> Node:
        """Two terms, in a common type that holds the values of both."""
        kinds = self._type(left), self._type(right)
        if any(map(pt.is_decimal, kinds)):
            if any(map(pt.is_floating, kinds)):
                wide: pa.DataType = pa.float64()
            elif (common := _common_decimal(*kinds)) is not None:
                wide = common
            else:
                return node
            sides = zip((left, right), kinds, strict=True)
            return Call(
                operator,
                tuple(side if kind == wide else Cast(side, wide) for side, kind in sides),
            )
        return node

    def _exact(self, operator: str, term: Node, value: pa.Scalar) -> Node | None:
        """`term operator value` with a constant of the term's own type; None to leave it as is."""
        kind = self._type(term)
        if kind == value.type:
            return None
        if pt.is_floating(kind):
            if not (pt.is_decimal(value.type) or pt.is_integer(value.type)):
                return None
            return Call(operator, (term, Literal(_float(value))))
        if pt.is_decimal(kind) and pt.is_floating(value.type):
            if not _is_beyond_decimals(value):
                return Call(operator, (Cast(term, pa.float64()), Literal(_float(value))))
        elif (comparable := self._comparable(kind, value)) is None:
            return None
        else:
            value = comparable
        return _on_line(operator, term, kind, value)

    def _comparable(self, kind: pa.DataType, value: pa.Scalar) -> pa.Scalar | None:
        """The constant on the line of a type's values; None where they have no common line."""
        if pt.is_integer(kind) and pt.is_floating(value.type):
            return value if _is_beyond_decimals(value) else None
        if is_text(value.type):
            return self._spelled(kind, value.as_py())
        if pt.is_timestamp(kind) and kind.tz is not None:
            naive = pt.is_date(value.type) or (pt.is_timestamp(value.type) and not value.type.tz)
            if naive:
                return self._moment(Literal(value), kind.tz)
        return value if lines_meet(kind, value.type) else None

    def _spelled(self, kind: pa.DataType, text: str) -> pa.Scalar | None:
        """The value of a type's line that a text spells; None if it is none, or of another type."""
        if pt.is_decimal(kind):
            return _spelled_decimal(text)
        if pt.is_timestamp(kind):
            return self._moment(Literal(pa.scalar(text)), kind.tz)
        if pt.is_date(kind):
            return self._moment(Literal(pa.scalar(text)), None)
        if pt.is_time(kind):
            return self._cast(Literal(pa.scalar(text)), pa.time64("ns"))
        return None

    def _moment(self, constant: Literal, zone: str | None) -> pa.Scalar | None:
        """A text, a date or a timestamp without zone as a moment, in the finest unit it fits."""
        units = (self._cast(constant, pa.timestamp(unit, zone)) for unit in ("ns", "us", "ms", "s"))
        return next((moment for moment in units if moment is not None), None)

    def _cast(self, constant: Literal, kind: pa.DataType) -> pa.Scalar | None:
        try:
            found = self._folded(Cast(constant, kind))
        except PhalanxError:
            return None
        return found.value if isinstance(found, Literal) and found.value.is_valid else None

    def _membership(self, arg: Node, items: tuple[Node, ...], negated: bool, node: InList) -> Node:
        if not columns(arg):
            return node
        kind = self._type(arg)
        constants: list[pa.Scalar] = []
        for item in items:
            found = item if isinstance(item, Literal) or columns(item) else self._folded(item)
            if not isinstance(found, Literal):
                return self._alternatives(arg, items, negated)
            constants.append(found.value)
        if all(_is_plain(arg, kind, value) for value in constants):
            return node if not pt.is_floating(kind) else _with_zeros(node, constants, kind)
        listed: list[Node] = []
        compared: Node = arg
        for value in constants:
            if not value.is_valid:
                listed.append(Literal(value))
                continue
            match self._exact("=", arg, value) or Call("=", (arg, Literal(value))):
                case Call(name="=", args=(side, Literal() as constant)):
                    compared = side
                    listed.append(constant)
                case _:
                    # The term cannot have this value: it decides nothing, except by NULL.
                    pass
        if not listed:
            return always(arg) if negated else never(arg)
        sides = {item.value.type for item in listed if isinstance(item, Literal)}
        if len(sides - {pa.null()}) > 1:
            return self._alternatives(arg, items, negated)
        found = InList(compared, tuple(listed), negated)
        if pt.is_floating(kind):
            values = [item.value for item in listed if isinstance(item, Literal)]
            return _with_zeros(found, values, pa.float64())
        return found

    def _alternatives(self, arg: Node, items: tuple[Node, ...], negated: bool) -> Node:
        """IN as the equalities that it means."""
        tests = [self._comparison("=", arg, item, Call("=", (arg, item))) for item in items]
        found = tests[0]
        for test in tests[1:]:
            found = Call("OR", (found, test))
        return Call("NOT", (found,)) if negated else found

    def _type(self, node: Node) -> pa.DataType:
        match node:
            case Literal(value=value):
                return value.type
            case Cast(type=kind):
                return kind
        kind = self._ask(node)
        return kind.value_type if pt.is_dictionary(kind) else kind


def _on_line(operator: str, term: Node, kind: pa.DataType, value: pa.Scalar) -> Node | None:
    if not lines_meet(kind, value.type):
        return None
    floor, flag = line_floor(kind, value)
    if floor is not None and flag:
        return Call(operator, (term, Literal(floor)))
    match operator:
        case "=":
            return never(term)
        case "!=":
            return always(term)
        case "IS DISTINCT FROM":
            return Literal(pa.scalar(True))
        case "IS NOT DISTINCT FROM":
            return Literal(pa.scalar(False))
    if floor is None:
        is_above = flag
        return always(term) if (operator in (">", ">=")) == is_above else never(term)
    return Call({"<": "<=", ">=": ">"}.get(operator, operator), (term, Literal(floor)))


def _with_zeros(node: InList, values: Sequence[pa.Scalar], kind: pa.DataType) -> InList:
    valid = [value for value in values if value.is_valid]
    both = with_both_zeros(pa.array(valid, kind))
    if len(both) == len(valid):
        return node
    known = tuple(Literal(value) for value in both)
    unknown = tuple(
        item for item in node.items if isinstance(item, Literal) and not item.value.is_valid
    )
    return replace(node, items=known + unknown)


def _is_plain(arg: Node, kind: pa.DataType, value: pa.Scalar) -> bool:
    """Whether DataFusion compares the constant exactly as it is."""
    if kind == value.type or not value.is_valid:
        return True
    return bool(
        isinstance(arg, Column)
        and pt.is_integer(kind)
        and value.type == pa.int64()
        and kind != pa.uint64()
    )


def _common_decimal(one: pa.DataType, two: pa.DataType) -> pa.DataType | None:
    """A decimal of 256 bits for both, where 128 bits have too few digits; None where they do."""
    shapes = [_digits(kind) for kind in (one, two)]
    if None in shapes:
        return None
    known = [shape for shape in shapes if shape is not None]
    scale = max(scale for _, scale in known)
    digits = max(whole for whole, _ in known) + scale
    return pa.decimal256(digits, scale) if 38 < digits <= MOST_DIGITS else None


def _digits(kind: pa.DataType) -> tuple[int, int] | None:
    """How many digits stand before the point, and how many behind it."""
    if pt.is_integer(kind):
        return 20, 0
    return (kind.precision - kind.scale, max(kind.scale, 0)) if pt.is_decimal(kind) else None


def _is_decimal(node: Node) -> bool:
    return isinstance(node, Literal) and pt.is_decimal(node.value.type)


def _as_float(node: Node) -> Node:
    if isinstance(node, Literal) and pt.is_decimal(node.value.type):
        return Literal(_float(node.value))
    return node


def _float(value: pa.Scalar) -> pa.Scalar:
    """The float next to a number; Arrow's own cast rounds twice."""
    number = value.as_py()
    return pa.scalar(None if number is None else float(number), pa.float64())


def _is_beyond_decimals(value: pa.Scalar) -> bool:
    """Whether a float is too large or too small to be written as a decimal."""
    number = value.as_py()
    if number != number or number in (float("inf"), float("-inf")) or number == 0:
        return False
    size = abs(Fraction(number))
    return not Fraction(1, 10**MOST_DIGITS) <= size < 10**MOST_DIGITS


def _spelled_decimal(text: str) -> pa.Scalar | None:
    try:
        number = Decimal(text.strip())
        _, digits, exponent = number.as_tuple()
    except InvalidOperation:
        return None
    if not isinstance(exponent, int):
        return None
    scale = max(-exponent, 0)
    precision = max(len(digits) + max(exponent, 0), scale, 1)
    if precision > MOST_DIGITS:
        return None
    return pa.scalar(number, pa.decimal256(precision, scale))
