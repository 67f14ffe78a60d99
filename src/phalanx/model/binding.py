"""From a `where` text to a bound predicate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.types as pt

from phalanx.errors import InvalidPredicate, PhalanxError, shown
from phalanx.model import engine
from phalanx.model.literals import NotExpressible, distinct, has_zero
from phalanx.model.predicate import (
    FALSE,
    TRUE,
    Always,
    In,
    IsNull,
    Like,
    NotNull,
    Opaque,
    Predicate,
    all_of,
    any_of,
    is_on_column,
    leaves,
)
from phalanx.model.rendering import to_datafusion
from phalanx.model.schema import Schema
from phalanx.model.syntax import (
    Call,
    Case,
    Cast,
    Column,
    InList,
    LikePattern,
    Literal,
    Node,
    children,
    columns,
    to_sql,
    walk,
)
from phalanx.model.uncast import uncast_comparison, uncast_membership

# DataFusion reads a list this short as equalities, which do not tell the zeros apart.
_SHORT_LIST = 3
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
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
            bound = engine.bind(where, schema.arrow)
            if not (pt.is_boolean(bound.type) or pt.is_null(bound.type)):
                raise engine.BadExpression(
                    f"it gives {bound.type}, not true or false. Compare it with a value."
                )
            return _tried(_Binder(schema).truth(bound.node), schema)
        except NotExpressible:
            return _by_parts(engine.parse(where, schema.arrow), schema)
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
        parts = list(walk(engine.parse(where, schema.arrow)))
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
            return all_of(_by_parts(part, schema) for part in _chain(node))
        case Call(name="OR"):
            return any_of(_merged(_by_parts(part, schema) for part in _chain(node)))
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
        engine.try_out(to_datafusion(all_of(odd)), schema.arrow)
    return predicate


class _Binder:
    """Turns a simplified expression into the predicate of the rows for which it is TRUE."""

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
                return all_of(self.truth(part) for part in _chain(node))
            case Call(name="OR"):
                return any_of(_merged(self.truth(part) for part in _chain(node)))
            case Call(name="NOT" | "IS FALSE", args=(arg,)):
                return self.falsity(arg)
            case Call(name="IS TRUE", args=(arg,)):
                return self.truth(arg)
            case Call(name="IS NOT TRUE", args=(Column() as arg,)):
                return any_of((self.falsity(arg), IsNull(arg)))
            case Call(name="IS NOT FALSE", args=(Column() as arg,)):
                return any_of((self.truth(arg), IsNull(arg)))
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
            case Case(operand=Call() as tested, branches=((Literal(value=when), then),)):
                # `text LIKE '%'` comes back as: CASE text IS NOT NULL WHEN true THEN true END
                if when.as_py() is True and node.otherwise is None:
                    return all_of((self.truth(tested), self.truth(then)))
            case LikePattern(arg=arg, pattern=Literal(value=pattern), negated=negated):
                if not pattern.is_valid:
                    return FALSE
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
                return any_of(_merged(self.falsity(part) for part in _chain(node)))
            case Call(name="OR"):
                return all_of(self.falsity(part) for part in _chain(node))
            case Call(name="NOT", args=(arg,)):
                return self.truth(arg)
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
        return _opaque(Call("NOT", (node,)))

    def _comparison(self, operator: str, left: Node, right: Node) -> Predicate | None:
        if isinstance(left, Literal):
            left, right, operator = right, left, _MIRRORED.get(operator, operator)
        if not isinstance(right, Literal) or isinstance(left, Literal):
            return None
        if not right.value.is_valid:
            return FALSE
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
        # How DataFusion compares a zero depends on how long the list is.
        if len(values) > 1 and not has_zero(values):
            values = distinct(values)
        term, source = self._source(arg, values.type)
        return uncast_membership(term, source, values, negated)

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


def _opaque(node: Node) -> Predicate:
    return Opaque(to_sql(node), columns(node))


def _chain(node: Call) -> list[Node]:
    """The operands of a chain of one operator, however long."""
    operands: list[Node] = []
    pending: list[Node] = [node]
    while pending:
        part = pending.pop()
        if isinstance(part, Call) and part.name == node.name:
            pending.extend(reversed(part.args))
        else:
            operands.append(part)
    return operands


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
    values = distinct(pa.concat_arrays(arrays))
    if len(values) > _SHORT_LIST and has_zero(values):
        zeros = pa.array([0.0, -0.0]).cast(values.type)
        values = distinct(pa.concat_arrays([values, zeros]))
    return values
