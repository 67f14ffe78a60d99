"""From a `where` text to a bound predicate."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
import pyarrow.types as pt

from phalanx.errors import InvalidPredicate, PhalanxError, shown
from phalanx.model.predicates.evaluation import holds
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
    leaves,
)
from phalanx.model.predicates.uncast import compare_year, uncast_comparison, uncast_membership
from phalanx.model.schema.schema import Schema
from phalanx.model.sql import engine
from phalanx.model.sql.literals import NotExpressible, distinct, has_utc_meaning, with_both_zeros
from phalanx.model.sql.syntax import (
    Call,
    Case,
    Cast,
    Column,
    InList,
    LikePattern,
    Literal,
    Node,
    chain,
    children,
    columns,
    to_sql,
    walk,
)

_SHORT_CASE = 3
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_WILDCARDS = frozenset("%_\\")
_OTHERWISE = {"~": "!~", "!~": "~", "~*": "!~*", "!~*": "~*"}
_NEGATED = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "=": "!=", "!=": "="}


def bind(where: str, schema: Schema, *, case_sensitive: bool = False) -> Predicate:
    """The predicate that `where` means for rows of the schema.

    A name means the column that is spelled so, else the only one that differs in case, unless
    `case_sensitive`. Raises `InvalidPredicate` for text that does not parse, names no column, or
    compares what cannot be compared.
    """
    if not isinstance(where, str):
        raise InvalidPredicate(f"Cannot use the predicate {shown(where)}: expected SQL text.")
    try:
        if case_sensitive:
            engine.check_case(where, schema.arrow)
        try:
            bound = engine.bind_exactly(where, schema.arrow)
            if not (pt.is_boolean(bound.type) or pt.is_null(bound.type)):
                raise engine.BadExpression(
                    f"it gives {bound.type}, not true or false. Compare it with a value."
                )
            return _tried(_Binder(schema).truth(bound.node), schema)
        except NotExpressible:
            return _by_parts(engine.parse_exactly(where, schema.arrow), schema)
    except NotExpressible as error:
        raise InvalidPredicate(
            f"Cannot use the predicate {shown(where)}: {error} is not supported. "
            "Write that part in another way."
        ) from None
    except engine.BadExpression as error:
        why = str(error) + _misfit(str(error), where, schema)
        end = "" if why.endswith((".", "?")) else "."
        raise InvalidPredicate(f"Cannot use the predicate {shown(where)}: {why}{end}") from None


def _misfit(why: str, where: str, schema: Schema) -> str:
    """The column whose type a text in the message does not fit; empty if there is none."""
    try:
        parts = list(walk(engine.parse(where, schema.arrow, exact_numbers=True)))
    except PhalanxError:
        return ""
    for part in parts:
        inside = children(part)
        texts = [child.value.as_py() for child in inside if isinstance(child, Literal)]
        if any(isinstance(text, str) and f"'{text}'" in why for text in texts):
            for column in inside:
                if isinstance(column, Column):
                    kind = schema.type_of(schema.id_of(column.path))
                    return f" (column {'.'.join(column.path)!r} is {kind})"
    return ""


def _by_parts(node: Node, schema: Schema) -> Predicate:
    """An expression as written, of which only the parts that cannot be looked into are opaque."""
    match node:
        case Call(name="AND"):
            return all_of(_by_parts(part, schema) for part in chain(node))
        case Call(name="OR"):
            return any_of(_merged(_by_parts(part, schema) for part in chain(node)))
        case Call(name="NOT", args=(Call(name="AND" | "OR" as name, args=args),)):
            other = "OR" if name == "AND" else "AND"
            return _by_parts(Call(other, tuple(Call("NOT", (arg,)) for arg in args)), schema)
        case Call(name="NOT", args=(Call(name="NOT", args=(arg,)),)):
            return _by_parts(arg, schema)
    try:
        bound = engine.bind_node(node, schema.arrow)
        return _tried(_Binder(schema).truth(bound.node), schema)
    except NotExpressible:
        return _tried(_opaque(node), schema)


def _tried(predicate: Predicate, schema: Schema) -> Predicate:
    """The predicate, if DataFusion can run it; comparing a column with a constant it always can."""
    if odd := [leaf for leaf in leaves(predicate) if not is_on_column(leaf)]:
        columns = {field.name: pa.array([], field.type) for field in schema.arrow}
        holds(all_of(odd), columns, 0)
    return predicate


class _Binder:
    """Turns a type-checked expression into the predicate of the rows for which it is TRUE."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    def truth(self, node: Node) -> Predicate:
        """The rows for which the expression is TRUE."""
        match node:
            case Literal(value=value):
                return Always(value.as_py() is True)
            case Column():
                return In(node, pa.array([True]))
            case Call(name="AND"):
                return all_of(_closed(self.truth(part) for part in chain(node)))
            case Call(name="OR"):
                return any_of(_merged(self.truth(part) for part in chain(node)))
            case Call(name="NOT" | "IS FALSE", args=(arg,)):
                return self.falsity(arg)
            case Call(name="IS TRUE", args=(arg,)):
                return self.truth(arg)
            case Call(name="IS NOT TRUE", args=(Column() as arg,)):
                return any_of((self.falsity(arg), IsNull(arg)))
            case Call(name="IS NOT FALSE", args=(Column() as arg,)):
                return any_of((self.truth(arg), IsNull(arg)))
            case Call(name="IS NOT TRUE", args=(arg,)):
                return complement(self.truth(arg))
            case Call(name="IS NOT FALSE", args=(arg,)):
                return complement(self.falsity(arg))
            case Call(name="IS NULL" | "IS UNKNOWN", args=(arg,)):
                return IsNull(arg)
            case Call(name="IS NOT NULL" | "IS NOT UNKNOWN", args=(arg,)):
                return NotNull(arg)
            case Call(name="IS DISTINCT FROM", args=(arg, Literal(value=value))):
                return self._distinct(arg, value)
            case Call(name="IS NOT DISTINCT FROM", args=(arg, Literal(value=value))):
                return self._not_distinct(arg, value)
            case Call(name=operator, args=(left, right)) if operator in _NEGATED:
                return self._comparison(operator, left, right) or _opaque(node)
            case InList(arg=arg, items=items, negated=negated):
                return self._membership(arg, items, negated) or _opaque(node)
            case Case() if _is_choice(node):
                return self._chosen(node, self.truth)
            case Call(name="starts_with", args=(Column() as arg, Literal(value=start))):
                return Like(arg, _escaped(start.as_py()) + "%") if start.is_valid else FALSE
            case LikePattern(arg=arg, pattern=Literal(value=pattern), negated=negated):
                if not pattern.is_valid:
                    return FALSE
                if pattern.as_py() == "%":
                    return FALSE if negated else NotNull(arg)
                if node.case_sensitive and not _WILDCARDS & set(pattern.as_py()):
                    return self._membership(arg, (node.pattern,), negated) or _opaque(node)
                return Like(arg, pattern.as_py(), negated, node.case_sensitive)
        return _opaque(node)

    def falsity(self, node: Node) -> Predicate:
        """The rows for which the expression is FALSE."""
        match node:
            case Literal(value=value):
                return Always(value.as_py() is False)
            case Column():
                return In(node, pa.array([False]))
            case Call(name="AND"):
                return any_of(_merged(self.falsity(part) for part in chain(node)))
            case Call(name="OR"):
                return all_of(self.falsity(part) for part in chain(node))
            case Call(name="NOT" | "IS NOT TRUE", args=(arg,)):
                return self.truth(arg)
            case Call(name="IS TRUE", args=(arg,)):
                return complement(self.truth(arg))
            case Call(name="IS FALSE", args=(arg,)):
                return complement(self.falsity(arg))
            case Call(name="IS NOT FALSE", args=(arg,)):
                return self.falsity(arg)
            case Call(name="IS NULL" | "IS UNKNOWN", args=(arg,)):
                return NotNull(arg)
            case Call(name="IS NOT NULL" | "IS NOT UNKNOWN", args=(arg,)):
                return IsNull(arg)
            case Call(name="IS DISTINCT FROM", args=(arg, Literal(value=value))):
                return self._not_distinct(arg, value)
            case Call(name="IS NOT DISTINCT FROM", args=(arg, Literal(value=value))):
                return self._distinct(arg, value)
            case Call(name=operator, args=args) if operator in _NEGATED and len(args) == 2:
                return self.truth(Call(_NEGATED[operator], args))
            case InList(arg=arg, items=items, negated=negated):
                return self.truth(InList(arg, items, not negated))
            case LikePattern(arg=arg, pattern=pattern, negated=negated):
                return self.truth(LikePattern(arg, pattern, not negated, node.case_sensitive))
            case Call(name="starts_with", args=(Column() as arg, Literal(value=start))):
                return Like(arg, _escaped(start.as_py()) + "%", True) if start.is_valid else FALSE
            case Case() if _is_choice(node):
                return self._chosen(node, self.falsity)
            case Call(name=operator, args=args) if operator in _OTHERWISE:
                return _opaque(Call(_OTHERWISE[operator], args))
        return _opaque(Call("NOT", (node,)))

    def _chosen(self, node: Case, side: Callable[[Node], Predicate]) -> Predicate:
        """The rows for which the value that a CASE chooses is on one side."""
        found: list[Predicate] = []
        before: list[Predicate] = []
        for when, then in node.branches:
            test = when if node.operand is None else Call("=", (node.operand, when))
            true = self.truth(test)
            found.append(all_of((*before, true, side(then))))
            before.append(complement(true))
        if node.otherwise is not None:
            found.append(all_of((*before, side(node.otherwise))))
        return any_of(found)

    def _comparison(self, operator: str, left: Node, right: Node) -> Predicate | None:
        if isinstance(left, Literal):
            left, right, operator = right, left, _MIRRORED.get(operator, operator)
        if not isinstance(right, Literal) or isinstance(left, Literal):
            return None
        if not right.value.is_valid:
            return FALSE
        is_logic = pt.is_boolean(right.value.type) and not isinstance(left, Column)
        if is_logic and operator in ("=", "!="):
            is_true = right.value.as_py() is (operator == "=")
            return self.truth(left) if is_true else self.falsity(left)
        if (years := self._years(left, operator, right.value)) is not None:
            return years
        if operator in ("=", "!="):
            return self._membership(left, (right,), operator == "!=")
        term, source = self._source(left, right.value.type)
        return uncast_comparison(term, source, operator, right.value)

    def _membership(self, arg: Node, items: tuple[Node, ...], negated: bool) -> Predicate | None:
        constants = [item.value for item in items if isinstance(item, Literal)]
        if len(constants) != len(items) or isinstance(arg, Literal):
            return None
        if pt.is_nested(constants[0].type):
            return None
        valid = [constant for constant in constants if constant.is_valid]
        if negated and len(valid) != len(constants):
            return FALSE
        if not valid:
            return TRUE if negated else FALSE
        values = pa.array(valid, valid[0].type)
        values = distinct(values) if len(values) > 1 else values
        term, source = self._source(arg, values.type)
        return uncast_membership(term, source, values, negated)

    def _years(self, left: Node, operator: str, value: pa.Scalar) -> Predicate | None:
        """A comparison of the calendar year as one of the column; None for all else."""
        match left:
            case Call(name="date_part", args=(Literal(value=part), Column() as column)):
                if part.as_py() == "year" and pt.is_integer(value.type):
                    kind, year = self._type(column), value.as_py()
                    starts = [self._new_year(kind, each) for each in (year, year + 1)]
                    return compare_year(column, kind, operator, year, starts)
        return None

    def _new_year(self, kind: pa.DataType, year: int) -> pa.Scalar | None:
        """When a year begins in a column's own zone; None in UTC, or where it has no one start."""
        if has_utc_meaning(kind) or not 0 < year < 9999:
            return None
        start = Literal(pa.scalar(f"{year:04d}-01-01T00:00:00"))
        try:
            found = engine.bind_node(Cast(start, kind), self._schema.arrow).node
        except engine.BadExpression:
            return None
        return found.value if isinstance(found, Literal) else None

    def _source(self, arg: Node, compared: pa.DataType) -> tuple[Node, pa.DataType]:
        """The term to compare and its type: inside a cast where the column's type is known."""
        if isinstance(arg, Cast) and arg.strict and isinstance(arg.arg, Column):
            return arg.arg, self._type(arg.arg)
        return arg, self._type(arg) if isinstance(arg, Column) else compared

    def _type(self, column: Column) -> pa.DataType:
        data_type = self._schema.type_of(self._schema.id_of(column.path))
        return data_type.value_type if pt.is_dictionary(data_type) else data_type

    def _distinct(self, arg: Node, value: pa.Scalar) -> Predicate:
        if not value.is_valid:
            return NotNull(arg)
        differs = self.truth(Call("!=", (arg, Literal(value))))
        return any_of((differs, IsNull(arg)))

    def _not_distinct(self, arg: Node, value: pa.Scalar) -> Predicate:
        if not value.is_valid:
            return IsNull(arg)
        if pt.is_boolean(value.type):
            return self.truth(arg) if value.as_py() else self.falsity(arg)
        return self.truth(Call("=", (arg, Literal(value))))


def _is_choice(node: Case) -> bool:
    """Whether a CASE is short, and chooses among constants."""
    values = [then for _, then in node.branches]
    values += [] if node.otherwise is None else [node.otherwise]
    return len(values) <= _SHORT_CASE and all(isinstance(value, Literal) for value in values)


def _escaped(text: str) -> str:
    for special in ("\\", "%", "_"):
        text = text.replace(special, "\\" + special)
    return text


def _opaque(node: Node) -> Predicate:
    return Opaque(to_sql(node), columns(node))


def _closed(parts: Iterable[Predicate]) -> Iterator[Predicate]:
    """`a >= 9` and `a <= 9` as `a = 9`."""
    found = list(parts)
    for part in found:
        if isinstance(part, Compare) and part.operator in (">=", "<="):
            other = Compare(part.term, {">=": "<=", "<=": ">="}[part.operator], part.value)
            if other in found:
                if part.operator == ">=":
                    yield In(part.term, pa.array([part.value], part.value.type))
                continue
        yield part


def _merged(parts: Iterable[Predicate]) -> Iterator[Predicate]:
    """Equalities on one term as one `In`: `a = 1 OR a = 2` is `a IN (1, 2)`."""
    sets: dict[Node, list[pa.Array]] = {}
    for part in parts:
        if isinstance(part, In):
            sets.setdefault(part.term, []).append(part.values)
        else:
            yield part
    for term, arrays in sets.items():
        for data_type in dict.fromkeys(array.type for array in arrays):
            same = [array for array in arrays if array.type == data_type]
            yield In(term, same[0] if len(same) == 1 else _united(same))


def _united(arrays: list[pa.Array]) -> pa.Array:
    """The values of all; with one zero both, which are equal but not always in a longer list."""
    return with_both_zeros(distinct(pa.concat_arrays(arrays)))
