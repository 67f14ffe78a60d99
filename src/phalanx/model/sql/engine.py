"""SQL text to typed expressions, and typed expressions to Arrow arrays, through DataFusion.

DataFusion reads SQL, resolves names, coerces types and computes functions. The logic is ours: its
simplifications take NULL for FALSE and let bounds overflow, so that none of them is ever applied
to more than one operation. `evaluate` computes AND, OR, NOT, the IS tests and CASE itself.

The hash functions of the format are not DataFusion's. They are lifted out of an expression,
computed on Arrow arrays and put back as columns, so that each has one vectorised implementation.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from phalanx.errors import InvalidSchema, InvalidSpec, PhalanxError
from phalanx.model.murmur3 import murmur3, murmur3_multi
from phalanx.model.schema.names import resolve_path
from phalanx.model.sql.conversion import NotPerRow, decoded, to_node
from phalanx.model.sql.datafusion_errors import MOST_LEVELS, TOO_DEEP, sentence
from phalanx.model.sql.exact_constants import MOST_DIGITS, exact_constants
from phalanx.model.sql.limits import MOST_JUNCTIONS, MOST_OPERATORS, has_endless_chain
from phalanx.model.sql.md5_int import is_hashed_as_it_is, md5_int
from phalanx.model.sql.session import LIFTED_FUNCTIONS, relation, typed_as, volatile_functions
from phalanx.model.sql.syntax import (
    POSTFIX_OPERATORS,
    Call,
    Case,
    Cast,
    Column,
    Literal,
    Node,
    chain,
    children,
    depth,
    map_children,
    to_sql,
    transform,
    walk,
)
from phalanx.model.sql.syntax import columns as columns_of

# Inside an expression a hash has 64 bits: the smallest int32 has no absolute value in 32.
_LIFTED_TYPE = pa.int64()
_NAME = r'(?:"(?:[^"]|"")*"|[^\s".]+)'
_UNKNOWN_COLUMN = re.compile(rf"No field named ({_NAME}(?:\.{_NAME})*)\.")
# A panic inside DataFusion is no Exception, but no reason to end the program either.
_STOPPED = (KeyboardInterrupt, SystemExit, GeneratorExit)
_NO_DECIMAL = re.compile("Decimal (?:precision|scale)")
_NUMBER = re.compile(
    r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`[^`]*`|[A-Za-z_]\w*|"""
    r"(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"
)
_VALUE = "value"
# Their value depends on the moment, but it is one for all rows.
_STEADY = frozenset(
    {"now", "current_date", "current_time", "current_timestamp", "today", "version"}
)
_LOGIC = (
    frozenset({"AND", "OR", "NOT", "=", "!=", "<", "<=", ">", ">="})
    | {"IS DISTINCT FROM", "IS NOT DISTINCT FROM"}
    | POSTFIX_OPERATORS
)


@dataclass(frozen=True, slots=True)
class Bound:
    """A type-checked, simplified expression and its Arrow type."""

    node: Node
    type: pa.DataType


class BadExpression(PhalanxError):
    """A text that is no valid expression over the given columns; says why, in one sentence."""


def parse(text: str, schema: pa.Schema, *, exact_numbers: bool = False) -> Node:
    """The text as written: names resolved, but nothing coerced or folded.

    A number with a fraction is a float, or the decimal that it spells if `exact_numbers`.
    """
    expression, aliases = _parse(text, schema, exact_numbers)
    return _resolved(_node(expression), schema, aliases)


def bind(text: str, schema: pa.Schema) -> Bound:
    """The text type-checked against the schema, its constants folded."""
    return bind_node(parse(text, schema), schema)


def bind_exactly(text: str, schema: pa.Schema) -> Bound:
    """Like `bind`, but every constant keeps its exact value in comparisons."""
    expression, aliases = _parse(text, schema, True)
    written = _node(expression)
    exact = _exact(_resolved(written, schema, aliases), schema)
    if exact == written and not any(_is_lifted(part) for part in walk(exact)):
        bound = _analysed(expression, schema)
        return Bound(_folded(bound.node), bound.type)
    return bind_node(exact, schema)


def parse_exactly(text: str, schema: pa.Schema) -> Node:
    """The text as written, but with constants in the type of what they are compared with."""
    return _exact(parse(text, schema, exact_numbers=True), schema)


def _exact(node: Node, schema: pa.Schema) -> Node:
    def folded(part: Node) -> Node:
        return part if isinstance(part, Literal) else _folded(part)

    return exact_constants(node, lambda part: type_of(part, schema), folded)


def _is_lifted(node: Node) -> bool:
    return isinstance(node, Call) and node.name in LIFTED_FUNCTIONS


def check_case(text: str, schema: pa.Schema) -> None:
    """Refuse a name that is a column's only if upper and lower case are the same."""
    expression, aliases = _parse(text, schema, True)
    for part in walk(_node(expression)):
        if isinstance(part, Column):
            exact = _exact_column(part, schema, aliases)
            if exact != part.path[: len(exact)]:
                written, meant = (".".join(path) for path in (part.path, exact))
                raise BadExpression(
                    f"No column {written!r}, in this letter case. Did you mean {meant!r}?"
                )


def bind_node(node: Node, schema: pa.Schema) -> Bound:
    """A parsed expression type-checked against the schema, its constants folded."""
    rest, lifted = _lifted(node, schema)

    def lower(part: Node) -> Node:
        if isinstance(part, Column) and part.path[0] in lifted:
            return transform(lifted[part.path[0]], lower)
        return part

    extended = _with_lifted(schema, lifted)
    bound = _analysed(_parse(to_sql(rest), extended, True)[0], extended)
    return Bound(transform(_folded(bound.node), lower), bound.type)


def type_of(node: Node, schema: pa.Schema) -> pa.DataType:
    """The type that DataFusion gives an expression."""
    if isinstance(node, Column) and len(node.path) == 1:
        return schema.field(node.path[0]).type
    if any(isinstance(part, Case) for part in walk(node)):
        # Without its coercions DataFusion gives the type of the first value.
        return evaluate(bind_node(node, schema).node, _no_rows(schema), 0).type
    rest, lifted = _lifted(node, schema)
    extended = _with_lifted(schema, lifted)
    expression = _parse(to_sql(rest), extended, True)[0]
    try:
        return typed_as(extended).select(expression.alias(_VALUE)).schema().field(0).type
    except _STOPPED:
        raise
    except BaseException as error:
        raise BadExpression(sentence(error)) from None


def _lifted(node: Node, schema: pa.Schema) -> tuple[Node, dict[str, Call]]:
    """The expression with columns in place of its lifted functions, and these."""
    lifted: dict[str, Call] = {}

    def lift(part: Node) -> Node:
        if not isinstance(part, Call) or not _is_lifted(part):
            return part
        _check_lifted(part, _with_lifted(schema, lifted))
        name = unused("lifted", {*schema.names, *lifted})
        lifted[name] = part
        return Column((name,))

    return transform(node, lift), lifted


def _folded(node: Node) -> Node:
    """The expression with a constant in place of every part that reads no column."""
    found: list[Node] = []

    def collect(part: Node) -> None:
        if isinstance(part, Literal | Column):
            return
        if _is_constant(part):
            found.append(part)
            return
        for child in children(part):
            collect(child)

    collect(node)
    if not found:
        return node
    constants = dict(zip(found, _constants(found), strict=True))

    def fold(part: Node) -> Node:
        return constants.get(part, part)

    return _transform_down(node, fold)


def _transform_down(node: Node, change: Callable[[Node], Node]) -> Node:
    changed = change(node)
    return (
        changed
        if changed is not node
        else map_children(node, partial(_transform_down, change=change))
    )


def _is_constant(node: Node) -> bool:
    """Whether a part has one value for all rows."""
    unsteady = volatile_functions() - _STEADY
    for part in walk(node):
        if isinstance(part, Column):
            return False
        if isinstance(part, Call) and (part.name in unsteady or part.name in LIFTED_FUNCTIONS):
            return False
    return True


def _constants(nodes: Sequence[Node]) -> list[Node]:
    """The value of each, as far as it is one that can be written down."""
    texts = list(map(to_sql, nodes))
    row = relation(pa.RecordBatch.from_arrays([pa.nulls(1)], names=["__rows__"]))
    try:
        selected = row.select(
            *(row.parse_sql_expr(text).alias(f"c{n}") for n, text in enumerate(texts))
        )
        (batch,) = selected.collect()
    except _STOPPED:
        raise
    except BaseException as error:
        if len(nodes) > 1:
            return [one for node in nodes for one in _constants([node])]
        raise BadExpression(sentence(error)) from None
    return [
        node if pt.is_nested(column.type) else Literal(decoded(column[0]))
        for node, column in zip(nodes, batch.columns, strict=True)
    ]


def try_out(sql: str, schema: pa.Schema) -> None:
    """Run SQL that Phalanx wrote on no rows: what DataFusion reads is not always what it can do."""
    evaluate(parse(sql, schema), _no_rows(schema), 0)


def evaluate(node: Node, columns: Mapping[str, pa.Array], rows: int) -> pa.Array:
    """The expression's value for each of the rows."""
    return _Evaluation(dict(columns), rows).value(transform(node, _with_whole_abs))


class _Evaluation:
    """Computes an expression part by part; parts without logic go to DataFusion as they are."""

    def __init__(self, columns: dict[str, pa.Array], rows: int) -> None:
        self._columns = columns
        self._rows = rows

    def value(self, node: Node) -> pa.Array:
        """The value for each row."""
        match node:
            case Column(path=(name,)):
                return self._columns[name]
            case Call(name="AND" | "OR" as name):
                return self._junction(name, chain(node))
            case Call(name="NOT", args=(arg,)):
                return pc.invert(self._truth(arg))
            case Call(name=name, args=(arg,)) if name in POSTFIX_OPERATORS:
                return self._test(name, arg)
            case Case():
                return self._case(node)
            case Call(name=name) if name in LIFTED_FUNCTIONS:
                args = tuple(map(self._argument, node.args))
                return _evaluate_lifted(Call(name, args), self._columns, self._rows)
        if not _has_no_logic(node):
            node = self._named(node)
        return evaluate_sql(to_sql(node), self._read_by(node), self._rows)

    def _named(self, node: Node) -> Node:
        """The node with its parts computed, and columns in their place."""

        def computed(part: Node) -> Node:
            if isinstance(part, Literal | Column):
                return part
            name = unused("part", self._columns)
            self._columns[name] = self.value(part)
            return Column((name,))

        return map_children(node, computed)

    def _argument(self, node: Node) -> Node:
        """An argument of a lifted function, with a column in place of what has logic in it."""
        if _has_no_logic(node):
            return node
        if isinstance(node, Call) and node.name == "concat":
            return map_children(node, self._argument)
        return self._column(node)

    def _truth(self, node: Node) -> pa.BooleanArray:
        found = self.value(node)
        return found.cast(pa.bool_()) if pt.is_null(found.type) else found

    def _junction(self, name: str, operands: Sequence[Node]) -> pa.BooleanArray:
        """AND or OR of many, each computed only for the rows that are not decided yet."""
        decisive = name == "OR"
        decided = np.zeros(self._rows, dtype=bool)
        unknown = np.zeros(self._rows, dtype=bool)
        for operand in operands:
            places = np.flatnonzero(~decided)
            found = self._at(places)._truth(operand)
            decided[places] = _is(found, decisive)
            unknown[places] |= found.is_null().to_numpy(zero_copy_only=False)
        return pa.array(decided == decisive, mask=unknown & ~decided)

    def _test(self, name: str, arg: Node) -> pa.BooleanArray:
        match name:
            case "IS NULL" | "IS UNKNOWN":
                return self.value(arg).is_null()
            case "IS NOT NULL" | "IS NOT UNKNOWN":
                return self.value(arg).is_valid()
        found = pa.array(_is(self._truth(arg), "TRUE" in name))
        return pc.invert(found) if "NOT" in name else found

    def _case(self, node: Case) -> pa.Array:
        """Each value computed only for the rows that get it."""
        operand = None if node.operand is None else self._column(node.operand)
        source = np.full(self._rows, -1, dtype=np.int64)
        values: list[pa.Array] = []
        count = 0
        pending = np.arange(self._rows)
        tests: list[tuple[Node, Node]] = [
            (when if operand is None else Call("=", (operand, when)), then)
            for when, then in node.branches
        ]
        if node.otherwise is not None:
            tests.append((Literal(pa.scalar(True)), node.otherwise))
        for test, then in tests:
            chosen = _is(self._at(pending)._truth(test), True)
            places, pending = pending[chosen], pending[~chosen]
            values.append(_takeable(self._at(places).value(then)))
            source[places] = np.arange(count, count + len(places))
            count += len(places)
        kind = _common_type(values)
        together = pa.concat_arrays([each.cast(kind) for each in values])
        return together.take(pa.array(source, mask=source < 0))

    def _column(self, node: Node) -> Node:
        name = unused("part", self._columns)
        self._columns[name] = self.value(node)
        return Column((name,))

    def _at(self, places: npt.NDArray[np.int64]) -> _Evaluation:
        """The evaluation of some of the rows."""
        if len(places) == self._rows:
            return self
        taken = pa.array(places)
        columns = {name: _takeable(column).take(taken) for name, column in self._columns.items()}
        return _Evaluation(columns, len(places))

    def _read_by(self, node: Node) -> dict[str, pa.Array]:
        read = {path[0] for path in columns_of(node)}
        return {name: column for name, column in self._columns.items() if name in read}


def _takeable(array: pa.Array) -> pa.Array:
    """The array without views of texts or bytes, as DataFusion makes them: Arrow takes none out."""
    if pt.is_string_view(array.type):
        return array.cast(pa.string())
    return array.cast(pa.binary()) if pt.is_binary_view(array.type) else array


def _common_type(values: Sequence[pa.Array]) -> pa.DataType:
    """The type of a CASE with these values."""
    kinds = list(dict.fromkeys(each.type for each in values if not pt.is_null(each.type)))
    if len(kinds) < 2:
        return kinds[0] if kinds else pa.null()
    nulls = {f"c{place}": pa.nulls(1, kind) for place, kind in enumerate(kinds)}
    branches = "".join(f" WHEN {name} IS NULL THEN {name}" for name in nulls)
    return evaluate_sql(f"CASE{branches} END", nulls, 1).type


def _is(found: pa.BooleanArray, value: bool) -> npt.NDArray[np.bool_]:
    """Where the values are TRUE, or where they are FALSE."""
    kept = found if value else pc.invert(found)
    flags: npt.NDArray[np.bool_] = kept.fill_null(False).to_numpy(zero_copy_only=False)
    return flags


def _has_no_logic(node: Node) -> bool:
    """Whether the parts are columns, constants, casts and functions of values, and nothing else.

    DataFusion may simplify these together: none of its rules for them knows NULL or a bound.
    """
    return all(
        isinstance(part, Column | Literal | Cast)
        or (
            isinstance(part, Call) and part.name not in _LOGIC and part.name not in LIFTED_FUNCTIONS
        )
        for part in walk(node)
    )


def evaluate_sql(sql: str, columns: Mapping[str, pa.Array], rows: int) -> pa.Array:
    """The value of SQL that Phalanx wrote, and that calls no lifted function, for each row."""
    (found,) = evaluate_each([sql], columns, rows)
    return found


def evaluate_each(
    sqls: Sequence[str], columns: Mapping[str, pa.Array], rows: int
) -> list[pa.Array]:
    """The values of several such texts, each by itself."""
    # A batch without columns could not tell how many rows it has.
    arrays = [*map(_with_null_children, columns.values()), pa.nulls(rows)]
    names = [*columns, unused("rows", columns)]
    frame = relation(pa.RecordBatch.from_arrays(arrays, names=names))
    try:
        selected = frame.select(
            *(frame.parse_sql_expr(sql).alias(f"{_VALUE}{n}") for n, sql in enumerate(sqls))
        )
        kinds = [field.type for field in selected.schema()]
        batches = selected.collect()
    except _STOPPED:
        raise
    except BaseException as error:
        raise BadExpression(sentence(error)) from None
    return [
        pa.concat_arrays([batch.column(place) for batch in batches])
        if batches
        else pa.array([], kind)
        for place, kind in enumerate(kinds)
    ]


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


def unused(stem: str, names: Container[str]) -> str:
    """A name like the stem that no column has."""
    numbered = (f"__{stem}_{number}__" for number in itertools.count())
    return next(name for name in numbered if name not in names)


def _parse(text: str, schema: pa.Schema, exact_numbers: bool) -> tuple[Any, dict[str, str]]:
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
            frame = typed_as(pa.schema([*schema, *known]), exact_numbers=exact_numbers)
            return frame.parse_sql_expr(text), aliases
        except _STOPPED:
            raise
        except BaseException as error:
            if _NO_DECIMAL.search(str(error)) and (written := _with_extremes(text)) != text:
                text = written
                continue
            path = _unknown_column(str(error))
            if path is None or path[0] in aliases:
                raise BadExpression(sentence(error)) from None
        aliases[path[0]] = _exact_path(path[:1], schema)[0]


def _with_extremes(text: str) -> str:
    """The text with floats for the numbers that no decimal holds.

    They are above or below all decimals, so that a float orders them well enough.
    """

    def as_float(match: re.Match[str]) -> str:
        if (number := match["number"]) is None:
            return match[0]
        size = Decimal(number)
        _, digits, exponent = size.as_tuple()
        assert isinstance(exponent, int)
        if size == 0 or (exponent >= -MOST_DIGITS and len(digits) + exponent <= MOST_DIGITS):
            if len(digits) <= MOST_DIGITS:
                return number
            raise BadExpression(f"{number} has more than {MOST_DIGITS} digits. Write fewer.")
        if len(digits) > MOST_DIGITS and size.adjusted() < MOST_DIGITS:
            raise BadExpression(f"{number} has more than {MOST_DIGITS} digits. Write fewer.")
        return f"arrow_cast('{float(number) or 5e-324!r}', 'Float64')"

    return _NUMBER.sub(as_float, text)


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


def _analysed(expression: Any, schema: pa.Schema) -> Bound:
    """The expression type-checked, with casts where types differ."""
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
