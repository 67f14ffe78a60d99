"""The law of pruning: no row that satisfies a predicate lies in a partition that is dropped."""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.compute as pc
from datafusion import SessionConfig, SessionContext
from hypothesis import assume, event, given
from hypothesis import strategies as st

from phalanx.model import engine
from phalanx.model.binding import bind
from phalanx.model.murmur3 import murmur3
from phalanx.model.predicate import FALSE, TRUE, to_datafusion
from phalanx.planning.pruning import prune
from properties.strategies import predicates, rows, specs


def oracle(table: pa.Table, where: str) -> pa.Array:
    """Which rows satisfy the text, as a plain DataFusion session says."""
    session = SessionContext(
        SessionConfig({"datafusion.sql_parser.enable_ident_normalization": "false"})
    )
    for name in table.column_names:
        hashed = murmur3(table.column(name))
        table = table.append_column(f"murmur3 {name}", hashed)
    where = re.sub(r'murmur3\("([^"]*)"\)', r'"murmur3 \1"', where)
    session.register_record_batches("rows", [table.to_batches() or [_empty(table.schema)]])
    found = session.sql(f"SELECT ({where}) AS matches FROM rows").to_arrow_table()
    return pc.fill_null(found.column("matches").combine_chunks(), False)


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)


def holds(table: pa.Table, predicate_sql: str) -> pa.Array:
    columns = {name: table.column(name).combine_chunks() for name in table.column_names}
    found = engine.evaluate_sql(predicate_sql, columns, table.num_rows)
    return pc.fill_null(found.cast(pa.bool_()), False)


@given(st.data())
def test_no_matching_row_is_lost(data: st.DataObject) -> None:
    """(1) sound."""
    given_rows = data.draw(rows())
    spec = data.draw(specs(given_rows))
    where = data.draw(predicates(given_rows))
    predicate = bind(where, given_rows.schema)
    try:
        matches = oracle(given_rows.table, where)
    except Exception:  # DataFusion itself fails on a value, for example on a far date
        assume(False)
    pruning = prune(predicate, {1: spec}, given_rows.schema)
    projection = pruning.specs[0]
    event(f"prunes: {projection.filter not in (TRUE, FALSE)}")
    values = spec.partition_values(given_rows.table, given_rows.schema)
    columns = values.rename_columns([field.column for field in spec.fields])
    kept = holds(columns, to_datafusion(projection.filter))
    lost = pc.and_(matches, pc.invert(kept))
    assert not pc.any(lost).as_py(), (
        where,
        str(pruning),
        given_rows.table.filter(lost).to_pylist(),
    )
