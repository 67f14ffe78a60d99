"""Binding of a `where` text to a predicate over the columns of a schema."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
import pyarrow.types as pt

from phalanx.errors import InvalidPredicate, PhalanxError, format_value
from phalanx.model.predicates.evaluation import match_arrays
from phalanx.model.predicates.predicate import (
    FALSE,
    TRUE,
    Always,
    Compare,
    In,
    IsNull,
    Like,
    NotNull,
    Opaque,
    Predicate,
    all_of,
    any_of,
    complement,
    is_on_column,
    walk_atomic_predicates,
)
from phalanx.model.predicates.uncast import (
    uncast_comparison,
    uncast_membership,
    uncast_year_comparison,
)
from phalanx.model.schema.schema import Schema
from phalanx.model.sql import engine
from phalanx.model.sql.literals import (
    NotExpressible,
    add_both_zeros,
    drop_duplicates,
    has_utc_calendar,
)
from phalanx.model.sql.syntax import (
    Call,
    Case,
    Cast,
    Column,
    Constant,
    InList,
    LikePattern,
    Node,
    find_columns,
    flatten_chain,
    list_subexpressions,
    to_sql,
    walk_nodes,
)

_SHORT_CASE = 3
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_WILDCARDS = frozenset("%_\\")
_NEGATED_MATCHES = {"~": "!~", "!~": "~", "~*": "!~*", "!~*": "~*"}
_NEGATED = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "=": "!=", "!=": "="}


def bind_predicate(where: str, schema: Schema, *, case_sensitive: bool = False) -> Predicate:
    """Parse and type-check `where` against the schema.

    A name matches the column with that spelling, else the only one that differs in case, unless
    `case_sensitive`. Raise `InvalidPredicate` for text that does not parse, names an unknown
    column, or compares incompatible types.
    """
    if not isinstance(where, str):
        raise InvalidPredicate(
            f"Cannot use the predicate {format_value(where)}: expected SQL text."
        )
    try:
        if case_sensitive:
            engine.check_column_case(where, schema.arrow)
        try:
            bound = engine.bind_expression_exactly(where, schema.arrow)
            if not (pt.is_boolean(bound.type) or pt.is_null(bound.type)):
                raise engine.BadExpression(
                    f"it gives {bound.type}, not true or false. Compare it with a value."
                )
            return _check_runnable(_Binder(schema).bind_true(bound.node), schema)
        except NotExpressible:
            return _bind_parts(engine.parse_expression_exactly(where, schema.arrow), schema)
    except NotExpressible as error:
        raise InvalidPredicate(
            f"Cannot use the predicate {format_value(where)}: {error} is not supported. "
            "Write that part in another way."
        ) from None
    except engine.BadExpression as error:
        why = str(error) + _describe_mismatch(str(error), where, schema)
        end = "" if why.endswith((".", "?")) else "."
        raise InvalidPredicate(
            f"Cannot use the predicate {format_value(where)}: {why}{end}"
        ) from None


def _describe_mismatch(why: str, where: str, schema: Schema) -> str:
    """Name the column that a text in the message does not fit; empty if there is none."""
    try:
        parts = list(walk_nodes(engine.parse_expression(where, schema.arrow, exact_numbers=True)))
    except PhalanxError:
        return ""
    for part in parts:
        inside = list_subexpressions(part)
        texts = [child.value.as_py() for child in inside if isinstance(child, Constant)]
        if any(isinstance(text, str) and f"'{text}'" in why for text in texts):
            for column in inside:
                if isinstance(column, Column):
                    kind = schema.type_of(schema.id_of(column.path))
                    return f" (column {'.'.join(column.path)!r} is {kind})"
    return ""


def _bind_parts(node: Node, schema: Schema) -> Predicate:
    """Bind each part of an expression; only parts that cannot be analyzed are opaque."""
    match node:
        case Call(name="AND"):
            return all_of(_bind_parts(part, schema) for part in flatten_chain(node))
        case Call(name="OR"):
            return any_of(
                _merge_equalities(_bind_parts(part, schema) for part in flatten_chain(node))
            )
        case Call(name="NOT", args=(Call(name="AND" | "OR" as name, args=args),)):
            other = "OR" if name == "AND" else "AND"
            return _bind_parts(Call(other, tuple(Call("NOT", (arg,)) for arg in args)), schema)
        case Call(name="NOT", args=(Call(name="NOT", args=(arg,)),)):
            return _bind_parts(arg, schema)
    try:
        bound = engine.bind_node(node, schema.arrow)
        return _check_runnable(_Binder(schema).bind_true(bound.node), schema)
    except NotExpressible:
        return _check_runnable(_to_opaque(node), schema)


def _check_runnable(predicate: Predicate, schema: Schema) -> Predicate:
    """Return the predicate if DataFusion can run it; plain column comparisons always run."""
    if unusual := [atom for atom in walk_atomic_predicates(predicate) if not is_on_column(atom)]:
        columns = {field.name: pa.array([], field.type) for field in schema.arrow}
        match_arrays(all_of(unusual), columns, 0)
    return predicate


class _Binder:
    """Converts a type-checked expression to a predicate."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    def bind_true(self, node: Node) -> Predicate:
        """Return the predicate that the expression is TRUE."""
        match node:
            case Constant(value=value):
                return Always(value.as_py() is True)
            case Column():
                return In(node, pa.array([True]))
            case Call(name="AND"):
                return all_of(_merge_bounds(self.bind_true(part) for part in flatten_chain(node)))
            case Call(name="OR"):
                return any_of(
                    _merge_equalities(self.bind_true(part) for part in flatten_chain(node))
                )
            case Call(name="NOT" | "IS FALSE", args=(arg,)):
                return self.bind_false(arg)
            case Call(name="IS TRUE", args=(arg,)):
                return self.bind_true(arg)
            case Call(name="IS NOT TRUE", args=(Column() as arg,)):
                return any_of((self.bind_false(arg), IsNull(arg)))
            case Call(name="IS NOT FALSE", args=(Column() as arg,)):
                return any_of((self.bind_true(arg), IsNull(arg)))
            case Call(name="IS NOT TRUE", args=(arg,)):
                return complement(self.bind_true(arg))
            case Call(name="IS NOT FALSE", args=(arg,)):
                return complement(self.bind_false(arg))
            case Call(name="IS NULL" | "IS UNKNOWN", args=(arg,)):
                return IsNull(arg)
            case Call(name="IS NOT NULL" | "IS NOT UNKNOWN", args=(arg,)):
                return NotNull(arg)
            case Call(name="IS DISTINCT FROM", args=(arg, Constant(value=value))):
                return self._bind_distinct(arg, value)
            case Call(name="IS NOT DISTINCT FROM", args=(arg, Constant(value=value))):
                return self._bind_not_distinct(arg, value)
            case Call(name=operator, args=(left, right)) if operator in _NEGATED:
                return self._bind_comparison(operator, left, right) or _to_opaque(node)
            case InList(arg=arg, items=items, negated=negated):
                return self._bind_membership(arg, items, negated) or _to_opaque(node)
            case Case() if _is_short_choice(node):
                return self._bind_case(node, self.bind_true)
            case Call(name="starts_with", args=(Column() as arg, Constant(value=start))):
                return Like(arg, _escape_pattern(start.as_py()) + "%") if start.is_valid else FALSE
            case LikePattern(arg=arg, pattern=Constant(value=pattern), negated=negated):
                if not pattern.is_valid:
                    return FALSE
                if pattern.as_py() == "%":
                    return FALSE if negated else NotNull(arg)
                if node.case_sensitive and not _WILDCARDS & set(pattern.as_py()):
                    return self._bind_membership(arg, (node.pattern,), negated) or _to_opaque(node)
                return Like(arg, pattern.as_py(), negated, node.case_sensitive)
        return _to_opaque(node)

    def bind_false(self, node: Node) -> Predicate:
        """Return the predicate that the expression is FALSE."""
        match node:
            case Constant(value=value):
                return Always(value.as_py() is False)
            case Column():
                return In(node, pa.array([False]))
            case Call(name="AND"):
                return any_of(
                    _merge_equalities(self.bind_false(part) for part in flatten_chain(node))
                )
            case Call(name="OR"):
                return all_of(self.bind_false(part) for part in flatten_chain(node))
            case Call(name="NOT" | "IS NOT TRUE", args=(arg,)):
                return self.bind_true(arg)
            case Call(name="IS TRUE", args=(arg,)):
                return complement(self.bind_true(arg))
            case Call(name="IS FALSE", args=(arg,)):
                return complement(self.bind_false(arg))
            case Call(name="IS NOT FALSE", args=(arg,)):
                return self.bind_false(arg)
            case Call(name="IS NULL" | "IS UNKNOWN", args=(arg,)):
                return NotNull(arg)
            case Call(name="IS NOT NULL" | "IS NOT UNKNOWN", args=(arg,)):
                return IsNull(arg)
            case Call(name="IS DISTINCT FROM", args=(arg, Constant(value=value))):
                return self._bind_not_distinct(arg, value)
            case Call(name="IS NOT DISTINCT FROM", args=(arg, Constant(value=value))):
                return self._bind_distinct(arg, value)
            case Call(name=operator, args=args) if operator in _NEGATED and len(args) == 2:
                return self.bind_true(Call(_NEGATED[operator], args))
            case InList(arg=arg, items=items, negated=negated):
                return self.bind_true(InList(arg, items, not negated))
            case LikePattern(arg=arg, pattern=pattern, negated=negated):
                return self.bind_true(LikePattern(arg, pattern, not negated, node.case_sensitive))
            case Call(name="starts_with", args=(Column() as arg, Constant(value=start))):
                return (
                    Like(arg, _escape_pattern(start.as_py()) + "%", True)
                    if start.is_valid
                    else FALSE
                )
            case Case() if _is_short_choice(node):
                return self._bind_case(node, self.bind_false)
            case Call(name=operator, args=args) if operator in _NEGATED_MATCHES:
                return _to_opaque(Call(_NEGATED_MATCHES[operator], args))
        return _to_opaque(Call("NOT", (node,)))

    def _bind_case(self, node: Case, side: Callable[[Node], Predicate]) -> Predicate:
        """Bind the value of a CASE by `side`: `bind_true` or `bind_false`."""
        found: list[Predicate] = []
        before: list[Predicate] = []
        for when, then in node.branches:
            test = when if node.operand is None else Call("=", (node.operand, when))
            true = self.bind_true(test)
            found.append(all_of((*before, true, side(then))))
            before.append(complement(true))
        if node.otherwise is not None:
            found.append(all_of((*before, side(node.otherwise))))
        return any_of(found)

    def _bind_comparison(self, operator: str, left: Node, right: Node) -> Predicate | None:
        if isinstance(left, Constant):
            left, right, operator = right, left, _MIRRORED.get(operator, operator)
        if not isinstance(right, Constant) or isinstance(left, Constant):
            return None
        if not right.value.is_valid:
            return FALSE
        is_logic = pt.is_boolean(right.value.type) and not isinstance(left, Column)
        if is_logic and operator in ("=", "!="):
            is_true = right.value.as_py() is (operator == "=")
            return self.bind_true(left) if is_true else self.bind_false(left)
        if (years := self._bind_year_comparison(left, operator, right.value)) is not None:
            return years
        if operator in ("=", "!="):
            return self._bind_membership(left, (right,), operator == "!=")
        term, source = self._strip_cast(left, right.value.type)
        return uncast_comparison(term, source, operator, right.value)

    def _bind_membership(
        self, arg: Node, items: tuple[Node, ...], negated: bool
    ) -> Predicate | None:
        constants = [item.value for item in items if isinstance(item, Constant)]
        if len(constants) != len(items) or isinstance(arg, Constant):
            return None
        if pt.is_nested(constants[0].type):
            return None
        valid = [constant for constant in constants if constant.is_valid]
        if negated and len(valid) != len(constants):
            return FALSE
        if not valid:
            return TRUE if negated else FALSE
        values = pa.array(valid, valid[0].type)
        values = drop_duplicates(values) if len(values) > 1 else values
        term, source = self._strip_cast(arg, values.type)
        return uncast_membership(term, source, values, negated)

    def _bind_year_comparison(
        self, left: Node, operator: str, value: pa.Scalar
    ) -> Predicate | None:
        """Bind a comparison of the calendar year as one of the column; None for others."""
        match left:
            case Call(name="date_part", args=(Constant(value=part), Column() as column)):
                if part.as_py() == "year" and pt.is_integer(value.type):
                    kind, year = self._type_of(column), value.as_py()
                    starts = [self._find_year_start(kind, each) for each in (year, year + 1)]
                    return uncast_year_comparison(column, kind, operator, year, starts)
        return None

    def _find_year_start(self, kind: pa.DataType, year: int) -> pa.Scalar | None:
        """Return when a year begins in the column's zone; None in UTC, or if it is ambiguous."""
        if has_utc_calendar(kind) or not 0 < year < 9999:
            return None
        start = Constant(pa.scalar(f"{year:04d}-01-01T00:00:00"))
        try:
            found = engine.bind_node(Cast(start, kind), self._schema.arrow).node
        except engine.BadExpression:
            return None
        return found.value if isinstance(found, Constant) else None

    def _strip_cast(self, arg: Node, compared: pa.DataType) -> tuple[Node, pa.DataType]:
        """Return the term to compare, without a strict cast of a column, and its type."""
        if isinstance(arg, Cast) and arg.strict and isinstance(arg.arg, Column):
            return arg.arg, self._type_of(arg.arg)
        return arg, self._type_of(arg) if isinstance(arg, Column) else compared

    def _type_of(self, column: Column) -> pa.DataType:
        data_type = self._schema.type_of(self._schema.id_of(column.path))
        return data_type.value_type if pt.is_dictionary(data_type) else data_type

    def _bind_distinct(self, arg: Node, value: pa.Scalar) -> Predicate:
        if not value.is_valid:
            return NotNull(arg)
        differs = self.bind_true(Call("!=", (arg, Constant(value))))
        return any_of((differs, IsNull(arg)))

    def _bind_not_distinct(self, arg: Node, value: pa.Scalar) -> Predicate:
        if not value.is_valid:
            return IsNull(arg)
        if pt.is_boolean(value.type):
            return self.bind_true(arg) if value.as_py() else self.bind_false(arg)
        return self.bind_true(Call("=", (arg, Constant(value))))


def _is_short_choice(node: Case) -> bool:
    """Return whether a CASE is short and all its values are constants."""
    values = [then for _, then in node.branches]
    values += [] if node.otherwise is None else [node.otherwise]
    return len(values) <= _SHORT_CASE and all(isinstance(value, Constant) for value in values)


def _escape_pattern(text: str) -> str:
    for special in ("\\", "%", "_"):
        text = text.replace(special, "\\" + special)
    return text


def _to_opaque(node: Node) -> Predicate:
    return Opaque(to_sql(node), find_columns(node))


def _merge_bounds(parts: Iterable[Predicate]) -> Iterator[Predicate]:
    """Replace `a >= 9` and `a <= 9` by `a = 9`."""
    found = list(parts)
    for part in found:
        if isinstance(part, Compare) and part.operator in (">=", "<="):
            other = Compare(part.term, {">=": "<=", "<=": ">="}[part.operator], part.value)
            if other in found:
                if part.operator == ">=":
                    yield In(part.term, pa.array([part.value], part.value.type))
                continue
        yield part


def _merge_equalities(parts: Iterable[Predicate]) -> Iterator[Predicate]:
    """Merge equalities on one term: `a = 1 OR a = 2` becomes `a IN (1, 2)`."""
    sets: dict[Node, list[pa.Array]] = {}
    for part in parts:
        if isinstance(part, In):
            sets.setdefault(part.term, []).append(part.values)
        else:
            yield part
    for term, arrays in sets.items():
        for data_type in dict.fromkeys(array.type for array in arrays):
            same = [array for array in arrays if array.type == data_type]
            yield In(term, same[0] if len(same) == 1 else _union_values(same))


def _union_values(arrays: list[pa.Array]) -> pa.Array:
    """Return the distinct values of all arrays, with both zeros if one occurs."""
    return add_both_zeros(drop_duplicates(pa.concat_arrays(arrays)))
