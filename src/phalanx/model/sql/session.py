"""The two DataFusion sessions: what they know, what they must not do, and relations to ask about.

One session computes values. The other only reads and type-checks SQL: it has no optimizer rule at
all, because DataFusion's simplifications change what SQL means where a value is NULL. It also
reads `0.1` as the decimal that it is, where the other one reads a float.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import ParamSpec, TypeVar

import pyarrow as pa
from datafusion import DataFrame, SessionConfig, SessionContext, udf

# Lifted out of an expression before DataFusion runs it (see `engine`).
LIFTED_FUNCTIONS = frozenset({"murmur3", "murmur3_multi", "md5_int"})

# Only simplification is wanted: the other rules cost time, and some hide parts of the expression.
_UNWANTED_RULES = (
    *("rewrite_set_comparison", "optimize_unions", "replace_distinct_aggregate"),
    *("eliminate_join", "decorrelate_predicate_subquery", "scalar_subquery_to_join"),
    *("decorrelate_lateral_join", "extract_equijoin_predicate", "eliminate_duplicated_expr"),
    *("eliminate_filter", "eliminate_cross_join", "eliminate_limit", "propagate_empty_relation"),
    *("filter_null_join_keys", "eliminate_outer_join", "push_down_limit", "push_down_filter"),
    *("single_distinct_aggregation_to_group_by", "eliminate_group_by_constant"),
    *("common_sub_expression_eliminate", "optimize_projections"),
    *("extract_leaf_expressions", "push_down_leaf_projections"),
)
_SIMPLIFYING_RULE = "simplify_expressions"
_names = itertools.count()
_first_use = threading.RLock()

Given = ParamSpec("Given")
Made = TypeVar("Made")


def _made_once(make: Callable[Given, Made]) -> Callable[Given, Made]:
    """A cached function that threads cannot enter together: all of them get the same object."""

    @wraps(make)
    def made(*args: Given.args, **kwargs: Given.kwargs) -> Made:
        with _first_use:
            return make(*args, **kwargs)

    return made


@_made_once
@lru_cache(maxsize=1)
def session() -> SessionContext:
    """The session that computes the value of every expression."""
    return _context(_UNWANTED_RULES, exact_numbers=False)


@_made_once
@lru_cache(maxsize=1)
def checker() -> SessionContext:
    """The session that reads and type-checks expressions, and changes nothing in them."""
    return _context((*_UNWANTED_RULES, _SIMPLIFYING_RULE), exact_numbers=True)


def _context(unwanted_rules: tuple[str, ...], *, exact_numbers: bool) -> SessionContext:
    config = SessionConfig(
        {
            "datafusion.sql_parser.enable_ident_normalization": "false",
            "datafusion.sql_parser.parse_float_as_decimal": str(exact_numbers).lower(),
            "datafusion.catalog.information_schema": "true",
            "datafusion.execution.target_partitions": "1",
            # Enough for what `engine` lets through, which renders with many parentheses.
            "datafusion.sql_parser.recursion_limit": "1000",
        }
    )
    context = SessionContext(config)
    for rule in unwanted_rules:
        context.remove_optimizer_rule(rule)
    for name in LIFTED_FUNCTIONS:
        context.register_udf(udf(_known_by_name_only, [pa.string()], pa.int64(), "immutable", name))
    return context


def _known_by_name_only(values: pa.Array) -> pa.Array:
    raise AssertionError("a lifted function is computed before DataFusion runs")


@_made_once
@lru_cache(maxsize=1)
def volatile_functions() -> frozenset[str]:
    """The functions whose value depends on the time, the session or chance."""
    rows = session().sql(
        "SELECT routine_name FROM information_schema.routines WHERE NOT is_deterministic"
    )
    # DataFusion calls these deterministic, yet they tell of the session or the file read.
    return frozenset(rows.to_pydict()["routine_name"]) | {"version", "arrow_metadata"}


def typed_as(schema: pa.Schema, *, exact_numbers: bool = True) -> DataFrame:
    """An empty relation with the given columns, to bind expressions against.

    It belongs to `checker`, or to `session` for a reader that takes `0.1` for a float. The frame
    is made anew each time: it keeps the time of its making as `now()`.
    """
    context = checker() if exact_numbers else session()
    return context.table(_registered(schema, exact_numbers))


@_made_once
@lru_cache(maxsize=4096)
def _registered(schema: pa.Schema, exact_numbers: bool) -> str:
    """The name under which a session knows an empty table of the schema."""
    arrays = [pa.array([], field.type) for field in schema]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema.remove_metadata())
    name = f"__row_{next(_names)}__"
    context = checker() if exact_numbers else session()
    context.register_record_batches(name, [[batch]])
    return name


def relation(batch: pa.RecordBatch) -> DataFrame:
    """The batch as a relation that lives as long as the returned frame."""
    name = f"__row_{next(_names)}__"
    session().register_record_batches(name, [[batch]])
    try:
        return session().table(name)
    finally:
        session().deregister_table(name)


@lru_cache(maxsize=1024)
def type_called(name: str) -> pa.DataType:
    """The Arrow type behind DataFusion's name for it."""
    frame = session().sql(f"SELECT arrow_cast(NULL, '{name}') AS value")
    data_type: pa.DataType = frame.schema().field(0).type
    return data_type
