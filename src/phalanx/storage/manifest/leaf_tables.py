"""The leaves of a spec as an Arrow table: from manifest rows, in order, and filtered in memory."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from phalanx.model.predicates.evaluation import holds
from phalanx.model.predicates.predicate import TRUE, In, Predicate
from phalanx.model.schema.grouping import order_of
from phalanx.model.specs.spec import PartitionSpec
from phalanx.model.sql.syntax import Column
from phalanx.planning.pruning.residual import columns_of
from phalanx.planning.pruning.scan_plan import LEAF_COLUMNS, OBJECT_ID
from phalanx.storage.manifest.columns import converted
from phalanx.storage.manifest.rows import ADDRESS

# The manifest's columns that `LEAF_COLUMNS` are made of.
STORED_COLUMNS = ("object_id", "location", "read_version", ADDRESS)


def by_spec(rows: pa.Table, specs: Mapping[int, PartitionSpec]) -> dict[int, pa.Table]:
    """The manifest's table rows as the leaves of each spec, in the order of their values."""
    of = pc.struct_field(
        pc.extract_regex(rows.column("object_id"), r"^v(?P<spec>[0-9]+)\$"), "spec"
    )
    return {
        number: in_order(of_spec(rows.filter(pc.equal(of, str(number))), spec))
        for number, spec in specs.items()
    }


def of_spec(rows: pa.Table, spec: PartitionSpec) -> pa.Table:
    """Manifest rows as the leaves of one spec, fields under their own ids."""
    values = [
        converted(rows.column(field.column), field.result_type, field.column, "the namespace")
        if field.column in rows.column_names
        else pa.nulls(rows.num_rows, field.result_type)
        for field in spec.fields
    ]
    types = [pa.string(), pa.string(), pa.uint64(), pa.uint64()]
    schema = list(zip(LEAF_COLUMNS, types, strict=True))
    schema += [(field.field_id, field.result_type) for field in spec.fields]
    return pa.Table.from_arrays(
        [*(rows.column(name) for name in STORED_COLUMNS), *values], schema=pa.schema(schema)
    )


def in_order(leaves: pa.Table) -> pa.Table:
    """The leaves of one spec in the order of their values."""
    # The object id makes the order of equal values, which nobody should have made, certain.
    columns = [*leaves.columns[len(LEAF_COLUMNS) :], leaves.column(OBJECT_ID)]
    return leaves.take(order_of(pa.table(columns, names=list(map(str, range(len(columns)))))))


def filtered(leaves: pa.Table, predicate: Predicate, spec: PartitionSpec) -> pa.Table:
    """The leaves of a spec whose partition values satisfy a predicate on its manifest columns."""
    if predicate == TRUE:
        return leaves
    columns = columns_of(leaves, spec)
    kept = _among(predicate, columns)
    if kept is None:
        kept = holds(predicate, columns, leaves.num_rows)
    return leaves.filter(kept)


def _among(predicate: Predicate, columns: Mapping[str, pa.Array]) -> pa.Array | None:
    """The answer to the plainest question, which needs no SQL; None to all others."""
    if not isinstance(predicate, In) or not isinstance(predicate.term, Column):
        return None
    column = columns[predicate.term.path[0]]
    # Equal floats are not always the same.
    if column.type != predicate.values.type or pt.is_floating(column.type):
        return None
    return pc.is_in(column, value_set=predicate.values)
