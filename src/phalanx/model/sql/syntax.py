"""SQL expressions as plain values: what DataFusion parsed, in a form that can be kept and compared.

A `Node` is immutable, knows nothing of a session, and renders back to SQL that DataFusion reads
as the very same expression: every literal keeps its Arrow type.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias, assert_never

import pyarrow as pa
import pyarrow.types as pt

from phalanx.model.sql.literals import quote, type_name, typed_sql


@dataclass(frozen=True, slots=True)
class Column:
    """A column, or a field inside a struct column: `("address", "city")`."""

    path: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Literal:
    """A constant with its exact Arrow type; equal only to the very same one, bit by bit."""

    value: pa.Scalar

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Literal) and self._bits() == other._bits()

    def __hash__(self) -> int:
        return hash(self._bits())

    def _bits(self) -> tuple[pa.DataType, object]:
        """Arrow takes both zeros for equal, and no NaN for equal to itself."""
        if pt.is_floating(self.value.type) and self.value.is_valid:
            return self.value.type, struct.pack("<d", float(self.value.as_py()))
        return self.value.type, self.value


@dataclass(frozen=True, slots=True)
class Call:
    """A scalar function, an operator or a postfix test such as `IS NULL`, by its SQL name."""

    name: str
    args: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Cast:
    """A cast; `strict` ones fail on a value that does not fit, others give NULL."""

    arg: Node
    type: pa.DataType
    strict: bool = True


@dataclass(frozen=True, slots=True)
class InList:
    """`arg [NOT] IN (items…)`."""

    arg: Node
    items: tuple[Node, ...]
    negated: bool


@dataclass(frozen=True, slots=True)
class LikePattern:
    """`arg [NOT] LIKE pattern`, or ILIKE when case does not matter."""

    arg: Node
    pattern: Node
    negated: bool
    case_sensitive: bool


@dataclass(frozen=True, slots=True)
class Case:
    """`CASE [operand] WHEN … THEN … [ELSE …] END`."""

    operand: Node | None
    branches: tuple[tuple[Node, Node], ...]
    otherwise: Node | None


Node: TypeAlias = Column | Literal | Call | Cast | InList | LikePattern | Case

PREFIX_OPERATORS = frozenset({"NOT", "-"})
POSTFIX_OPERATORS = frozenset(
    {
        "IS NULL",
        "IS NOT NULL",
        "IS TRUE",
        "IS NOT TRUE",
        "IS FALSE",
        "IS NOT FALSE",
        "IS UNKNOWN",
        "IS NOT UNKNOWN",
    }
)
INFIX_OPERATORS = frozenset(
    {"AND", "OR", "=", "!=", "<", "<=", ">", ">=", "+", "-", "*", "/", "%", "||", "&", "|", "^"}
    | {"<<", ">>", "~", "!~", "~*", "!~*", "~~", "!~~", "~~*", "!~~*"}
    | {"IS DISTINCT FROM", "IS NOT DISTINCT FROM"}
)
# Operators of one precedence, which parsers read from left to right.
_CHAINS = ({"+", "-"}, {"*", "/", "%"}, {"||"}, {"&"}, {"|"}, {"AND"}, {"OR"})


def children(node: Node) -> tuple[Node, ...]:
    """The direct sub-expressions of a node."""
    match node:
        case Column() | Literal():
            return ()
        case Call(args=args):
            return args
        case Cast(arg=arg):
            return (arg,)
        case InList(arg=arg, items=items):
            return (arg, *items)
        case LikePattern(arg=arg, pattern=pattern):
            return (arg, pattern)
        case Case(operand=operand, branches=branches, otherwise=otherwise):
            pairs = tuple(part for branch in branches for part in branch)
            return tuple(part for part in (operand, *pairs, otherwise) if part is not None)
    assert_never(node)


def walk(node: Node) -> Iterator[Node]:
    """The node and everything below it."""
    yield node
    for child in children(node):
        yield from walk(child)


def depth(node: Node) -> int:
    """How many nodes lie one inside the other, at the deepest place."""
    levels, level = 0, [node]
    while level:
        levels += 1
        level = [child for parent in level for child in children(parent)]
    return levels


def columns(node: Node) -> frozenset[tuple[str, ...]]:
    """The paths of all columns a node reads."""
    return frozenset(part.path for part in walk(node) if isinstance(part, Column))


def chain(node: Call) -> list[Node]:
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


def transform(node: Node, change: Callable[[Node], Node]) -> Node:
    """The node with `change` applied to every part, from the leaves upwards."""
    return change(map_children(node, lambda child: transform(child, change)))


def map_children(node: Node, change: Callable[[Node], Node]) -> Node:
    """The node with `change` applied to its direct sub-expressions."""
    match node:
        case Column() | Literal():
            return node
        case Call(args=args):
            return replace(node, args=tuple(map(change, args)))
        case Cast(arg=arg):
            return replace(node, arg=change(arg))
        case InList(arg=arg, items=items):
            return replace(node, arg=change(arg), items=tuple(map(change, items)))
        case LikePattern(arg=arg, pattern=pattern):
            return replace(node, arg=change(arg), pattern=change(pattern))
        case Case(operand=operand, branches=branches, otherwise=otherwise):
            return Case(
                None if operand is None else change(operand),
                tuple((change(when), change(then)) for when, then in branches),
                None if otherwise is None else change(otherwise),
            )
    assert_never(node)


def to_sql(node: Node) -> str:
    """The node as SQL in DataFusion's dialect, fully typed, in parentheses but for plain chains."""
    match node:
        case Column(path=path):
            return ".".join(quote(name, '"') for name in path)
        case Literal(value=value):
            return typed_sql(value)
        case Call(name=name, args=(arg,)) if name in PREFIX_OPERATORS:
            return f"({name} {to_sql(arg)})"
        case Call(name=name, args=(arg,)) if name in POSTFIX_OPERATORS:
            return f"({to_sql(arg)} {name})"
        case Call(name=name, args=(left, right)) if name in INFIX_OPERATORS:
            return f"({_left_operand(left, name)} {name} {to_sql(right)})"
        case Call(name=name, args=args):
            return f"{name}({', '.join(to_sql(arg) for arg in args)})"
        case Cast(arg=arg, type=data_type, strict=strict):
            function = "arrow_cast" if strict else "arrow_try_cast"
            return f"{function}({to_sql(arg)}, '{type_name(data_type)}')"
        case InList(arg=arg, items=items, negated=negated):
            test = "NOT IN" if negated else "IN"
            return f"({to_sql(arg)} {test} ({', '.join(to_sql(item) for item in items)}))"
        case LikePattern(arg=arg, pattern=pattern, negated=negated, case_sensitive=sensitive):
            test = ("NOT " if negated else "") + ("LIKE" if sensitive else "ILIKE")
            return f"({to_sql(arg)} {test} {to_sql(pattern)})"
        case Case(operand=operand, branches=branches, otherwise=otherwise):
            head = "" if operand is None else f" {to_sql(operand)}"
            body = "".join(f" WHEN {to_sql(w)} THEN {to_sql(t)}" for w, t in branches)
            tail = "" if otherwise is None else f" ELSE {to_sql(otherwise)}"
            return f"CASE{head}{body}{tail} END"
    assert_never(node)


def _left_operand(node: Node, operator: str) -> str:
    """`a + b` in `a + b + c` stands without parentheses, of which parsers take only so many."""
    sql = to_sql(node)
    if not isinstance(node, Call) or len(node.args) != 2:
        return sql
    chained = any(node.name in chain and operator in chain for chain in _CHAINS)
    return sql[1:-1] if chained else sql
