"""The law of pruning: no row that satisfies a predicate lies in a partition that is dropped."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import assume, event, given
from hypothesis import strategies as st

from phalanx.model import engine
from phalanx.model.binding import bind
from phalanx.model.predicate import FALSE, TRUE, to_datafusion
from phalanx.planning.pruning import prune
from properties.oracle import matching
from properties.strategies import predicates, rows, specs


def holds(table: pa.Table, predicate_sql: str) -> pa.Array:
    columns = {name: table.column(name).combine_chunks() for name in table.column_names}
    found = engine.evaluate_sql(predicate_sql, columns, table.num_rows)
    return pc.fill_null(found.cast(pa.bool_()), False)


@given(st.data())
def test_no_matching_row_is_lost_and_the_residual_finds_the_rest(data: st.DataObject) -> None:
    """(1) sound: a matching row lies in a partition that is kept; and rows of kept partitions
    match exactly when the residual holds."""
    given_rows = data.draw(rows())
    spec = data.draw(specs(given_rows))
    where = data.draw(predicates(given_rows))
    matches = matching(given_rows.table, where)
    assume(matches is not None)
    pruning = prune(bind(where, given_rows.schema), {1: spec}, given_rows.schema)
    projection = pruning.specs[0]
    event(f"prunes: {projection.filter not in (TRUE, FALSE)}")
    event(f"residual left: {projection.residual not in (TRUE, FALSE)}")
    values = spec.partition_values(given_rows.table, given_rows.schema)
    columns = values.rename_columns([field.column for field in spec.fields])
    kept = holds(columns, to_datafusion(projection.filter))
    lost = pc.and_(matches, pc.invert(kept))
    assert not pc.any(lost).as_py(), (where, str(pruning), given_rows.table.filter(lost))
    rest = to_datafusion(projection.residual)
    assume("murmur3" not in rest)
    found = pc.and_(kept, holds(given_rows.table, rest))
    assert found.equals(matches), (where, str(pruning), rest, given_rows.table)
