"""SQL expressions as immutable values that can be stored and compared.

A `Node` depends on no session, and renders to SQL that DataFusion parses to the same expression:
every literal keeps its Arrow type.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias, assert_never

import pyarrow as pa
import pyarrow.types as pt

from phalanx.model.sql.literals import quote_identifier, render_typed, to_type_name


@dataclass(frozen=True, slots=True)
class Column:
    """A column, or a field inside a struct column: `("address", "city")`."""

    path: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """A constant with its Arrow type; equal only to a constant of the same type and bits."""

    value: pa.Scalar

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Constant) and self._bits() == other._bits()

    def __hash__(self) -> int:
        return hash(self._bits())

    def _bits(self) -> tuple[pa.DataType, object]:
        """Return what to compare: for Arrow both zeros are equal, and NaN differs from itself."""
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
    """A cast; if `strict` it fails on a value that does not fit, else it gives NULL."""

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
    """`arg [NOT] LIKE pattern`, or ILIKE if not `case_sensitive`."""

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


Node: TypeAlias = Column | Constant | Call | Cast | InList | LikePattern | Case

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
# Operators of the same precedence, which parsers read from left to right.
_CHAINS = ({"+", "-"}, {"*", "/", "%"}, {"||"}, {"&"}, {"|"}, {"AND"}, {"OR"})


def list_subexpressions(node: Node) -> tuple[Node, ...]:
    """Return the direct sub-expressions of a node."""
    match node:
        case Column() | Constant():
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


def walk_nodes(node: Node) -> Iterator[Node]:
    """Iterate over the node and all its sub-expressions."""
    yield node
    for child in list_subexpressions(node):
        yield from walk_nodes(child)


def measure_depth(node: Node) -> int:
    """Return the depth of the expression tree."""
    levels, level = 0, [node]
    while level:
        levels += 1
        level = [child for parent in level for child in list_subexpressions(parent)]
    return levels


def find_columns(node: Node) -> frozenset[tuple[str, ...]]:
    """Return the paths of all columns that a node reads."""
    return frozenset(part.path for part in walk_nodes(node) if isinstance(part, Column))


def flatten_chain(node: Call) -> list[Node]:
    """Return the operands of a chain of one operator, of any length."""
    operands: list[Node] = []
    pending: list[Node] = [node]
    while pending:
        part = pending.pop()
        if isinstance(part, Call) and part.name == node.name:
            pending.extend(reversed(part.args))
        else:
            operands.append(part)
    return operands


def map_nodes(node: Node, change: Callable[[Node], Node]) -> Node:
    """Apply `change` to every part of a node, from the operands upwards."""
    return change(map_children(node, lambda child: map_nodes(child, change)))


def map_children(node: Node, change: Callable[[Node], Node]) -> Node:
    """Apply `change` to the direct sub-expressions of a node."""
    match node:
        case Column() | Constant():
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
    """Render the node in DataFusion's dialect, fully typed, with parentheses except in chains."""
    match node:
        case Column(path=path):
            return ".".join(quote_identifier(name, '"') for name in path)
        case Constant(value=value):
            return render_typed(value)
        case Call(name=name, args=(arg,)) if name in PREFIX_OPERATORS:
            return f"({name} {to_sql(arg)})"
        case Call(name=name, args=(arg,)) if name in POSTFIX_OPERATORS:
            return f"({to_sql(arg)} {name})"
        case Call(name=name, args=(left, right)) if name in INFIX_OPERATORS:
            return f"({_render_left_operand(left, name)} {name} {to_sql(right)})"
        case Call(name=name, args=args):
            return f"{name}({', '.join(to_sql(arg) for arg in args)})"
        case Cast(arg=arg, type=data_type, strict=strict):
            function = "arrow_cast" if strict else "arrow_try_cast"
            return f"{function}({to_sql(arg)}, '{to_type_name(data_type)}')"
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


def _render_left_operand(node: Node, operator: str) -> str:
    """Omit the parentheses of `a + b` in `a + b + c`: parsers limit their depth."""
    sql = to_sql(node)
    if not isinstance(node, Call) or len(node.args) != 2:
        return sql
    chained = any(node.name in chain and operator in chain for chain in _CHAINS)
    return sql[1:-1] if chained else sql
