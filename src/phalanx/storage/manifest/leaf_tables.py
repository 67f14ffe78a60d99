"""The leaves of a spec as an Arrow table: built from manifest rows, sorted and filtered."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from phalanx.model.predicates.evaluation import match_arrays
from phalanx.model.predicates.predicate import TRUE, In, Predicate
from phalanx.model.schema.grouping import sort_indices
from phalanx.model.specs.spec import PartitionSpec
from phalanx.model.sql.syntax import Column
from phalanx.planning.pruning.leaf_columns import LEAF_COLUMNS, LEAF_OBJECT_ID
from phalanx.planning.pruning.residual import to_manifest_columns
from phalanx.storage.manifest.columns import cast_column
from phalanx.storage.manifest.rows import LANCE_ROW_ADDRESS

# The manifest's columns that `LEAF_COLUMNS` are made of.
STORED_COLUMNS = ("object_id", "location", "read_version", LANCE_ROW_ADDRESS)


def split_by_spec(rows: pa.Table, specs: Mapping[int, PartitionSpec]) -> dict[int, pa.Table]:
    """Split `table` rows of the manifest into the leaves of each spec, sorted by their values."""
    spec_ids = pc.struct_field(
        pc.extract_regex(rows.column("object_id"), r"^v(?P<spec>[0-9]+)\$"), "spec"
    )
    return {
        number: sort_leaves(to_leaves(rows.filter(pc.equal(spec_ids, str(number))), spec))
        for number, spec in specs.items()
    }


def to_leaves(rows: pa.Table, spec: PartitionSpec) -> pa.Table:
    """Convert manifest rows to leaves of one spec, with a column for each partition field."""
    values = [
        cast_column(rows.column(field.column), field.result_type, field.column, "the namespace")
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


def sort_leaves(leaves: pa.Table) -> pa.Table:
    """Sort the leaves of one spec by their partition values."""
    # The object id orders leaves with equal values, which other writers may have created.
    columns = [*leaves.columns[len(LEAF_COLUMNS) :], leaves.column(LEAF_OBJECT_ID)]
    return leaves.take(sort_indices(pa.table(columns, names=list(map(str, range(len(columns)))))))


def filter_leaves(leaves: pa.Table, predicate: Predicate, spec: PartitionSpec) -> pa.Table:
    """Return the leaves whose partition values satisfy a predicate on the manifest columns."""
    if predicate == TRUE:
        return leaves
    columns = to_manifest_columns(leaves, spec)
    kept = _match_values(predicate, columns)
    if kept is None:
        kept = match_arrays(predicate, columns, leaves.num_rows)
    return leaves.filter(kept)


def _match_values(predicate: Predicate, columns: Mapping[str, pa.Array]) -> pa.Array | None:
    """Evaluate `column IN (values)` without SQL; None for any other predicate."""
    if not isinstance(predicate, In) or not isinstance(predicate.term, Column):
        return None
    column = columns[predicate.term.path[0]]
    # Equal floats may differ in their bits.
    if column.type != predicate.values.type or pt.is_floating(column.type):
        return None
    return pc.is_in(column, value_set=predicate.values)
