"""Brute force: the rows that match, according to engines that share no code with Phalanx.

DuckDB decides. A plain DataFusion session decides the few cases where DuckDB cannot: values that it
does not support (numbers of more than 38 digits in a comparison, moments past its years), and
`DIFFERENCES`. DataFusion has the dialect of Phalanx, but its simplifications treat NULL as FALSE,
so that its result is less reliable.
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


def find_matches(table: pa.Table, where: str, others: pa.Table | None = None) -> pa.Array | None:
    """Return whether each row satisfies the text, or None if no engine can compute it for some row.

    No engine has `murmur3`: hashes are added as columns. `others` are columns that are not hashed.
    No engine has `md5_int` or the texts that it hashes either: `test_expression_draft.py` tests it.
    """
    if "md5_int" in where:
        return None
    for name in table.column_names:
        table = table.append_column(f"murmur3 {name}", murmur3(table.column(name)))
    for name in others.column_names if others is not None else ():
        table = table.append_column(name, _masked(others.column(name).combine_chunks()))
    where = re.sub(r'murmur3\("([^"]*)"\)', r'"murmur3 \1"', where)
    path = r'"[^"]*"(?:\."[^"]*")*'
    for call in set(re.findall(rf"murmur3(?:_multi)?\({path}(?:, {path})*\)", where)):
        columns = [_column_at(table, each) for each in re.findall(path, call)]
        hashed = f"murmur3 of {len(table.column_names)}"
        table = table.append_column(hashed, murmur3_multi(*columns))
        where = where.replace(call, f'"{hashed}"')
    found = by_duckdb(table, where)
    return by_datafusion(table, where) if found is None else pc.fill_null(found, False)


def _column_at(table: pa.Table, path: str) -> pa.ChunkedArray:
    """The column, or the field of a struct, that a path of quoted names leads to."""
    name, *fields = re.findall(r'"([^"]*)"', path)
    column = table.column(name)
    for each in fields:
        column = pc.struct_field(column, each)
    return column


def by_datafusion(table: pa.Table, where: str) -> pa.Array | None:
    """Evaluate each row in a session of its own; return None if it fails on a value."""
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
    """TRUE, FALSE or NULL for each row, as DuckDB says.

    None where it has no such type or value, or means something else (`DIFFERENCES`).
    """
    if any(differs(where, table) for differs in DIFFERENCES):
        return None
    text = in_duckdb(where, table.schema)
    if text is None:
        return None
    known = {name: _for_duckdb(table.column(name)) for name in table.column_names}
    columns = {name: column for name, column in known.items() if column is not None}
    for field in table.schema:
        if pt.is_timestamp(field.type) and field.type.unit == "ns" and field.name in columns:
            columns[_coarse(field.name)] = _in_microseconds(table.column(field.name))
    connection = _duckdb().cursor()
    numbers = pa.array(range(table.num_rows), pa.int64())
    # DuckDB 1.5 takes other values for those of structs in structs that are slices.
    rows = pa.table({**columns, "row number": numbers}).combine_chunks().take(numbers)
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
    ("Utf8", "VARCHAR"),
    ("LargeUtf8", "VARCHAR"),
    ("Binary", "BLOB"),
    ("LargeBinary", "BLOB"),
    (r"FixedSizeBinary\(\d+\)", "BLOB"),
    ("Date32", "DATE"),
    ("Date64", "DATE"),
    (r"Decimal128\((\d+), (\d+)\)", r"DECIMAL(\1, \2)"),
    (r"Timestamp\(Second, None\)", "TIMESTAMP_S"),
    (r"Timestamp\(Millisecond, None\)", "TIMESTAMP_MS"),
    (r"Timestamp\(Microsecond, None\)", "TIMESTAMP"),
    (r"Timestamp\(Nanosecond, None\)", "TIMESTAMP_NS"),
    (r'Timestamp\((?:Second|Millisecond|Microsecond), Some\("[^"]*"\)\)', "TIMESTAMPTZ"),
    # DuckDB has no nanoseconds with a zone. In UTC the local time is the same moment.
    (r'Timestamp\(Nanosecond, Some\("UTC"\)\)', "TIMESTAMP_NS"),
    (r"Time32\(Second\)", "TIME"),
    (r"Time32\(Millisecond\)", "TIME"),
    (r"Time64\(Microsecond\)", "TIME"),
)
_CAST = re.compile(r"arrow_cast\(('(?:[^']|'')*'|NULL|-?\d+|X'[0-9a-f]*'), '((?:[^']|'')*)'\)")
_TICKS = {"Second": 10**6, "Millisecond": 10**3, "Microsecond": 1}


def in_duckdb(where: str, schema: pa.Schema) -> str | None:
    """Return the text in DuckDB's dialect, or None if DuckDB cannot express it."""
    text = _CAST.sub(lambda match: _constant(match[1], match[2]), where)
    text = re.sub(r"\bX'([0-9a-f]*)'", lambda m: _blob(m[1]), text)
    # DuckDB's TIMESTAMP ends at microseconds.
    text = re.sub(r"\bTIMESTAMP ('[^']*\.\d{7,9}')", r"TIMESTAMP_NS \1", text)
    for field in schema:
        if pt.is_timestamp(field.type):
            text = _with_clock(text, field)
    return None if "arrow_cast" in text else _with_escapes(text)


def _constant(value: str, kind: str) -> str:
    """A constant of a type that Arrow has; the word `arrow_cast` is left where DuckDB has none."""
    if value == "NULL":
        return "NULL"
    if kind in ("Float16", "Float32"):
        # Columns of these are float64 for DuckDB: the constant has their precision, not their type.
        exact = np.float16(value.strip("'")) if kind == "Float16" else np.float32(value.strip("'"))
        return f"CAST('{float(exact)!r}' AS DOUBLE)"
    if (found := re.fullmatch(r"Timestamp\((\w+), (None|Some\(.*\))\)", kind)) is not None and (
        re.fullmatch(r"-?\d+", value)
    ):
        if found[1] == "Nanosecond":
            return f"make_timestamp_ns({value})"
        moment = f"make_timestamp({int(value) * _TICKS[found[1]]})"
        return moment if found[2] == "None" else f"({moment} AT TIME ZONE 'UTC')"
    for pattern, name in _TYPES:
        if (matched := re.fullmatch(pattern, kind)) is not None:
            return f"CAST({value} AS {matched.expand(name)})"
    return "arrow_cast()"


def _with_clock(text: str, field: pa.Field) -> str:
    """Parts, days and texts of a moment are those that a clock in its column's zone shows."""
    name = rf'("{re.escape(field.name)}"|\b{re.escape(field.name)}\b)'
    clock, moment = r"\1", r"TIMESTAMP \3"
    if field.type.unit == "ns":
        # DuckDB rounds nanoseconds to zero before it takes a day or a part.
        clock = f'"{_coarse(field.name)}"'
    elif field.type.tz is not None:
        clock = rf"(\1 AT TIME ZONE '{field.type.tz}')"
        moment = rf"(TIMESTAMP \3 AT TIME ZONE '{field.type.tz}')"
    text = re.sub(rf"date_part\(('\w+'), {name}\)", rf"date_part(\1, {_second(clock)})", text)
    text = re.sub(rf"CAST\({name} AS DATE\)", rf"CAST({clock} AS DATE)", text)
    return re.sub(rf"{name} ([<>=]+) ('\d[^']*')", rf"\1 \2 {moment}", text)


def _second(replacement: str) -> str:
    return replacement.replace(r"\1", r"\2")


def _coarse(name: str) -> str:
    return f"{name} in microseconds"


def _in_microseconds(column: pa.ChunkedArray) -> pa.ChunkedArray:
    ticks = (None if each is None else each // 1000 for each in column.cast(pa.int64()).to_pylist())
    return pa.chunked_array([pa.array(ticks, pa.int64()).cast(pa.timestamp("us"))])


def _blob(digits: str) -> str:
    return f"unhex('{digits}')"


def _with_escapes(text: str) -> str:
    """LIKE of DataFusion and Lance has the backslash as its escape, DuckDB's has none."""
    return re.sub(r"(\bI?LIKE '(?:[^']|'')*')", r"\1 ESCAPE '\\'", text)


def _for_duckdb(column: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """Return the same values in a type that DuckDB has, or None if there is no such type."""
    kind = column.type
    if pt.is_dictionary(kind):
        return _for_duckdb(column.cast(kind.value_type))
    if pt.is_date64(kind):
        days = column.cast(pa.date32(), safe=False)
        return days if days.cast(kind).equals(column) else None
    if pt.is_floating(kind):
        # DuckDB compares float32 with a number as float32; here, as in PostgreSQL, it is float64.
        return column.cast(pa.float64())
    if pt.is_decimal(kind) and kind.scale < 0:
        return None
    if pt.is_timestamp(kind) and kind.tz is not None:
        if kind.unit == "ns":
            return column.cast(pa.timestamp("ns")) if kind.tz == "UTC" else None
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
# In these cases DuckDB's SQL has another meaning, and DataFusion decides. Nothing may be added here
# without a reason why Phalanx follows DataFusion.


def _negative_nan(where: str, table: pa.Table) -> bool:
    """A NaN with its sign set is below all numbers here and in Lance; DuckDB has one NaN."""
    for column in table.columns:
        if pt.is_floating(column.type):
            numbers = column.cast(pa.float64()).drop_null().to_numpy()
            if np.signbit(numbers[np.isnan(numbers)]).any():
                return True
    return False


def _infinite(where: str, table: pa.Table) -> bool:
    """The first and the last values of a nanosecond timestamp mean infinity in DuckDB."""
    for column in table.columns:
        if pt.is_timestamp(column.type) and column.type.unit == "ns":
            ticks = column.cast(pa.int64()).drop_null().to_numpy()
            if (ticks >= 2**63 - 1).any() or (ticks <= 1 - 2**63).any():
                return True
    return False


def _far_moments(where: str, table: pa.Table) -> bool:
    """DataFusion computes no part of a moment past the years ±262,000; DuckDB ends there too."""
    return "date_part" in where and any(
        pt.is_timestamp(field.type) and not _is_near(table.column(field.name))
        for field in table.schema
    )


def _as_doubles(where: str, table: pa.Table) -> bool:
    """Next to a constant such as 1e300, DuckDB compares large integers as doubles, not exactly."""
    plain = _CAST.sub("", where)
    if not re.search(r"\d[eE][-+]?\d", plain):
        return False
    return re.search(r"\d{16,}", plain) is not None or any(
        pt.is_integer(column.type)
        and any(abs(value) >= 2**53 for value in column.drop_null().to_pylist())
        for column in table.columns
    )


def _is_near(column: pa.ChunkedArray) -> bool:
    seconds = column.cast(pa.timestamp("s", column.type.tz), safe=False).cast(pa.int64())
    extremes = pc.min_max(seconds)
    low, high = extremes["min"].as_py(), extremes["max"].as_py()
    return low is None or (low > -8_000_000_000_000 and high < 8_000_000_000_000)


DIFFERENCES: tuple[Callable[[str, pa.Table], bool], ...] = (
    _negative_nan,
    _infinite,
    _far_moments,
    _as_doubles,
)


def _masked(array: pa.Array) -> pa.Array:
    """Set all children of a NULL struct to NULL, because DataFusion reads only the children."""
    if not pa.types.is_struct(array.type):
        return array
    children = [_masked(pc.struct_field(array, child.name)) for child in array.type]
    return pa.StructArray.from_arrays(children, fields=list(array.type), mask=array.is_null())


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)
