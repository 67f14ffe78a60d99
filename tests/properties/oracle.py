"""Brute force: which rows match, as a plain DataFusion session says."""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.compute as pc
from datafusion import SessionConfig, SessionContext

from phalanx.model.murmur3 import murmur3


def matching(table: pa.Table, where: str, others: pa.Table | None = None) -> pa.Array | None:
    """Whether each row satisfies the text; None where DataFusion itself fails on a value.

    DataFusion has no murmur3: hashes stand in columns of their own. `others` are not hashed.
    """
    for name in table.column_names:
        table = table.append_column(f"murmur3 {name}", murmur3(table.column(name)))
    for name in others.column_names if others is not None else ():
        table = table.append_column(name, _masked(others.column(name).combine_chunks()))
    where = re.sub(r'murmur3\("([^"]*)"\)', r'"murmur3 \1"', where)
    config = {"datafusion.sql_parser.enable_ident_normalization": "false"}
    session = SessionContext(SessionConfig(config))
    batches = table.combine_chunks().to_batches() or [_empty(table.schema)]
    session.register_record_batches("rows", [batches])
    try:
        found = session.sql(f"SELECT ({where}) AS matches FROM rows").to_arrow_table()
    except Exception as error:
        if "cast" not in str(error).lower() and "overflow" not in str(error).lower():
            raise
        return None
    return pc.fill_null(found.column("matches").combine_chunks(), False)


def _masked(array: pa.Array) -> pa.Array:
    """The array with NULL in all children of a NULL struct: DataFusion looks at nothing else."""
    if not pa.types.is_struct(array.type):
        return array
    children = [_masked(pc.struct_field(array, child.name)) for child in array.type]
    return pa.StructArray.from_arrays(children, fields=list(array.type), mask=array.is_null())


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)
