"""Parsing, type checking and evaluation of SQL expressions through DataFusion.

DataFusion parses SQL, resolves names, coerces types and computes functions. Phalanx evaluates the
logic: DataFusion's simplifications treat NULL as FALSE and let bounds overflow, so none of them is
ever applied to more than one operation. `evaluate` computes AND, OR, NOT, IS tests and CASE itself.

The hash functions of the format are not DataFusion's. They are extracted from an expression,
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
from phalanx.model.sql.conversion import NotPerRow, decode_constant, to_node
from phalanx.model.sql.datafusion_errors import explain_error
from phalanx.model.sql.exact_constants import MAX_DECIMAL_DIGITS, make_constants_exact
from phalanx.model.sql.limits import (
    MAX_DEPTH,
    MAX_JUNCTIONS,
    MAX_OPERATORS,
    TOO_DEEP,
    has_too_long_chain,
)
from phalanx.model.sql.md5_int import is_hashed_as_bytes, md5_int
from phalanx.model.sql.session import (
    HASH_FUNCTIONS,
    create_empty_relation,
    create_relation,
    list_volatile_functions,
)
from phalanx.model.sql.syntax import (
    POSTFIX_OPERATORS,
    Call,
    Case,
    Cast,
    Column,
    Constant,
    Node,
    find_columns,
    flatten_chain,
    list_subexpressions,
    map_children,
    map_nodes,
    measure_depth,
    to_sql,
    walk_nodes,
)

# Inside an expression a hash has 64 bits: the smallest int32 has no absolute value in 32 bits.
_HASH_TYPE = pa.int64()
_NAME = r'(?:"(?:[^"]|"")*"|[^\s".]+)'
_UNKNOWN_COLUMN = re.compile(rf"No field named ({_NAME}(?:\.{_NAME})*)\.")
# A panic in DataFusion is a BaseException, but must not end the program: catch all but these.
_STOP_SIGNALS = (KeyboardInterrupt, SystemExit, GeneratorExit)
_DECIMAL_ERROR = re.compile("Decimal (?:precision|scale)")
_NUMBER = re.compile(
    r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`[^`]*`|[A-Za-z_]\w*|"""
    r"(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"
)
_VALUE = "value"
# Volatile, but with one value for all rows of a query.
_CONSTANT_PER_QUERY = frozenset(
    {"now", "current_date", "current_time", "current_timestamp", "today", "version"}
)
_LOGIC = (
    frozenset({"AND", "OR", "NOT", "=", "!=", "<", "<=", ">", ">="})
    | {"IS DISTINCT FROM", "IS NOT DISTINCT FROM"}
    | POSTFIX_OPERATORS
)


@dataclass(frozen=True, slots=True)
class BoundExpression:
    """A type-checked expression with folded constants, and its Arrow type."""

    node: Node
    type: pa.DataType


class BadExpression(PhalanxError):
    """A text is not a valid expression over the given columns; the message says why."""


def parse_expression(text: str, schema: pa.Schema, *, exact_numbers: bool = False) -> Node:
    """Parse the text and resolve its names, without coercing types or folding constants.

    A number with a fraction is a float, or an exact decimal if `exact_numbers`.
    """
    expression, aliases = _parse_sql(text, schema, exact_numbers)
    return _resolve_columns(_convert(expression), schema, aliases)


def bind_expression(text: str, schema: pa.Schema) -> BoundExpression:
    """Type-check the text against the schema and fold its constants."""
    return bind_node(parse_expression(text, schema), schema)


def bind_expression_exactly(text: str, schema: pa.Schema) -> BoundExpression:
    """Like `bind_expression`, but every constant keeps its exact value in comparisons."""
    expression, aliases = _parse_sql(text, schema, True)
    written = _convert(expression)
    exact = _make_exact(_resolve_columns(written, schema, aliases), schema)
    if exact == written and not any(_is_hash_call(part) for part in walk_nodes(exact)):
        bound = _analyze(expression, schema)
        return BoundExpression(_fold_constants(bound.node), bound.type)
    return bind_node(exact, schema)


def parse_expression_exactly(text: str, schema: pa.Schema) -> Node:
    """Like `parse_expression`, but give constants the type of what they are compared with."""
    return _make_exact(parse_expression(text, schema, exact_numbers=True), schema)


def _make_exact(node: Node, schema: pa.Schema) -> Node:
    def fold(part: Node) -> Node:
        return part if isinstance(part, Constant) else _fold_constants(part)

    return make_constants_exact(node, lambda part: infer_type(part, schema), fold)


def _is_hash_call(node: Node) -> bool:
    return isinstance(node, Call) and node.name in HASH_FUNCTIONS


def check_column_case(text: str, schema: pa.Schema) -> None:
    """Refuse a name that matches a column only if case is ignored."""
    expression, aliases = _parse_sql(text, schema, True)
    for part in walk_nodes(_convert(expression)):
        if isinstance(part, Column):
            exact = _resolve_column(part, schema, aliases)
            if exact != part.path[: len(exact)]:
                written, meant = (".".join(path) for path in (part.path, exact))
                raise BadExpression(
                    f"No column {written!r}, in this letter case. Did you mean {meant!r}?"
                )


def bind_node(node: Node, schema: pa.Schema) -> BoundExpression:
    """Type-check a parsed expression against the schema and fold its constants."""
    rest, hash_calls = _extract_hash_calls(node, schema)

    def restore(part: Node) -> Node:
        if isinstance(part, Column) and part.path[0] in hash_calls:
            return map_nodes(hash_calls[part.path[0]], restore)
        return part

    extended = _add_hash_columns(schema, hash_calls)
    bound = _analyze(_parse_sql(to_sql(rest), extended, True)[0], extended)
    return BoundExpression(map_nodes(_fold_constants(bound.node), restore), bound.type)


def infer_type(node: Node, schema: pa.Schema) -> pa.DataType:
    """Return the type that DataFusion infers for an expression."""
    if isinstance(node, Column) and len(node.path) == 1:
        return schema.field(node.path[0]).type
    if any(isinstance(part, Case) for part in walk_nodes(node)):
        # Without coercion, DataFusion gives a CASE the type of its first value.
        return evaluate(bind_node(node, schema).node, _empty_columns(schema), 0).type
    rest, hash_calls = _extract_hash_calls(node, schema)
    extended = _add_hash_columns(schema, hash_calls)
    expression = _parse_sql(to_sql(rest), extended, True)[0]
    try:
        return (
            create_empty_relation(extended).select(expression.alias(_VALUE)).schema().field(0).type
        )
    except _STOP_SIGNALS:
        raise
    except BaseException as error:
        raise BadExpression(explain_error(error)) from None


def _extract_hash_calls(node: Node, schema: pa.Schema) -> tuple[Node, dict[str, Call]]:
    """Replace the hash calls of an expression by columns; return it and the calls by column."""
    hash_calls: dict[str, Call] = {}

    def extract(part: Node) -> Node:
        if not isinstance(part, Call) or not _is_hash_call(part):
            return part
        _check_hash_call(part, _add_hash_columns(schema, hash_calls))
        name = choose_unused_name("hash", {*schema.names, *hash_calls})
        hash_calls[name] = part
        return Column((name,))

    return map_nodes(node, extract), hash_calls


def _fold_constants(node: Node) -> Node:
    """Replace every part that reads no column by its value."""
    found: list[Node] = []

    def collect(part: Node) -> None:
        if isinstance(part, Constant | Column):
            return
        if _is_constant(part):
            found.append(part)
            return
        for child in list_subexpressions(part):
            collect(child)

    collect(node)
    if not found:
        return node
    constants = dict(zip(found, _evaluate_constants(found), strict=True))

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
    """Return whether a part has one value for all rows."""
    volatile = list_volatile_functions() - _CONSTANT_PER_QUERY
    for part in walk_nodes(node):
        if isinstance(part, Column):
            return False
        if isinstance(part, Call) and (part.name in volatile or part.name in HASH_FUNCTIONS):
            return False
    return True


def _evaluate_constants(nodes: Sequence[Node]) -> list[Node]:
    """Evaluate each node to a literal; keep nodes whose value is nested."""
    texts = list(map(to_sql, nodes))
    row = create_relation(pa.RecordBatch.from_arrays([pa.nulls(1)], names=["__rows__"]))
    try:
        selected = row.select(
            *(row.parse_sql_expr(text).alias(f"c{n}") for n, text in enumerate(texts))
        )
        (batch,) = selected.collect()
    except _STOP_SIGNALS:
        raise
    except BaseException as error:
        if len(nodes) > 1:
            return [one for node in nodes for one in _evaluate_constants([node])]
        raise BadExpression(explain_error(error)) from None
    return [
        node if pt.is_nested(column.type) else Constant(decode_constant(column[0]))
        for node, column in zip(nodes, batch.columns, strict=True)
    ]


def check_runnable(sql: str, schema: pa.Schema) -> None:
    """Run SQL that Phalanx wrote on no rows: DataFusion cannot run all that it can parse."""
    evaluate(parse_expression(sql, schema), _empty_columns(schema), 0)


def evaluate(node: Node, columns: Mapping[str, pa.Array], rows: int) -> pa.Array:
    """Evaluate the expression for each row."""
    return _Evaluator(dict(columns), rows).evaluate(map_nodes(node, _reduce_before_abs))


class _Evaluator:
    """Evaluates an expression part by part; DataFusion evaluates the parts without logic."""

    def __init__(self, columns: dict[str, pa.Array], rows: int) -> None:
        self._columns = columns
        self._rows = rows

    def evaluate(self, node: Node) -> pa.Array:
        """Evaluate the node for each row."""
        match node:
            case Column(path=(name,)):
                return self._columns[name]
            case Call(name="AND" | "OR" as name):
                return self._evaluate_junction(name, flatten_chain(node))
            case Call(name="NOT", args=(arg,)):
                return pc.invert(self._evaluate_boolean(arg))
            case Call(name=name, args=(arg,)) if name in POSTFIX_OPERATORS:
                return self._evaluate_test(name, arg)
            case Case():
                return self._evaluate_case(node)
            case Call(name=name) if name in HASH_FUNCTIONS:
                args = tuple(map(self._prepare_argument, node.args))
                return _evaluate_hash_call(Call(name, args), self._columns, self._rows)
        if not _has_no_logic(node):
            node = self._replace_parts(node)
        return evaluate_sql(to_sql(node), self._select_columns(node), self._rows)

    def _replace_parts(self, node: Node) -> Node:
        """Evaluate the direct parts of a node and replace them by columns."""

        def store(part: Node) -> Node:
            if isinstance(part, Constant | Column):
                return part
            name = choose_unused_name("part", self._columns)
            self._columns[name] = self.evaluate(part)
            return Column((name,))

        return map_children(node, store)

    def _prepare_argument(self, node: Node) -> Node:
        """Replace the parts of a hash function's argument that contain logic by columns."""
        if _has_no_logic(node):
            return node
        if isinstance(node, Call) and node.name == "concat":
            return map_children(node, self._prepare_argument)
        return self._store_as_column(node)

    def _evaluate_boolean(self, node: Node) -> pa.BooleanArray:
        found = self.evaluate(node)
        return found.cast(pa.bool_()) if pt.is_null(found.type) else found

    def _evaluate_junction(self, name: str, operands: Sequence[Node]) -> pa.BooleanArray:
        """Evaluate AND or OR of many operands, each only for the rows that are still undecided."""
        decisive = name == "OR"
        decided = np.zeros(self._rows, dtype=bool)
        unknown = np.zeros(self._rows, dtype=bool)
        for operand in operands:
            rows = np.flatnonzero(~decided)
            found = self._take_rows(rows)._evaluate_boolean(operand)
            decided[rows] = _flag_rows(found, decisive)
            unknown[rows] |= found.is_null().to_numpy(zero_copy_only=False)
        return pa.array(decided == decisive, mask=unknown & ~decided)

    def _evaluate_test(self, name: str, arg: Node) -> pa.BooleanArray:
        match name:
            case "IS NULL" | "IS UNKNOWN":
                return self.evaluate(arg).is_null()
            case "IS NOT NULL" | "IS NOT UNKNOWN":
                return self.evaluate(arg).is_valid()
        found = pa.array(_flag_rows(self._evaluate_boolean(arg), "TRUE" in name))
        return pc.invert(found) if "NOT" in name else found

    def _evaluate_case(self, node: Case) -> pa.Array:
        """Evaluate a CASE; each value is computed only for the rows that use it."""
        operand = None if node.operand is None else self._store_as_column(node.operand)
        source = np.full(self._rows, -1, dtype=np.int64)
        values: list[pa.Array] = []
        count = 0
        pending = np.arange(self._rows)
        tests: list[tuple[Node, Node]] = [
            (when if operand is None else Call("=", (operand, when)), then)
            for when, then in node.branches
        ]
        if node.otherwise is not None:
            tests.append((Constant(pa.scalar(True)), node.otherwise))
        for test, then in tests:
            chosen = _flag_rows(self._take_rows(pending)._evaluate_boolean(test), True)
            rows, pending = pending[chosen], pending[~chosen]
            values.append(_cast_views(self._take_rows(rows).evaluate(then)))
            source[rows] = np.arange(count, count + len(rows))
            count += len(rows)
        kind = _find_common_type(values)
        together = pa.concat_arrays([each.cast(kind) for each in values])
        return together.take(pa.array(source, mask=source < 0))

    def _store_as_column(self, node: Node) -> Node:
        name = choose_unused_name("part", self._columns)
        self._columns[name] = self.evaluate(node)
        return Column((name,))

    def _take_rows(self, rows: npt.NDArray[np.int64]) -> _Evaluator:
        """Return an evaluator of some of the rows."""
        if len(rows) == self._rows:
            return self
        taken = pa.array(rows)
        columns = {name: _cast_views(column).take(taken) for name, column in self._columns.items()}
        return _Evaluator(columns, len(rows))

    def _select_columns(self, node: Node) -> dict[str, pa.Array]:
        read = {path[0] for path in find_columns(node)}
        return {name: column for name, column in self._columns.items() if name in read}


def _cast_views(array: pa.Array) -> pa.Array:
    """Cast the string and binary views that DataFusion creates: Arrow cannot `take` from them."""
    if pt.is_string_view(array.type):
        return array.cast(pa.string())
    return array.cast(pa.binary()) if pt.is_binary_view(array.type) else array


def _find_common_type(values: Sequence[pa.Array]) -> pa.DataType:
    """Return the type of a CASE with these values."""
    kinds = list(dict.fromkeys(each.type for each in values if not pt.is_null(each.type)))
    if len(kinds) < 2:
        return kinds[0] if kinds else pa.null()
    nulls = {f"c{place}": pa.nulls(1, kind) for place, kind in enumerate(kinds)}
    branches = "".join(f" WHEN {name} IS NULL THEN {name}" for name in nulls)
    return evaluate_sql(f"CASE{branches} END", nulls, 1).type


def _flag_rows(found: pa.BooleanArray, value: bool) -> npt.NDArray[np.bool_]:
    """Flag the rows whose value is TRUE, or those whose value is FALSE."""
    kept = found if value else pc.invert(found)
    flags: npt.NDArray[np.bool_] = kept.fill_null(False).to_numpy(zero_copy_only=False)
    return flags


def _has_no_logic(node: Node) -> bool:
    """Return whether all parts are columns, constants, casts and plain functions.

    DataFusion may simplify these together: its rules for them depend on neither NULL nor bounds.
    """
    return all(
        isinstance(part, Column | Constant | Cast)
        or (isinstance(part, Call) and part.name not in _LOGIC and part.name not in HASH_FUNCTIONS)
        for part in walk_nodes(node)
    )


def evaluate_sql(sql: str, columns: Mapping[str, pa.Array], rows: int) -> pa.Array:
    """Evaluate SQL that Phalanx wrote, and that calls no hash function, for each row."""
    (found,) = evaluate_sqls([sql], columns, rows)
    return found


def evaluate_sqls(
    sqls: Sequence[str], columns: Mapping[str, pa.Array], rows: int
) -> list[pa.Array]:
    """Evaluate several such SQL texts, each on its own."""
    # A batch without columns would lose its number of rows.
    arrays = [*map(_propagate_struct_nulls, columns.values()), pa.nulls(rows)]
    names = [*columns, choose_unused_name("rows", columns)]
    frame = create_relation(pa.RecordBatch.from_arrays(arrays, names=names))
    try:
        selected = frame.select(
            *(frame.parse_sql_expr(sql).alias(f"{_VALUE}{n}") for n, sql in enumerate(sqls))
        )
        kinds = [field.type for field in selected.schema()]
        batches = selected.collect()
    except _STOP_SIGNALS:
        raise
    except BaseException as error:
        raise BadExpression(explain_error(error)) from None
    return [
        pa.concat_arrays([batch.column(place) for batch in batches])
        if batches
        else pa.array([], kind)
        for place, kind in enumerate(kinds)
    ]


def _propagate_struct_nulls(array: pa.Array) -> pa.Array:
    """Set the children of NULL structs to NULL: DataFusion reads a child without its parent."""
    if not pt.is_struct(array.type) or not array.type.num_fields:
        return array
    children = [
        _propagate_struct_nulls(pc.struct_field(array, [place]))
        for place in range(array.type.num_fields)
    ]
    fields = [
        pa.field(field.name, child.type) for field, child in zip(array.type, children, strict=True)
    ]
    return pa.StructArray.from_arrays(children, fields=fields, mask=array.is_null())


def _empty_columns(schema: pa.Schema) -> dict[str, pa.Array]:
    return {field.name: pa.array([], field.type) for field in schema}


def choose_unused_name(stem: str, names: Container[str]) -> str:
    """Return a name made from the stem that is not among the names."""
    numbered = (f"__{stem}_{number}__" for number in itertools.count())
    return next(name for name in numbered if name not in names)


def _parse_sql(text: str, schema: pa.Schema, exact_numbers: bool) -> tuple[Any, dict[str, str]]:
    """Parse with DataFusion; also return the column of each name that matches only without case."""
    if has_too_long_chain(text):
        raise BadExpression(
            f"it has a chain of more than {MAX_JUNCTIONS} ANDs and ORs, or of {MAX_OPERATORS} "
            "other operators. Write many values as IN (…), or split it."
        )
    aliases: dict[str, str] = {}
    while True:
        known = [pa.field(name, schema.field(exact).type) for name, exact in aliases.items()]
        try:
            frame = create_empty_relation(pa.schema([*schema, *known]), exact_numbers=exact_numbers)
            return frame.parse_sql_expr(text), aliases
        except _STOP_SIGNALS:
            raise
        except BaseException as error:
            if (
                _DECIMAL_ERROR.search(str(error))
                and (written := _write_extremes_as_floats(text)) != text
            ):
                text = written
                continue
            path = _find_unknown_column(str(error))
            if path is None or path[0] in aliases:
                raise BadExpression(explain_error(error)) from None
        aliases[path[0]] = _resolve_path(path[:1], schema)[0]


def _write_extremes_as_floats(text: str) -> str:
    """Write the numbers that no decimal can hold as floats.

    They are larger or smaller than all decimals, so the order of a float is exact enough.
    """

    def as_float(match: re.Match[str]) -> str:
        if (number := match["number"]) is None:
            return match[0]
        size = Decimal(number)
        _, digits, exponent = size.as_tuple()
        assert isinstance(exponent, int)
        if size == 0 or (
            exponent >= -MAX_DECIMAL_DIGITS and len(digits) + exponent <= MAX_DECIMAL_DIGITS
        ):
            if len(digits) <= MAX_DECIMAL_DIGITS:
                return number
            raise BadExpression(f"{number} has more than {MAX_DECIMAL_DIGITS} digits. Write fewer.")
        if len(digits) > MAX_DECIMAL_DIGITS and size.adjusted() < MAX_DECIMAL_DIGITS:
            raise BadExpression(f"{number} has more than {MAX_DECIMAL_DIGITS} digits. Write fewer.")
        return f"arrow_cast('{float(number) or 5e-324!r}', 'Float64')"

    return _NUMBER.sub(as_float, text)


def _find_unknown_column(message: str) -> tuple[str, ...] | None:
    if (match := _UNKNOWN_COLUMN.search(message)) is None:
        return None
    return tuple(
        name[1:-1].replace('""', '"') if name.startswith('"') else name
        for name in re.findall(_NAME, match[1])
    )


def _resolve_path(path: tuple[str, ...], schema: pa.Schema) -> tuple[str, ...]:
    try:
        return resolve_path(path, schema)
    except InvalidSchema as error:
        raise BadExpression(str(error)) from None


def _convert(expression: Any) -> Node:
    try:
        node = to_node(expression)
    except NotPerRow as error:
        raise BadExpression(
            explain_error(error) + " is not a value of one row. "
            "Use columns, constants and scalar functions only."
        ) from None
    except RecursionError:
        raise BadExpression(TOO_DEEP) from None
    if measure_depth(node) > MAX_DEPTH:
        raise BadExpression(TOO_DEEP)
    return node


def _resolve_columns(node: Node, schema: pa.Schema, aliases: Mapping[str, str]) -> Node:
    """Give columns their exact paths; a name inside a map is a key, not a path."""

    def exact(part: Node) -> Node:
        if not isinstance(part, Column):
            return part
        path = _resolve_column(part, schema, aliases)
        found: Node = Column(path)
        for key in part.path[len(path) :]:
            found = Call("get_field", (found, Constant(pa.scalar(key))))
        return found

    return map_nodes(node, exact)


def _resolve_column(
    column: Column, schema: pa.Schema, aliases: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the column or struct field of a written path, as the schema spells it."""
    path = (aliases.get(column.path[0], column.path[0]), *column.path[1:])
    return _resolve_path(path[: _count_struct_names(path, schema)], schema)


def _count_struct_names(path: tuple[str, ...], schema: pa.Schema) -> int:
    """Count the names of the path that are columns or struct fields, before any map or list."""
    for count in range(1, len(path)):
        try:
            above = resolve_path(path[:count], schema)
        except InvalidSchema:
            break
        data_type = schema.field(above[0]).type
        for name in above[1:]:
            data_type = data_type.field(name).type
        if pt.is_map(data_type) or pt.is_list(data_type) or pt.is_null(data_type):
            return count
    return len(path)


def _analyze(expression: Any, schema: pa.Schema) -> BoundExpression:
    """Type-check the expression; DataFusion adds casts where types differ."""
    frame = create_empty_relation(schema)
    try:
        selected = frame.select(expression.alias(_VALUE))
        data_type = selected.schema().field(0).type
        plan = selected.optimized_logical_plan()
        (below,) = plan.inputs()
    except _STOP_SIGNALS:
        raise
    except BaseException as error:
        raise BadExpression(explain_error(error)) from None
    if type(below.to_variant()).__name__ != "TableScan":
        # DataFusion moved a window or subquery out of the expression: raise an error that names it.
        _convert(expression)
    found = _convert(plan.to_variant().projections()[0])
    return BoundExpression(_resolve_columns(found, schema, {}), data_type)


def _add_hash_columns(schema: pa.Schema, hash_calls: Mapping[str, Call]) -> pa.Schema:
    extra = [pa.field(name, _HASH_TYPE) for name in hash_calls]
    return pa.schema([*schema, *extra])


def _check_hash_call(call: Call, schema: pa.Schema) -> None:
    """Run the function on no rows: it refuses what it cannot hash."""
    if call.name != "murmur3_multi" and len(call.args) != 1:
        raise BadExpression(f"{call.name} takes one argument, not {len(call.args)}.")
    if not call.args:
        raise BadExpression(f"{call.name} takes at least one argument.")
    try:
        _evaluate_hash_call(call, _empty_columns(schema), 0)
    except InvalidSpec as error:
        raise BadExpression(str(error)) from None


def _evaluate_hash_call(call: Call, columns: Mapping[str, pa.Array], rows: int) -> pa.Array:
    match call.name:
        case "murmur3":
            return murmur3(_evaluate_argument(call.args[0], columns, rows)).cast(_HASH_TYPE)
        case "murmur3_multi":
            hashed = murmur3_multi(*(_evaluate_argument(arg, columns, rows) for arg in call.args))
            return hashed.cast(_HASH_TYPE)
        case "md5_int":
            (argument,) = call.args
            parts: tuple[Node, ...] = (argument,)
            if isinstance(argument, Call) and argument.name == "concat" and argument.args:
                parts = argument.args
            return md5_int(*(_to_hashed_text(part, columns, rows) for part in parts))
    raise AssertionError(call.name)


def _evaluate_argument(node: Node, columns: Mapping[str, pa.Array], rows: int) -> pa.Array:
    if isinstance(node, Column) and len(node.path) == 1:
        return columns[node.path[0]]
    return evaluate_sql(to_sql(node), columns, rows)


def _to_hashed_text(node: Node, columns: Mapping[str, pa.Array], rows: int) -> pa.Array:
    """Return the values of an argument as the text or bytes that are hashed."""
    values = _evaluate_argument(node, columns, rows)
    if is_hashed_as_bytes(values.type):
        return values
    # Equal values of different widths must have the same text.
    if pt.is_floating(values.type):
        values = values.cast(pa.float64())
    elif pt.is_date64(values.type):
        values = values.cast(pa.date32(), safe=False)
    return evaluate_sql(to_sql(Cast(Column((_VALUE,)), pa.string())), {_VALUE: values}, rows)


def _reduce_before_abs(part: Node) -> Node:
    """Turn `abs(hash) % n` into `abs(hash % n)`: the smallest int64 has no absolute value."""
    match part:
        case Call(name="%", args=(Call(name="abs", args=(Call() as hashed,)), Constant() as count)):
            if hashed.name in HASH_FUNCTIONS:
                return Call("abs", (Call("%", (hashed, count)),))
    return part
