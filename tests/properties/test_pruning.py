"""The law of pruning: no row that satisfies a predicate lies in a partition that is dropped."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import assume, event, given
from hypothesis import strategies as st

from phalanx.model.predicates.binding import bind_predicate
from phalanx.model.predicates.predicate import FALSE, TRUE
from phalanx.model.predicates.rendering import to_datafusion
from phalanx.model.specs.spec import PartitionSpec
from phalanx.model.sql import engine
from phalanx.planning.pruning.prune import Pruning, prune
from phalanx.planning.pruning.residual import simplify_residual
from properties.oracle import find_matches
from properties.strategies import ONE_ZERO_KINDS, Rows, predicates, rows, specs


def holds(table: pa.Table, predicate_sql: str) -> pa.Array:
    columns = {name: table.column(name).combine_chunks() for name in table.column_names}
    found = engine.evaluate_sql(predicate_sql, columns, table.num_rows)
    return pc.fill_null(found.cast(pa.bool_()), False)


@given(st.data())
def test_no_matching_row_is_lost(data: st.DataObject) -> None:
    """(1) sound: a matching row lies in a partition that is kept."""
    given_rows = data.draw(rows())
    spec = data.draw(specs(given_rows))
    where = data.draw(predicates(given_rows))
    matches = find_matches(given_rows.table, where)
    assume(matches is not None)
    pruning, kept = prune_rows(where, spec, given_rows)
    event(f"prunes: {pruning.specs[0].filter not in (TRUE, FALSE)}")
    lost = pc.and_(matches, pc.invert(kept))
    assert not pc.any(lost).as_py(), (where, str(pruning), given_rows.table.filter(lost))


@given(st.data())
def test_the_residual_finds_the_matching_rows_in_what_is_kept(data: st.DataObject) -> None:
    """Rows of kept partitions match exactly when the residual holds."""
    given_rows = data.draw(rows(ONE_ZERO_KINDS))
    spec = data.draw(specs(given_rows))
    where = data.draw(predicates(given_rows))
    matches = find_matches(given_rows.table, where)
    assume(matches is not None)
    pruning, kept = prune_rows(where, spec, given_rows)
    rest = pruning.specs[0].residual
    event(f"residual left: {rest not in (TRUE, FALSE)}")
    assume("murmur3" not in to_datafusion(rest))
    found = pc.and_(kept, holds(given_rows.table, to_datafusion(rest)))
    assert found.equals(matches), (where, str(pruning), to_datafusion(rest), given_rows.table)


@given(st.data())
def test_the_residual_of_each_partition_finds_the_matching_rows(data: st.DataObject) -> None:
    """A condition that the partition's values decide is not evaluated on its rows."""
    given_rows = data.draw(rows(ONE_ZERO_KINDS))
    spec = data.draw(specs(given_rows))
    where = data.draw(predicates(given_rows))
    matches = find_matches(given_rows.table, where)
    assume(matches is not None and len(given_rows.table))
    pruning, kept = prune_rows(where, spec, given_rows)
    values = spec.compute_partition_values(given_rows.table, given_rows.schema)
    count = len(given_rows.table)
    rest = simplify_residual(pruning.specs[0].residual, spec, given_rows.schema, values, count)
    event(f"settled by values: {pruning.specs[0].residual not in rest.predicates}")
    assume(not any("murmur3" in to_datafusion(each) for each in rest.predicates))
    found = pa.nulls(count, pa.bool_())
    for place, predicate in enumerate(rest.predicates):
        here = holds(given_rows.table, to_datafusion(predicate))
        found = pc.if_else(pa.array(rest.indices == place), here, found)
    assert pc.and_(kept, found).equals(matches), (where, str(pruning), rest, given_rows.table)


def prune_rows(where: str, spec: PartitionSpec, given_rows: Rows) -> tuple[Pruning, pa.Array]:
    """Return the plan, and whether it keeps the partition of each row."""
    pruning = prune(bind_predicate(where, given_rows.schema), {1: spec}, given_rows.schema)
    values = spec.compute_partition_values(given_rows.table, given_rows.schema)
    columns = values.rename_columns([field.column for field in spec.fields])
    return pruning, holds(columns, to_datafusion(pruning.specs[0].filter))
