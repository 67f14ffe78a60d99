"""SQL text to typed expressions, and typed expressions to Arrow arrays, through DataFusion.

`bind` lets DataFusion do what it is best at: resolve names, coerce types, fold constants, push
NOT down, and turn `date_part('year', ts) = 2025` into a range.

The hash functions of the format are not DataFusion's. They are lifted out of an expression,
computed on Arrow arrays and put back as columns, so that each has one vectorised implementation.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from phalanx.errors import InvalidSchema, InvalidSpec, PhalanxError
from phalanx.model.chains import MOST_JUNCTIONS, MOST_OPERATORS, has_endless_chain
from phalanx.model.conversion import NotPerRow, to_node
from phalanx.model.md5_int import is_hashed_as_it_is, md5_int
from phalanx.model.murmur3 import murmur3, murmur3_multi
from phalanx.model.names import resolve_path
from phalanx.model.sentences import MOST_LEVELS, TOO_DEEP, sentence
from phalanx.model.session import LIFTED_FUNCTIONS, relation, typed_as
from phalanx.model.syntax import Call, Cast, Column, Literal, Node, depth, to_sql, transform, walk

_MENTIONS_LIFTED = re.compile("|".join(sorted(LIFTED_FUNCTIONS)), re.IGNORECASE)
# DataFusion's work on a chain of AND or OR is quadratic, on a balanced tree it is linear.
_JUNCTIONS = re.compile(r"\b(?:and|or)\b", re.IGNORECASE)
_LONG_CHAIN = 64
# Inside an expression a hash has 64 bits: the smallest int32 has no absolute value in 32.
_LIFTED_TYPE = pa.int64()
_NAME = r'(?:"(?:[^"]|"")*"|[^\s".]+)'
_UNKNOWN_COLUMN = re.compile(rf"No field named ({_NAME}(?:\.{_NAME})*)\.")
# A panic inside DataFusion is no Exception, but no reason to end the program either.
_STOPPED = (KeyboardInterrupt, SystemExit, GeneratorExit)
_VALUE = "value"


@dataclass(frozen=True, slots=True)
class Bound:
    """A type-checked, simplified expression and its Arrow type."""

    node: Node
    type: pa.DataType


class BadExpression(PhalanxError):
    """A text that is no valid expression over the given columns; says why, in one sentence."""


def parse(text: str, schema: pa.Schema) -> Node:
    """The text as written: names resolved, but nothing coerced or folded."""
    expression, aliases = _parse(text, schema)
    return _resolved(_node(expression), schema, aliases)


def bind(text: str, schema: pa.Schema) -> Bound:
    """The text type-checked against the schema and simplified."""
    expression, aliases = _parse(text, schema)
    if aliases or _MENTIONS_LIFTED.search(text) or len(_JUNCTIONS.findall(text)) > _LONG_CHAIN:
        return bind_node(_resolved(_node(expression), schema, aliases), schema)
    try:
        return _simplified(expression, schema)
    except BadExpression:
        written = _node(expression)
        exact = _resolved(written, schema, aliases)
        if exact == written:
            raise
        # A field inside a struct is there in another letter case.
        return bind_node(exact, schema)


def check_case(text: str, schema: pa.Schema) -> None:
    """Refuse a name that is a column's only if upper and lower case are the same."""
    expression, aliases = _parse(text, schema)
    for part in walk(_node(expression)):
        if isinstance(part, Column):
            exact = _exact_column(part, schema, aliases)
            if exact != part.path[: len(exact)]:
                written, meant = (".".join(path) for path in (part.path, exact))
                raise BadExpression(
                    f"No column {written!r}, in this letter case. Did you mean {meant!r}?"
                )


def bind_node(node: Node, schema: pa.Schema) -> Bound:
    """A parsed expression type-checked against the schema and simplified."""
    lifted: dict[str, Call] = {}

    def lift(part: Node) -> Node:
        if not isinstance(part, Call) or part.name not in LIFTED_FUNCTIONS:
            return part
        _check_lifted(part, _with_lifted(schema, lifted))
        name = _unused("lifted", {*schema.names, *lifted})
        lifted[name] = part
        return Column((name,))

    def lower(part: Node) -> Node:
        if isinstance(part, Column) and part.path[0] in lifted:
            return transform(lifted[part.path[0]], lower)
        return part

    rest = to_sql(transform(node, lift))
    extended = _with_lifted(schema, lifted)
    bound = _simplified(_parse(rest, extended)[0], extended)
    return Bound(transform(bound.node, lower), bound.type)


def try_out(sql: str, schema: pa.Schema) -> None:
    """Run SQL that Phalanx wrote on no rows: what DataFusion reads is not always what it can do."""
    evaluate(parse(sql, schema), _no_rows(schema), 0)


def evaluate(node: Node, columns: Mapping[str, pa.Array], rows: int) -> pa.Array:
    """The expression's value for each of the rows."""
    available = dict(columns)

    def compute(part: Node) -> Node:
        if not isinstance(part, Call) or part.name not in LIFTED_FUNCTIONS:
            return part
        name = _unused("lifted", available)
        available[name] = _evaluate_lifted(part, available, rows)
        return Column((name,))

    rest = transform(transform(node, _with_whole_abs), compute)
    if isinstance(rest, Column) and len(rest.path) == 1:
        return available[rest.path[0]]
    return evaluate_sql(to_sql(rest), available, rows)


def evaluate_sql(sql: str, columns: Mapping[str, pa.Array], rows: int) -> pa.Array:
    """The value of SQL that Phalanx wrote, and that calls no lifted function, for each row."""
    # A batch without columns could not tell how many rows it has.
    arrays = [*map(_with_null_children, columns.values()), pa.nulls(rows)]
    names = [*columns, _unused("rows", columns)]
    frame = relation(pa.RecordBatch.from_arrays(arrays, names=names))
    try:
        selected = frame.select(frame.parse_sql_expr(sql).alias(_VALUE))
        data_type = selected.schema().field(0).type
        batches = selected.collect()
    except _STOPPED:
        raise
    except BaseException as error:
        raise BadExpression(sentence(error)) from None
    chunks = [batch.column(0) for batch in batches]
    return pa.concat_arrays(chunks) if chunks else pa.array([], data_type)


def _with_null_children(array: pa.Array) -> pa.Array:
    """The array with NULL inside every NULL struct: DataFusion looks only at the child itself."""
    if not pt.is_struct(array.type) or not array.type.num_fields:
        return array
    children = [
        _with_null_children(pc.struct_field(array, [place]))
        for place in range(array.type.num_fields)
    ]
    fields = [
        pa.field(field.name, child.type) for field, child in zip(array.type, children, strict=True)
    ]
    return pa.StructArray.from_arrays(children, fields=fields, mask=array.is_null())


def _no_rows(schema: pa.Schema) -> dict[str, pa.Array]:
    return {field.name: pa.array([], field.type) for field in schema}


def _unused(stem: str, names: Container[str]) -> str:
    """A name like the stem that no column has."""
    numbered = (f"__{stem}_{number}__" for number in itertools.count())
    return next(name for name in numbered if name not in names)


def _parse(text: str, schema: pa.Schema) -> tuple[Any, dict[str, str]]:
    """DataFusion's parse, and the column meant by each name that matches only without case."""
    if has_endless_chain(text):
        raise BadExpression(
            f"more than {MOST_JUNCTIONS} times AND or OR, or {MOST_OPERATORS} other operators, "
            "follow each other. Write many values as IN (…), or split it."
        )
    aliases: dict[str, str] = {}
    while True:
        known = [pa.field(name, schema.field(exact).type) for name, exact in aliases.items()]
        try:
            return typed_as(pa.schema([*schema, *known])).parse_sql_expr(text), aliases
        except _STOPPED:
            raise
        except BaseException as error:
            path = _unknown_column(str(error))
            if path is None or path[0] in aliases:
                raise BadExpression(sentence(error)) from None
        aliases[path[0]] = _exact_path(path[:1], schema)[0]


def _unknown_column(message: str) -> tuple[str, ...] | None:
    if (match := _UNKNOWN_COLUMN.search(message)) is None:
        return None
    return tuple(
        name[1:-1].replace('""', '"') if name.startswith('"') else name
        for name in re.findall(_NAME, match[1])
    )


def _exact_path(path: tuple[str, ...], schema: pa.Schema) -> tuple[str, ...]:
    try:
        return resolve_path(path, schema)
    except InvalidSchema as error:
        raise BadExpression(str(error)) from None


def _node(expression: Any) -> Node:
    try:
        node = to_node(expression)
    except NotPerRow as error:
        raise BadExpression(
            sentence(error) + " is not a value of one row. "
            "Use columns, constants and scalar functions only."
        ) from None
    except RecursionError:
        raise BadExpression(TOO_DEEP) from None
    if depth(node) > MOST_LEVELS:
        raise BadExpression(TOO_DEEP)
    return node


def _resolved(node: Node, schema: pa.Schema, aliases: Mapping[str, str]) -> Node:
    """The node with exact column paths; what lies inside a map is a key, not a path."""

    def exact(part: Node) -> Node:
        if not isinstance(part, Column):
            return part
        path = _exact_column(part, schema, aliases)
        found: Node = Column(path)
        for key in part.path[len(path) :]:
            found = Call("get_field", (found, Literal(pa.scalar(key))))
        return found

    return transform(node, exact)


def _exact_column(column: Column, schema: pa.Schema, aliases: Mapping[str, str]) -> tuple[str, ...]:
    """The column or struct field that a written path leads to, as the schema spells it."""
    path = (aliases.get(column.path[0], column.path[0]), *column.path[1:])
    return _exact_path(path[: _struct_depth(path, schema)], schema)


def _struct_depth(path: tuple[str, ...], schema: pa.Schema) -> int:
    """How many names of the path are columns and struct fields, before a map or list comes."""
    for reach in range(1, len(path)):
        try:
            above = resolve_path(path[:reach], schema)
        except InvalidSchema:
            break
        data_type = schema.field(above[0]).type
        for name in above[1:]:
            data_type = data_type.field(name).type
        if pt.is_map(data_type) or pt.is_list(data_type) or pt.is_null(data_type):
            return reach
    return len(path)


def _simplified(expression: Any, schema: pa.Schema) -> Bound:
    frame = typed_as(schema)
    try:
        selected = frame.select(expression.alias(_VALUE))
        data_type = selected.schema().field(0).type
        plan = selected.optimized_logical_plan()
        (below,) = plan.inputs()
    except _STOPPED:
        raise
    except BaseException as error:
        raise BadExpression(sentence(error)) from None
    if type(below.to_variant()).__name__ != "TableScan":
        # DataFusion has moved a window or a subquery out of the expression: ask for its name.
        _node(expression)
    found = _node(plan.to_variant().projections()[0])
    return Bound(_resolved(found, schema, {}), data_type)


def _with_lifted(schema: pa.Schema, lifted: Mapping[str, Call]) -> pa.Schema:
    extra = [pa.field(name, _LIFTED_TYPE) for name in lifted]
    return pa.schema([*schema, *extra])


def _check_lifted(call: Call, schema: pa.Schema) -> None:
    """Try the function on no rows: it refuses what it cannot hash."""
    if call.name != "murmur3_multi" and len(call.args) != 1:
        raise BadExpression(f"{call.name} takes one argument, not {len(call.args)}.")
    if not call.args:
        raise BadExpression(f"{call.name} takes at least one argument.")
    try:
        _evaluate_lifted(call, _no_rows(schema), 0)
    except InvalidSpec as error:
        raise BadExpression(str(error)) from None


def _evaluate_lifted(call: Call, columns: Mapping[str, pa.Array], rows: int) -> pa.Array:
    match call.name:
        case "murmur3":
            return murmur3(_argument(call.args[0], columns, rows)).cast(_LIFTED_TYPE)
        case "murmur3_multi":
            hashed = murmur3_multi(*(_argument(arg, columns, rows) for arg in call.args))
            return hashed.cast(_LIFTED_TYPE)
        case "md5_int":
            (argument,) = call.args
            parts: tuple[Node, ...] = (argument,)
            if isinstance(argument, Call) and argument.name == "concat" and argument.args:
                parts = argument.args
            return md5_int(*(_text(part, columns, rows) for part in parts))
    raise AssertionError(call.name)


def _argument(node: Node, columns: Mapping[str, pa.Array], rows: int) -> pa.Array:
    if isinstance(node, Column) and len(node.path) == 1:
        return columns[node.path[0]]
    return evaluate_sql(to_sql(node), columns, rows)


def _text(node: Node, columns: Mapping[str, pa.Array], rows: int) -> pa.Array:
    """The values of an argument as what is hashed of them: text or bytes."""
    values = _argument(node, columns, rows)
    if is_hashed_as_it_is(values.type):
        return values
    # Equal values have one text, whatever their width.
    if pt.is_floating(values.type):
        values = values.cast(pa.float64())
    elif pt.is_date64(values.type):
        values = values.cast(pa.date32(), safe=False)
    return evaluate_sql(to_sql(Cast(Column((_VALUE,)), pa.string())), {_VALUE: values}, rows)


def _with_whole_abs(part: Node) -> Node:
    """`abs(hash) % n` as `abs(hash % n)`: the smallest int64 has no absolute value in 64 bits."""
    match part:
        case Call(name="%", args=(Call(name="abs", args=(Call() as hashed,)), Literal() as count)):
            if hashed.name in LIFTED_FUNCTIONS:
                return Call("abs", (Call("%", (hashed, count)),))
    return part
