"""Translation of Spark's conditions, given as expression trees, to predicates of Phalanx.

A tree is JSON: `{"column": ["a", "b"]}`, `{"value": "1", "type": "integer"}`, or
`{"call": "AND", "args": […]}` with `type` for a CAST and `field` for an EXTRACT. Spark evaluates
whatever is unknown, or has another meaning in Lance: the predicate then keeps additional rows, but
never loses one that satisfies the condition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.types as pt

from phalanx.model.predicates.predicate import (
    FALSE,
    TRUE,
    Always,
    And,
    IsNull,
    Like,
    NotNull,
    Or,
    Predicate,
    all_of,
    any_of,
    is_on_column,
)
from phalanx.model.schema.schema import Schema
from phalanx.model.sql.syntax import Column
from phalanx.spark.pushdown import comparisons
from phalanx.spark.runtime.types import is_collated

ExpressionTree: TypeAlias = Mapping[str, Any]

_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "!=": "!="}
_NEGATED = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "=": "!=", "!=": "="}
_OPERATORS = {"=": "=", "<>": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_MAX_VALUES = 16
_PATTERNS = {"STARTS_WITH": "{}%", "ENDS_WITH": "%{}", "CONTAINS": "%{}%"}
_CONSTANTS: dict[str, tuple[pa.DataType, Callable[[str], Any]]] = {
    "boolean": (pa.bool_(), lambda text: text == "true"),
    "byte": (pa.int8(), int),
    "short": (pa.int16(), int),
    "integer": (pa.int32(), int),
    "long": (pa.int64(), int),
    "float": (pa.float32(), float),
    "double": (pa.float64(), float),
    "string": (pa.string(), str),
    "binary": (pa.binary(), bytes.fromhex),
    "date": (pa.date32(), int),
    "timestamp": (pa.timestamp("us", "UTC"), int),
    "timestamp_ntz": (pa.timestamp("us"), int),
}


@dataclass(frozen=True, slots=True)
class Condition:
    """A predicate that holds for every row that satisfies a condition; if `exact`, for no other."""

    predicate: Predicate
    exact: bool

    @property
    def on_rows(self) -> Predicate:
        """The part that Lance may apply to rows: the conditions on bare columns.

        The others hold for partition values, but DataFusion has no calendar parts of far dates.
        """
        return _keep_column_tests(self.predicate)


_UNKNOWN = Condition(TRUE, False)
_NEVER = Condition(FALSE, True)


def and_conditions(conditions: Sequence[Condition]) -> Condition:
    """Combine conditions with AND."""
    return Condition(
        all_of(each.predicate for each in conditions), all(each.exact for each in conditions)
    )


def _or_conditions(conditions: Sequence[Condition]) -> Condition:
    return Condition(
        any_of(each.predicate for each in conditions), all(each.exact for each in conditions)
    )


def _keep_column_tests(predicate: Predicate) -> Predicate:
    match predicate:
        case Always():
            return predicate
        case And(parts=parts):
            return all_of(map(_keep_column_tests, parts))
        case Or(parts=parts):
            return any_of(map(_keep_column_tests, parts))
    return predicate if is_on_column(predicate) else TRUE


@dataclass(frozen=True, slots=True)
class Translator:
    """A translator of conditions on a schema, in a session with a time zone."""

    schema: Schema
    zone: str
    # In a scan Spark evaluates conditions on floats again; a delete cannot do that.
    floats_are_exact: bool = False

    def where_true(self, tree: ExpressionTree) -> Condition:
        """Translate to the rows for which the expression is TRUE."""
        if "column" in tree:
            return self._translate_in(tree, [pa.scalar(True)], False)
        if "value" in tree:
            return Condition(Always(tree["value"] == "true"), True)
        args = tree["args"]
        match tree["call"]:
            case "AND":
                return and_conditions([self.where_true(arg) for arg in args])
            case "OR":
                return _or_conditions([self.where_true(arg) for arg in args])
            case "NOT":
                return self.where_false(args[0])
            case "ALWAYS_TRUE":
                return Condition(TRUE, True)
            case "ALWAYS_FALSE":
                return _NEVER
        return self._translate_test(tree, False)

    def where_false(self, tree: ExpressionTree) -> Condition:
        """Translate to the rows for which the expression is FALSE."""
        if "column" in tree:
            return self._translate_in(tree, [pa.scalar(False)], False)
        if "value" in tree:
            return Condition(Always(tree["value"] == "false"), True)
        args = tree["args"]
        match tree["call"]:
            case "AND":
                return _or_conditions([self.where_false(arg) for arg in args])
            case "OR":
                return and_conditions([self.where_false(arg) for arg in args])
            case "NOT":
                return self.where_true(args[0])
            case "ALWAYS_TRUE":
                return _NEVER
            case "ALWAYS_FALSE":
                return Condition(TRUE, True)
        return self._translate_test(tree, True)

    def _translate_test(self, tree: ExpressionTree, negated: bool) -> Condition:
        """Translate a test of one term, or its negation. Neither is TRUE for NULL."""
        args = tree["args"]
        if tree["call"] not in ("IS_NULL", "IS_NOT_NULL") and any(map(self._is_collated, args)):
            return _UNKNOWN
        match tree["call"]:
            case "IS_NULL":
                return self._translate_null(args[0], not negated)
            case "IS_NOT_NULL":
                return self._translate_null(args[0], negated)
            case "<=>":
                return self._translate_null_safe_equal(args[0], args[1], negated)
            case "IN":
                constants = [_constant(arg) for arg in args[1:]]
                if any(value is None for value in constants):
                    return _UNKNOWN
                if self._column(args[0]) is None:
                    return self._translate_in_by_value(args[0], args[1:], negated)
                return self._translate_in(args[0], [v for v in constants if v is not None], negated)
            case name if name in _OPERATORS:
                operator = _OPERATORS[name]
                return self._translate_comparison(
                    _NEGATED[operator] if negated else operator, *args
                )
            case name if name in _PATTERNS:
                return self._translate_like(args[0], _constant(args[1]), _PATTERNS[name], negated)
        return _UNKNOWN

    def _translate_null(self, tree: ExpressionTree, wanted: bool) -> Condition:
        if (column := self._column(tree)) is None or pt.is_nested(self._type(column)):
            return _UNKNOWN
        return Condition(IsNull(column) if wanted else NotNull(column), True)

    def _translate_null_safe_equal(
        self, left: ExpressionTree, right: ExpressionTree, negated: bool
    ) -> Condition:
        """Translate `<=>`, which is never NULL."""
        if "value" in left:
            left, right = right, left
        value = _constant(right)
        if value is None or self._column(left) is None:
            return _UNKNOWN
        if not value.is_valid:
            return self._translate_null(left, not negated)
        found = self._translate_comparison("!=" if negated else "=", left, right)
        return _or_conditions([found, self._translate_null(left, True)]) if negated else found

    def _translate_in(
        self, tree: ExpressionTree, constants: Sequence[pa.Scalar], negated: bool
    ) -> Condition:
        if (column := self._column(tree)) is None:
            return _UNKNOWN
        valid = [value for value in constants if value.is_valid]
        if negated and len(valid) < len(constants):
            return _NEVER
        source = self._type(column)
        if not valid:
            return _NEVER if constants else _UNKNOWN
        found = comparisons.match_values(column, source, valid, negated)
        return _condition(found, self.floats_are_exact or not pt.is_floating(source))

    def _translate_in_by_value(
        self, term: ExpressionTree, values: Sequence[ExpressionTree], negated: bool
    ) -> Condition:
        """Translate IN of an expression, value by value."""
        if len(values) > _MAX_VALUES:
            return _UNKNOWN
        operator = "!=" if negated else "="
        each = [self._translate_comparison(operator, term, value) for value in values]
        return and_conditions(each) if negated else _or_conditions(each)

    def _translate_like(
        self, tree: ExpressionTree, value: pa.Scalar | None, pattern: str, negated: bool
    ) -> Condition:
        column = self._column(tree)
        if column is None or value is None or not _is_text(self._type(column)):
            return _UNKNOWN
        if not value.is_valid:
            return _NEVER
        return Condition(Like(column, pattern.format(_escape(value.as_py())), negated), True)

    def _translate_comparison(
        self, operator: str, left: ExpressionTree, right: ExpressionTree
    ) -> Condition:
        if "value" in left:
            left, right, operator = right, left, _MIRRORED[operator]
        value = _constant(right)
        if value is None or "value" in left:
            return _UNKNOWN
        if not value.is_valid:
            return _NEVER
        if (column := self._column(left)) is not None:
            source = self._type(column)
            found = comparisons.compare(column, source, operator, value)
            return _condition(found, self.floats_are_exact or not pt.is_floating(source))
        inner = left["args"][0] if left.get("args") else left
        if left["call"] == "EXTRACT" and inner.get("call") == "CAST" and inner["type"] == "date":
            # Spark first casts the timestamp to a date, in its zone.
            inner = inner["args"][0]
        if (column := self._column(inner)) is None:
            return _UNKNOWN
        match left["call"]:
            case "CAST":
                return self._translate_cast(operator, column, value)
            case "EXTRACT":
                return self._translate_part(operator, left["field"], column, value)
            case "SUBSTRING":
                return self._translate_prefix(operator, column, left["args"][1:], value)
        return _UNKNOWN

    def _translate_cast(self, operator: str, column: Column, value: pa.Scalar) -> Condition:
        """Translate a comparison of `CAST(column AS …)` that the cast does not affect."""
        source = self._type(column)
        if pt.is_timestamp(source) and pt.is_date32(value.type):
            margin = 0 if source.tz is None or self._is_utc else 1
            found = comparisons.compare_day(
                column, source, operator, value.cast(pa.int32()).as_py(), margin
            )
            return _condition(found, margin == 0)
        if pt.is_integer(source) and pt.is_integer(value.type):
            return _condition(comparisons.compare(column, source, operator, value), True)
        return _UNKNOWN

    def _translate_part(
        self, operator: str, part: str, column: Column, value: pa.Scalar
    ) -> Condition:
        """Translate a calendar part: a year is a range, others only help with partition values."""
        source = self._type(column)
        is_local = pt.is_date32(source) or (pt.is_timestamp(source) and source.tz is None)
        if (not is_local and not pt.is_timestamp(source)) or not pt.is_integer(value.type):
            return _UNKNOWN
        if part == "YEAR":
            margin = 0 if is_local or self._is_utc else 1
            found = comparisons.compare_year(column, source, operator, value.as_py(), margin)
            return _condition(found, margin == 0)
        if part in ("MONTH", "DAY", "HOUR") and (is_local or self._is_utc):
            return _condition(
                comparisons.compare_part(column, part, operator, value.as_py()), False
            )
        return _UNKNOWN

    def _translate_prefix(
        self, operator: str, column: Column, args: Sequence[ExpressionTree], value: pa.Scalar
    ) -> Condition:
        """Translate `SUBSTRING(column, 1, n) = value` to a prefix test."""
        is_start = bool(args) and args[0].get("value") in ("0", "1")
        if operator != "=" or not is_start or not _is_text(self._type(column)):
            return _UNKNOWN
        return Condition(Like(column, _escape(value.as_py()) + "%"), False)

    @property
    def _is_utc(self) -> bool:
        return self.zone.upper() in {"UTC", "Z", "GMT", "ETC/UTC", "ETC/GMT", "+00:00", "UTC+0"}

    def _column(self, tree: ExpressionTree) -> Column | None:
        path = tree.get("column")
        if path is None:
            return None
        # Spark names a nested field that was selected by its path.
        return Column(tuple(part for name in path for part in name.split(".")))

    def _is_collated(self, tree: ExpressionTree) -> bool:
        """Return whether the tree has a collated column."""
        if (column := self._column(tree)) is not None:
            return is_collated(self.schema.field(self.schema.id_of(column.path)))
        return any(map(self._is_collated, tree.get("args", ())))

    def _type(self, column: Column) -> pa.DataType:
        found = self.schema.type_of(self.schema.id_of(column.path))
        return found.value_type if pt.is_dictionary(found) else found


def _condition(predicate: Predicate | None, exact: bool) -> Condition:
    return _UNKNOWN if predicate is None else Condition(predicate, exact)


def _constant(tree: ExpressionTree) -> pa.Scalar | None:
    """Return the constant of a tree, in Spark's type; None for other trees."""
    kind = tree.get("type")
    if "value" not in tree or kind is None:
        return None
    text = tree["value"]
    if kind.startswith("decimal("):
        precision, scale = map(int, kind[len("decimal(") : -1].split(","))
        number = None if text is None else Decimal(text)
        return pa.scalar(number, pa.decimal128(precision, scale))
    if kind not in _CONSTANTS:
        return None
    data_type, read = _CONSTANTS[kind]
    if text is None:
        return pa.scalar(None, data_type)
    if pt.is_temporal(data_type):
        storage = pa.int32() if pt.is_date32(data_type) else pa.int64()
        return pa.scalar(read(text), storage).cast(data_type)
    return pa.scalar(read(text), data_type)


def _is_text(data_type: pa.DataType) -> bool:
    return bool(pt.is_string(data_type) or pt.is_large_string(data_type))


def _escape(text: str) -> str:
    for special in ("\\", "%", "_"):
        text = text.replace(special, "\\" + special)
    return text
