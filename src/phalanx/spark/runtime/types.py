"""Conversion between Arrow and Spark: types, schemas and values.

Spark has no unsigned integers, half floats, fixed-size lists or dictionaries, and its times have
microseconds. It reads a column of such a type as the next wider type that holds all its values;
nanoseconds are truncated to microseconds. For a write, `conform_rows` restores the table's types.

Some Spark types carry more information than the Arrow type of their values. Their fields have a
note, `phalanx:spark_type` in the metadata of the Arrow field, at any level of nesting:

    Spark                               Arrow                             note
    STRING COLLATE UTF8_LCASE           string                            string collate UTF8_LCASE
    VARIANT                             struct of value and metadata      variant
    GEOMETRY(4326), GEOGRAPHY(4326)     struct of srid and wkb            geometry(OGC:CRS84)
    TIME(3), but not TIME(6)            time64[ns]                        time(3)
    INTERVAL DAY, but not DAY TO SECOND duration[us]                      interval day

`stored_schema` refuses types that cannot be read back from Arrow as the same type.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from pyspark.sql import types as st
from pyspark.sql.pandas.types import to_arrow_type

from phalanx.errors import SchemaMismatch
from phalanx.model.schema.rows import check_schema_fits, copy_array, split_list
from phalanx.spark.runtime.workers import freeze_gc

NOTE = b"phalanx:spark_type"
# The metadata key under which Spark keeps char(n) and varchar(n) of a string column.
_LENGTH = "__CHAR_VARCHAR_TYPE_STRING"
_MICROSECONDS = 6
_NANOSECONDS = 9
# Microseconds by the last field of an interval type.
_INTERVAL_UNITS = {
    st.DayTimeIntervalType.DAY: 86_400 * 10**6,
    st.DayTimeIntervalType.HOUR: 3_600 * 10**6,
    st.DayTimeIntervalType.MINUTE: 60 * 10**6,
    st.DayTimeIntervalType.SECOND: 1,
}
_MAX_DIGITS = 38
_SIMPLE: dict[pa.DataType, st.DataType] = {
    pa.null(): st.NullType(),
    pa.bool_(): st.BooleanType(),
    pa.int8(): st.ByteType(),
    pa.int16(): st.ShortType(),
    pa.int32(): st.IntegerType(),
    pa.int64(): st.LongType(),
    pa.uint8(): st.ShortType(),
    pa.uint16(): st.IntegerType(),
    pa.uint32(): st.LongType(),
    pa.uint64(): st.DecimalType(20, 0),
    pa.float16(): st.FloatType(),
    pa.float32(): st.FloatType(),
    pa.float64(): st.DoubleType(),
    pa.string(): st.StringType(),
    pa.large_string(): st.StringType(),
    pa.string_view(): st.StringType(),
    pa.binary(): st.BinaryType(),
    pa.large_binary(): st.BinaryType(),
    pa.binary_view(): st.BinaryType(),
    pa.date32(): st.DateType(),
    pa.date64(): st.DateType(),
}


def spark_schema(schema: pa.Schema) -> st.StructType:
    """Return the Spark schema of an Arrow schema; `SchemaMismatch` for a type Spark lacks."""
    return st.StructType(
        [
            st.StructField(field.name, _spark_type(field, field.name), field.nullable)
            for field in schema
        ]
    )


def arrow_schema(schema: st.StructType) -> pa.Schema:
    """Return the schema, with notes, of the Arrow batches that Spark exchanges."""
    # Other metadata of Spark, such as a column's type in a database, is dropped.
    return pa.schema([_arrow_field(f.name, f.dataType, f.nullable, f.name) for f in schema])


def stored_schema(schema: st.StructType) -> pa.Schema:
    """Return the schema of a new table; `SchemaMismatch` for a type that it cannot store."""
    return pa.schema([_strip_metadata(field) for field in arrow_schema(schema)])


def parse_spark_type(text: str, path: str = "") -> st.DataType:
    """Parse the JSON of a Spark type; `SchemaMismatch` for one that PySpark lacks."""
    _check_known(json.loads(text), path)
    found: st.DataType = st._parse_datatype_json_string(text)
    return found


def check_no_lengths(schema: st.StructType) -> None:
    """Refuse char(n) and varchar(n), which Spark keeps in the metadata of string columns."""
    for field in schema:
        if _LENGTH in field.metadata:
            raise _length_error(field.name, field.metadata[_LENGTH])


def check_spark_columns(schema: st.StructType, stored: pa.Schema) -> None:
    """Refuse Spark columns that cannot be written to a table, by their types only."""
    given = arrow_schema(schema)
    check_schema_fits(given, stored)
    for field in stored:
        _check_same(given.field(field.name), field, field.name)


def check_keys(names: Iterable[str], schema: pa.Schema) -> None:
    """Refuse collated keys: Phalanx matches rows byte by byte."""
    for name in names:
        field = schema.field(name)
        if is_collated(field):
            raise SchemaMismatch(
                f"Cannot match rows by {name!r}, which is {_note_of(field)}: Phalanx matches rows "
                "byte by byte. Use MERGE INTO or a join of Spark SQL, or another key."
            )


def is_collated(field: pa.Field) -> bool:
    """Return whether Spark compares the column by a collation, not byte by byte."""
    return _note_of(field).startswith("string collate ")


def to_spark_batches(
    batches: Iterable[pa.RecordBatch], target: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Convert batches to the Arrow schema that Spark expects, matching columns by name."""
    freeze_gc()
    for batch in batches:
        arrays = [_cast_column(batch.column(field.name), field) for field in target]
        yield pa.RecordBatch.from_arrays(arrays, schema=target)


def _cast_column(array: pa.Array, field: pa.Field) -> pa.Array:
    try:
        return cast_for_spark(array, field)
    except pa.ArrowInvalid as error:
        reason = " ".join(str(error).split())
        raise SchemaMismatch(
            f"Spark cannot hold all values of column {field.name!r} ({array.type}) as "
            f"{field.type}: {reason}. Leave it out with the option `columns`."
        ) from None


def _spark_type(field: pa.Field, path: str) -> st.DataType:
    kind = field.type
    if note := _note_of(field):
        return _type_of_note(note, kind, path)
    if (simple := _SIMPLE.get(kind)) is not None:
        return simple
    if pt.is_fixed_size_binary(kind):
        return st.BinaryType()
    if pt.is_decimal(kind):
        # Spark has no negative scales, and no scale above the precision.
        scale = max(0, kind.scale)
        digits = max(kind.precision + scale - kind.scale, scale)
        if digits <= _MAX_DIGITS:
            return st.DecimalType(digits, scale)
    elif pt.is_timestamp(kind):
        return st.TimestampNTZType() if kind.tz is None else st.TimestampType()
    elif pt.is_time(kind):
        return st.TimeType(_MICROSECONDS)
    elif pt.is_duration(kind):
        return st.DayTimeIntervalType()
    elif pt.is_dictionary(kind):
        return _spark_type(pa.field(field.name, kind.value_type), path)
    elif pt.is_struct(kind):
        return st.StructType(
            [
                st.StructField(
                    child.name, _spark_type(child, f"{path}.{child.name}"), child.nullable
                )
                for child in kind
            ]
        )
    elif pt.is_map(kind):
        return st.MapType(
            _spark_type(kind.key_field, f"{path}[]"),
            _spark_type(kind.item_field, f"{path}[]"),
            kind.item_field.nullable,
        )
    elif _is_list(kind):
        element = kind.value_field
        return st.ArrayType(_spark_type(element, f"{path}[]"), element.nullable)
    raise SchemaMismatch(
        f"Spark has no type for column {path!r} ({kind}). Leave it out with the option `columns`."
    )


# ── notes ────────────────────────────────────────────────────────────────────────────────────


def _note_of(field: pa.Field) -> str:
    note: bytes = (field.metadata or {}).get(NOTE, b"")
    return note.decode(errors="replace")


def _type_of_note(note: str, kind: pa.DataType, path: str) -> st.DataType:
    """Parse a note, and check that the column can hold values of its type."""
    try:
        found = st._parse_datatype_json_value(note)
        holds = found is not None and found.jsonValue() == note and _can_hold(kind, found)
    except Exception:
        holds = False
    if not holds:
        raise SchemaMismatch(
            f"Cannot read column {path!r} ({kind}) as {note!r}, the value of {NOTE.decode()}: a "
            "newer version of Phalanx or another program may have written it. Leave it out with "
            "the option `columns`."
        )
    return found


def _can_hold(kind: pa.DataType, spark: st.DataType) -> bool:
    if pt.is_dictionary(kind):
        return _can_hold(kind.value_type, spark)
    match spark:
        case st.StringType():
            return _SIMPLE.get(kind) == st.StringType()
        case st.TimeType():
            return bool(pt.is_time(kind)) and 0 <= spark.precision <= _NANOSECONDS
        case st.DayTimeIntervalType():
            return bool(pt.is_duration(kind))
        case st.VariantType() | st.GeometryType() | st.GeographyType():
            names = [field.name for field in to_arrow_type(spark)]
            return bool(pt.is_struct(kind)) and [field.name for field in kind] == names
    return False


def _note(spark: st.DataType) -> str | None:
    """Return the note of a Spark type; None if its Arrow type says everything."""
    match spark:
        case st.StringType() if spark != st.StringType():
            pass
        case st.TimeType() if spark.precision != _MICROSECONDS:
            pass
        case st.DayTimeIntervalType() if spark != st.DayTimeIntervalType():
            pass
        case st.VariantType() | st.GeometryType() | st.GeographyType():
            pass
        case _:
            return None
    return str(spark.jsonValue())


def _arrow_field(name: str, spark: st.DataType, nullable: bool, path: str) -> pa.Field:
    note = _note(spark)
    metadata = None if note is None else {NOTE: note.encode()}
    return pa.field(name, _arrow_type(spark, path), nullable, metadata)


def _arrow_type(spark: st.DataType, path: str) -> pa.DataType:
    inside = f"{path}[]"
    match spark:
        case st.ArrayType():
            element = _arrow_field("element", spark.elementType, spark.containsNull, inside)
            return pa.list_(element)
        case st.MapType():
            value = _arrow_field("value", spark.valueType, spark.valueContainsNull, inside)
            return pa.map_(_arrow_field("key", spark.keyType, False, inside), value)
        case st.StructType():
            return pa.struct(
                [_arrow_field(f.name, f.dataType, f.nullable, f"{path}.{f.name}") for f in spark]
            )
        case st.CharType() | st.VarcharType():
            raise _length_error(path, spark.simpleString())
        case st.YearMonthIntervalType() | st.CalendarIntervalType():
            raise SchemaMismatch(
                f"Cannot store column {path!r} as {spark.simpleString()}: pyarrow has no intervals "
                "of months. Use a number of months, or INTERVAL DAY TO SECOND."
            )
        case st.UserDefinedType():
            raise _user_type_error(path, spark.typeName())
    try:
        return to_arrow_type(spark, timezone="UTC")
    except Exception:
        raise _unknown_type_error(path, spark.simpleString()) from None


def _check_known(tree: object, path: str) -> None:
    """Refuse types that PySpark lacks, and those that it would unpickle."""
    if isinstance(tree, str):
        try:
            st._parse_datatype_json_value(tree)
        except Exception:
            raise _unknown_type_error(path, tree) from None
        return
    assert isinstance(tree, dict)
    match tree["type"]:
        case "udt":
            raise _user_type_error(path, str(tree.get("class") or tree.get("pyClass")))
        case "struct":
            for field in tree["fields"]:
                name = field["name"]
                _check_known(field["type"], f"{path}.{name}" if path else name)
        case "array":
            _check_known(tree["elementType"], f"{path}[]")
        case "map":
            _check_known(tree["keyType"], f"{path}[]")
            _check_known(tree["valueType"], f"{path}[]")


def _length_error(path: str, shown: str) -> SchemaMismatch:
    return SchemaMismatch(
        f"Cannot store column {path!r} as {shown}: strings have no length. Use string, or in a "
        "query CAST(… AS STRING)."
    )


def _user_type_error(path: str, shown: str) -> SchemaMismatch:
    return SchemaMismatch(
        f"Cannot store column {path!r} as the user-defined type {shown}: only types of Spark SQL "
        "are supported. Convert it to one first, such as an array."
    )


def _unknown_type_error(path: str, shown: str) -> SchemaMismatch:
    return SchemaMismatch(
        f"Cannot store column {path!r} as {shown}: PySpark has no Arrow type for it. Cast it to "
        "another type."
    )


def _strip_metadata(field: pa.Field) -> pa.Field:
    """Remove all field metadata but notes."""
    kind = field.type
    if pt.is_struct(kind):
        kind = pa.struct([_strip_metadata(child) for child in kind])
    elif pt.is_map(kind):
        kind = pa.map_(_strip_metadata(kind.key_field), _strip_metadata(kind.item_field))
    elif pt.is_list(kind):
        kind = pa.list_(_strip_metadata(kind.value_field))
    note = (field.metadata or {}).get(NOTE)
    return pa.field(field.name, kind, field.nullable, None if note is None else {NOTE: note})


def _check_same(given: pa.Field, stored: pa.Field, path: str) -> None:
    """Refuse another Spark type with the same Arrow type."""
    if pt.is_null(given.type):
        return
    if _note_of(given) or _note_of(stored):
        # Only fields with notes matter: others may have types that Spark lacks.
        ours, theirs = _spark_type(stored, path), _spark_type(given, path)
        if not _is_subtype(theirs, ours):
            raise SchemaMismatch(
                f"Column {path!r} is {ours.simpleString()}, but the data has it as "
                f"{theirs.simpleString()}. Cast it first."
            )
    elif pt.is_struct(stored.type) and pt.is_struct(given.type):
        for child in stored.type:
            _check_same(given.type.field(child.name), child, f"{path}.{child.name}")
    elif pt.is_map(stored.type) and pt.is_map(given.type):
        _check_same(given.type.key_field, stored.type.key_field, f"{path}[]")
        _check_same(given.type.item_field, stored.type.item_field, f"{path}[]")
    elif _is_list(stored.type) and _is_list(given.type):
        _check_same(given.type.value_field, stored.type.value_field, f"{path}[]")


def _is_subtype(given: st.DataType, wanted: st.DataType) -> bool:
    """Return whether all values of one type are values of another with the same Arrow type."""
    match given, wanted:
        case st.StringType(), st.StringType():
            return True
        case st.TimeType(), st.TimeType():
            return bool(given.precision <= wanted.precision)
        case st.DayTimeIntervalType(), st.DayTimeIntervalType():
            return bool(given.endField <= wanted.endField)
    return given == wanted


# ── values ───────────────────────────────────────────────────────────────────────────────────


def _is_list(kind: pa.DataType) -> bool:
    return bool(
        pt.is_list(kind)
        or pt.is_large_list(kind)
        or pt.is_fixed_size_list(kind)
        or pt.is_list_view(kind)
        or pt.is_large_list_view(kind)
    )


def cast_for_spark(array: pa.Array, field: pa.Field) -> pa.Array:
    """Cast an array to a type that holds all its values; times are truncated to Spark's type."""
    kind = field.type
    if pt.is_dictionary(array.type):
        return cast_for_spark(array.dictionary_decode(), field)
    if pt.is_time(kind):
        return _truncate_time(array, field)
    if pt.is_duration(kind):
        return _truncate_interval(array, field)
    if array.type == kind and not pt.is_nested(kind):
        return array
    if pt.is_nested(kind) and array.offset:
        # Arrow cannot build a nested array with NULLs from a slice.
        array = copy_array(array)
    if pt.is_struct(kind):
        # Values below a NULL struct are undefined, and might not cast.
        inner = array.flatten() if array.null_count else map(array.field, range(len(kind)))
        children = [cast_for_spark(each, child) for each, child in zip(inner, kind, strict=True)]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=_null_mask(array))
    if pt.is_map(kind):
        keys, items = (
            cast_for_spark(array.keys, kind.key_field),
            cast_for_spark(array.items, kind.item_field),
        )
        return pa.MapArray.from_arrays(
            array.offsets, keys, items, type=kind, mask=_null_mask(array)
        )
    if pt.is_list(kind):
        offsets, items = split_list(array)
        values = cast_for_spark(items, kind.value_field)
        return pa.ListArray.from_arrays(
            offsets.cast(pa.int32()), values, type=kind, mask=_null_mask(array)
        )
    if pt.is_timestamp(kind) and array.type.unit == "ns":
        return _to_microseconds(array, kind)
    return array.cast(kind)


def _truncate_time(array: pa.Array, field: pa.Field) -> pa.Array:
    """Truncate times to the precision of the Spark type."""
    spark = _spark_type(field, field.name)
    assert isinstance(spark, st.TimeType)
    numbers = array.cast(field.type).cast(pa.int64())
    unit = 10 ** (_NANOSECONDS - spark.precision)
    return pc.multiply(pc.divide(numbers, unit), unit).cast(field.type)


def _truncate_interval(array: pa.Array, field: pa.Field) -> pa.Array:
    """Truncate intervals toward zero, to the last field of the Spark type."""
    spark = _spark_type(field, field.name)
    assert isinstance(spark, st.DayTimeIntervalType)
    if array.type.unit == "ns":
        array = pc.divide(array.cast(pa.int64()), 1000).cast(field.type)
    numbers = array.cast(field.type).cast(pa.int64())
    if (unit := _INTERVAL_UNITS[spark.endField]) == 1:
        return numbers.cast(field.type)
    return pc.multiply(pc.divide(numbers, unit), unit).cast(field.type)


def _to_microseconds(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Floor nanoseconds to microseconds, also before 1970.

    Arrow's floor functions work in the local time of a zone, in which some hours occur twice.
    """
    numbers = array.cast(pa.int64())
    whole = pc.divide(numbers, 1000)
    is_later = pc.greater(pc.multiply(whole, 1000), numbers)
    return pc.subtract(whole, is_later.cast(pa.int64())).cast(kind)


def _null_mask(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None
