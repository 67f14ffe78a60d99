"""The two DataFusion sessions, and relations to evaluate or check expressions against.

The evaluation session computes values. The analysis session only parses and type-checks SQL: it has
no optimizer rules, because DataFusion's simplifications change the meaning of SQL where a value is
NULL. It parses `0.1` as a decimal; the evaluation session parses it as a float.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import ParamSpec, TypeVar

import pyarrow as pa
from datafusion import DataFrame, SessionConfig, SessionContext, udf

# Extracted from an expression before DataFusion runs it (see `engine`).
HASH_FUNCTIONS = frozenset({"murmur3", "murmur3_multi", "md5_int"})

# Only simplification is useful: other rules cost time, and some hide parts of the expression.
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
_table_numbers = itertools.count()
_lock = threading.RLock()

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def _synchronize(create: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Run a cached function in one thread at a time, so that all threads get the same object."""

    @wraps(create)
    def create_locked(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        with _lock:
            return create(*args, **kwargs)

    return create_locked


@_synchronize
@lru_cache(maxsize=1)
def evaluation_session() -> SessionContext:
    """Return the session that evaluates expressions."""
    return _create_session(_UNWANTED_RULES, exact_numbers=False)


@_synchronize
@lru_cache(maxsize=1)
def analysis_session() -> SessionContext:
    """Return the session that parses and type-checks expressions without changing them."""
    return _create_session((*_UNWANTED_RULES, _SIMPLIFYING_RULE), exact_numbers=True)


def _create_session(unwanted_rules: tuple[str, ...], *, exact_numbers: bool) -> SessionContext:
    config = SessionConfig(
        {
            "datafusion.sql_parser.enable_ident_normalization": "false",
            "datafusion.sql_parser.parse_float_as_decimal": str(exact_numbers).lower(),
            "datafusion.catalog.information_schema": "true",
            "datafusion.execution.target_partitions": "1",
            # Enough for what `engine` accepts: it renders SQL with many parentheses.
            "datafusion.sql_parser.recursion_limit": "1000",
        }
    )
    context = SessionContext(config)
    for rule in unwanted_rules:
        context.remove_optimizer_rule(rule)
    for name in HASH_FUNCTIONS:
        context.register_udf(udf(_refuse_to_run, [pa.string()], pa.int64(), "immutable", name))
    return context


def _refuse_to_run(values: pa.Array) -> pa.Array:
    raise AssertionError("a hash function is computed before DataFusion runs")


@_synchronize
@lru_cache(maxsize=1)
def list_volatile_functions() -> frozenset[str]:
    """List the functions whose value depends on the time, the session or randomness."""
    rows = evaluation_session().sql(
        "SELECT routine_name FROM information_schema.routines WHERE NOT is_deterministic"
    )
    # DataFusion calls these deterministic, but they depend on the session or the file read.
    return frozenset(rows.to_pydict()["routine_name"]) | {"version", "arrow_metadata"}


def create_empty_relation(schema: pa.Schema, *, exact_numbers: bool = True) -> DataFrame:
    """Return an empty relation with the given columns, to bind expressions against.

    It belongs to the analysis session, or without `exact_numbers` to the evaluation session. Each
    call returns a new frame, because a frame fixes the value of `now()`.
    """
    context = analysis_session() if exact_numbers else evaluation_session()
    return context.table(_register_empty_table(schema, exact_numbers))


@_synchronize
@lru_cache(maxsize=4096)
def _register_empty_table(schema: pa.Schema, exact_numbers: bool) -> str:
    """Register an empty table of the schema in a session and return its name."""
    arrays = [pa.array([], field.type) for field in schema]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema.remove_metadata())
    name = f"__row_{next(_table_numbers)}__"
    context = analysis_session() if exact_numbers else evaluation_session()
    context.register_record_batches(name, [[batch]])
    return name


def create_relation(batch: pa.RecordBatch) -> DataFrame:
    """Return the batch as a relation that lives as long as the returned frame."""
    name = f"__row_{next(_table_numbers)}__"
    evaluation_session().register_record_batches(name, [[batch]])
    try:
        return evaluation_session().table(name)
    finally:
        evaluation_session().deregister_table(name)


@lru_cache(maxsize=1024)
def parse_arrow_type(name: str) -> pa.DataType:
    """Return the Arrow type with this DataFusion name."""
    frame = evaluation_session().sql(f"SELECT arrow_cast(NULL, '{name}') AS value")
    data_type: pa.DataType = frame.schema().field(0).type
    return data_type
