"""Brute force: which rows match, as other engines say that share no code with Phalanx.

DuckDB judges. A plain DataFusion session judges where DuckDB cannot: it has the dialect of
Phalanx, but its simplifications take NULL for FALSE, so that its word counts for less.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from datafusion import SessionConfig, SessionContext

from phalanx.model.murmur3 import murmur3, murmur3_multi


def matching(table: pa.Table, where: str, others: pa.Table | None = None) -> pa.Array | None:
    """Whether each row satisfies the text; None where nobody can compute it for some row.

    No engine has murmur3: hashes stand in columns of their own. `others` are not hashed.
    """
    for name in table.column_names:
        table = table.append_column(f"murmur3 {name}", murmur3(table.column(name)))
    for name in others.column_names if others is not None else ():
        table = table.append_column(name, _masked(others.column(name).combine_chunks()))
    where = re.sub(r'murmur3\("([^"]*)"\)', r'"murmur3 \1"', where)
    for names in set(re.findall(r'murmur3_multi\(("[^"]*"(?:, "[^"]*")*)\)', where)):
        columns = [table.column(name) for name in re.findall(r'"([^"]*)"', names)]
        hashed = f"murmur3 of {len(table.column_names)}"
        table = table.append_column(hashed, murmur3_multi(*columns))
        where = where.replace(f"murmur3_multi({names})", f'"{hashed}"')
    if not any(differs(where, table) for differs in DIFFERENCES):
        found = by_duckdb(table, where)
        if found is not None:
            return pc.fill_null(found, False)
    return by_datafusion(table, where)


def by_datafusion(table: pa.Table, where: str) -> pa.Array | None:
    """What a session of its own says of each row; None where it fails on a value."""
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
    return pc.fill_null(found.column("matches").combine_chunks().cast(pa.bool_()), False)


def by_duckdb(table: pa.Table, where: str) -> pa.Array | None:
    """TRUE, FALSE or NULL for each row, as DuckDB says; None where it has no such type or value."""
    known = {name: _for_duckdb(table.column(name)) for name in table.column_names}
    columns = {name: column for name, column in known.items() if column is not None}
    text = in_duckdb(where)
    if text is None:
        return None
    connection = _duckdb().cursor()
    rows = pa.table({**columns, "row number": pa.array(range(table.num_rows), pa.int64())})
    connection.register("rows", rows)
    try:
        asked = connection.execute(f'SELECT ({text})::BOOLEAN FROM rows ORDER BY "row number"')
        found = [value for (value,) in asked.fetchall()]
    except (duckdb.ConversionException, duckdb.OutOfRangeException):
        return None
    except (duckdb.ParserException, duckdb.BinderException):
        # Another keyword, function or type: DataFusion refuses it, too, if it is no SQL at all.
        return None
    finally:
        connection.unregister("rows")
    return pa.array(found, pa.bool_())


@lru_cache(maxsize=1)
def _duckdb() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(config={"threads": 1})
    connection.execute("SET TimeZone = 'UTC'")
    return connection


_TYPES: tuple[tuple[str, str], ...] = (
    ("Boolean", "BOOLEAN"),
    *(
        (f"Int{bits}", name)
        for bits, name in ((8, "TINYINT"), (16, "SMALLINT"), (32, "INTEGER"), (64, "BIGINT"))
    ),
    *(
        (f"UInt{bits}", name)
        for bits, name in ((8, "UTINYINT"), (16, "USMALLINT"), (32, "UINTEGER"), (64, "UBIGINT"))
    ),
    ("Float64", "DOUBLE"),
    ("Float32", "FLOAT"),
    ("Utf8", "VARCHAR"),
    ("LargeUtf8", "VARCHAR"),
    ("Binary", "BLOB"),
    ("Date32", "DATE"),
    (r"Decimal128\((\d+), (\d+)\)", r"DECIMAL(\1, \2)"),
    (r"Timestamp\(Second, None\)", "TIMESTAMP_S"),
    (r"Timestamp\(Millisecond, None\)", "TIMESTAMP_MS"),
    (r"Timestamp\(Microsecond, None\)", "TIMESTAMP"),
    (r"Timestamp\(Nanosecond, None\)", "TIMESTAMP_NS"),
    (r'Timestamp\((?:Second|Millisecond|Microsecond), Some\("[^"]*"\)\)', "TIMESTAMPTZ"),
    (r"Time32\(Second\)", "TIME"),
    (r"Time32\(Millisecond\)", "TIME"),
    (r"Time64\(Microsecond\)", "TIME"),
)
_CAST = re.compile(r"arrow_cast\(('(?:[^']|'')*'|NULL|-?\d+|X'[0-9a-f]*'), '((?:[^']|'')*)'\)")


def in_duckdb(where: str) -> str | None:
    """The text in DuckDB's dialect; None where it has no words for it."""

    def cast(match: re.Match[str]) -> str:
        for pattern, name in _TYPES:
            if (found := re.fullmatch(pattern, match[2])) is not None:
                target = found.expand(name)
                if "TIME" in target and re.fullmatch(r"-?\d+", match[1]):
                    break
                return f"CAST({match[1]} AS {target})"
        return "arrow_cast()"

    text = _CAST.sub(cast, where)
    text = re.sub(r"\bX'([0-9a-f]*)'", lambda m: _blob(m[1]), text)
    return None if "arrow_cast" in text else _with_escapes(text)


def _blob(digits: str) -> str:
    return f"unhex('{digits}')"


def _with_escapes(text: str) -> str:
    """LIKE of DataFusion and Lance has the backslash as its escape, DuckDB's has none."""
    return re.sub(r"(\bI?LIKE '(?:[^']|'')*')", r"\1 ESCAPE '\\'", text)


def _for_duckdb(column: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """The column with the very same values in a type that DuckDB has; None if it has none."""
    kind = column.type
    if pt.is_dictionary(kind):
        return _for_duckdb(column.cast(kind.value_type))
    if pt.is_date64(kind) or pt.is_float16(kind) or (pt.is_decimal(kind) and kind.scale < 0):
        return None
    if pt.is_timestamp(kind) and kind.tz is not None:
        if kind.unit == "ns":
            return None
        return column.cast(pa.timestamp("us", "UTC")) if _fits_microseconds(column) else None
    if pt.is_timestamp(kind) and kind.unit in ("s", "ms"):
        return column if _fits_microseconds(column) else None
    return column


def _fits_microseconds(column: pa.ChunkedArray) -> bool:
    try:
        column.cast(pa.timestamp("us", column.type.tz))
    except pa.ArrowInvalid:
        return False
    return True


# --- Where the two dialects differ ----------------------------------------------------------------
#
# In these cases DuckDB means something else, and DataFusion's word counts. Nothing else may be
# added here without a reason why Phalanx follows DataFusion.


def _zones(where: str, table: pa.Table) -> bool:
    """A text, a date or a part of a zoned column is in the column's zone, in DuckDB's session's."""
    zoned = [f for f in table.schema if pt.is_timestamp(f.type) and f.type.tz is not None]
    return any(f'"{field.name}"' in where for field in zoned) and bool(
        re.search(r"date_part|CAST\(\"|<?[=<>] '\d|DATE '", where)
    )


def _negative_nan(where: str, table: pa.Table) -> bool:
    """A NaN with its sign set is below all numbers here and in Lance; DuckDB has one NaN."""
    for column in table.columns:
        if pt.is_floating(column.type):
            numbers = column.cast(pa.float64()).drop_null().to_numpy()
            if np.signbit(numbers[np.isnan(numbers)]).any():
                return True
    return False


def _nanoseconds(where: str, table: pa.Table) -> bool:
    """DuckDB rounds nanoseconds to zero before it takes a date or a part; its last are infinite."""
    for column in table.columns:
        if pt.is_timestamp(column.type) and column.type.unit == "ns":
            ticks = column.cast(pa.int64()).drop_null().to_numpy()
            if (np.abs(ticks) >= 2**63 - 1).any() or ((ticks < 0) & (ticks % 1000 > 0)).any():
                return bool(re.search("date_part|CAST", where))
    return False


def _fine_moments(where: str, table: pa.Table) -> bool:
    """DuckDB's TIMESTAMP has microseconds; here the constant keeps its nanoseconds."""
    return re.search(r"TIMESTAMP '[^']*\.\d{7,}'", where) is not None


def _single_floats(where: str, table: pa.Table) -> bool:
    """A number beside float32 is compared as float64, as in PostgreSQL and Spark; not in DuckDB."""
    singles = [f.name for f in table.schema if pt.is_float32(f.type)]
    return any(re.search(rf'"{re.escape(name)}" [<>=]+ -?\d', where) for name in singles)


def _far_moments(where: str, table: pa.Table) -> bool:
    """DataFusion has no part of a moment past the years ±262,000, where DuckDB ends, too."""
    return "date_part" in where and any(
        pt.is_timestamp(field.type) and not _is_near(table.column(field.name))
        for field in table.schema
    )


def _is_near(column: pa.ChunkedArray) -> bool:
    seconds = column.cast(pa.timestamp("s", column.type.tz), safe=False).cast(pa.int64())
    extremes = pc.min_max(seconds)
    low, high = extremes["min"].as_py(), extremes["max"].as_py()
    return low is None or (low > -8_000_000_000_000 and high < 8_000_000_000_000)


DIFFERENCES: tuple[Callable[[str, pa.Table], bool], ...] = (
    _zones,
    _negative_nan,
    _nanoseconds,
    _fine_moments,
    _single_floats,
    _far_moments,
)


def _masked(array: pa.Array) -> pa.Array:
    """The array with NULL in all children of a NULL struct: DataFusion looks at nothing else."""
    if not pa.types.is_struct(array.type):
        return array
    children = [_masked(pc.struct_field(array, child.name)) for child in array.type]
    return pa.StructArray.from_arrays(children, fields=list(array.type), mask=array.is_null())


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)
