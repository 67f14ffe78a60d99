"""Arrow and Spark types: what a column is to Spark, and its values in the form that Spark takes.

Spark has no unsigned integers, half floats, vectors of a fixed size or dictionaries, and counts
time in microseconds. A column of such a type arrives as the next wider type that holds all its
values; nanoseconds are cut to microseconds. On the way back `conformed` restores the table's types.

Some types of Spark say more than the type of Arrow that holds their values. Columns of these have a
note, `phalanx:spark_type` in the metadata of the Arrow field, wherever they are nested:

    Spark                               Arrow                             note
    STRING COLLATE UTF8_LCASE           string                            string collate UTF8_LCASE
    VARIANT                             struct of value and metadata      variant
    GEOMETRY(4326), GEOGRAPHY(4326)     struct of srid and wkb            geometry(OGC:CRS84)
    TIME(3), but not TIME(6)            time64[ns]                        time(3)
    INTERVAL DAY, but not DAY TO SECOND duration[us]                      interval day

What has no type in Arrow that can be read back as the same type is refused by `stored_schema`.
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
from phalanx.model.schema.rows import check_fits, copied, offsets_and_items
from phalanx.spark.runtime.workers import settle

NOTE = b"phalanx:spark_type"
# Where Spark notes char(n) and varchar(n) of a column, which is a string to sources.
_LENGTH = "__CHAR_VARCHAR_TYPE_STRING"
_MICROSECONDS = 6
_NANOSECONDS = 9
# The microseconds of the last field of an interval.
_INTERVAL_UNITS = {
    st.DayTimeIntervalType.DAY: 86_400 * 10**6,
    st.DayTimeIntervalType.HOUR: 3_600 * 10**6,
    st.DayTimeIntervalType.MINUTE: 60 * 10**6,
    st.DayTimeIntervalType.SECOND: 1,
}
_MOST_DIGITS = 38
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
    """The schema that Spark sees; `SchemaMismatch` names a column that Spark cannot hold."""
    return st.StructType(
        [
            st.StructField(field.name, _spark_type(field, field.name), field.nullable)
            for field in schema
        ]
    )


def arrow_schema(schema: st.StructType) -> pa.Schema:
    """The schema of the Arrow batches that Spark exchanges for a schema of its own, with notes."""
    # What else Spark notes of a column, such as its type in a database, is no part of a table.
    return pa.schema([_arrow_field(f.name, f.dataType, f.nullable, f.name) for f in schema])


def stored_schema(schema: st.StructType) -> pa.Schema:
    """The schema of a new table for these columns; `SchemaMismatch` names one it cannot keep."""
    return pa.schema([_with_notes_only(field) for field in arrow_schema(schema)])


def parsed(text: str, path: str = "") -> st.DataType:
    """The type of Spark that its JSON stands for; one that PySpark lacks is a `SchemaMismatch`."""
    _check_known(json.loads(text), path)
    found: st.DataType = st._parse_datatype_json_string(text)
    return found


def check_no_lengths(schema: st.StructType) -> None:
    """Refuse char(n) and varchar(n), which Spark notes beside a column that is a string to it."""
    for field in schema:
        if _LENGTH in field.metadata:
            raise _no_length(field.name, field.metadata[_LENGTH])


def check_writable(schema: st.StructType, stored: pa.Schema) -> None:
    """Refuse columns of Spark that no rows of a table could come from; values are not looked at."""
    given = arrow_schema(schema)
    check_fits(given, stored)
    for field in stored:
        _check_same(given.field(field.name), field, field.name)


def check_keys(names: Iterable[str], schema: pa.Schema) -> None:
    """Refuse keys that Spark compares otherwise than byte by byte, as Phalanx matches rows."""
    for name in names:
        field = schema.field(name)
        if is_collated(field):
            raise SchemaMismatch(
                f"Cannot match rows by {name!r}, which is {_note_of(field)}: rows are matched byte "
                "by byte. Use MERGE INTO or a join of Spark SQL, or another key."
            )


def is_collated(field: pa.Field) -> bool:
    """Whether Spark compares texts of the column in another way than byte by byte."""
    return _note_of(field).startswith("string collate ")


def for_spark(batches: Iterable[pa.RecordBatch], target: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The batches in the Arrow schema that Spark expects of them, columns by name."""
    settle()
    for batch in batches:
        arrays = [_column(batch.column(field.name), field) for field in target]
        yield pa.RecordBatch.from_arrays(arrays, schema=target)


def _column(array: pa.Array, field: pa.Field) -> pa.Array:
    try:
        return fitted(array, field)
    except pa.ArrowInvalid as error:
        reason = " ".join(str(error).split())
        raise SchemaMismatch(
            f"Spark cannot hold all values of column {field.name!r} ({array.type}) as "
            f"{field.type}: {reason}. Leave it out with the option `columns`."
        ) from None


def _spark_type(field: pa.Field, path: str) -> st.DataType:
    kind = field.type
    if note := _note_of(field):
        return _noted_type(note, kind, path)
    if (simple := _SIMPLE.get(kind)) is not None:
        return simple
    if pt.is_fixed_size_binary(kind):
        return st.BinaryType()
    if pt.is_decimal(kind):
        # Spark knows no negative scales, and no more digits after the point than there are at all.
        scale = max(0, kind.scale)
        digits = max(kind.precision + scale - kind.scale, scale)
        if digits <= _MOST_DIGITS:
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


def _noted_type(note: str, kind: pa.DataType, path: str) -> st.DataType:
    """The type of Spark that a note stands for, if the column can hold its values."""
    try:
        found = st._parse_datatype_json_value(note)
        holds = found is not None and found.jsonValue() == note and _holds(kind, found)
    except Exception:
        holds = False
    if not holds:
        raise SchemaMismatch(
            f"Cannot read column {path!r} ({kind}) as {note!r}, which {NOTE.decode()} says it is: "
            "a newer version of Phalanx may have written it, or something else has. Leave it out "
            "with the option `columns`."
        )
    return found


def _holds(kind: pa.DataType, spark: st.DataType) -> bool:
    if pt.is_dictionary(kind):
        return _holds(kind.value_type, spark)
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
    """What the type of Arrow does not say of a type of Spark."""
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
            raise _no_length(path, spark.simpleString())
        case st.YearMonthIntervalType() | st.CalendarIntervalType():
            raise SchemaMismatch(
                f"Cannot keep column {path!r} as {spark.simpleString()}: Arrow in Python has no "
                "intervals of months. Use a number of months, or INTERVAL DAY TO SECOND."
            )
        case st.UserDefinedType():
            raise _no_user_type(path, spark.typeName())
    try:
        return to_arrow_type(spark, timezone="UTC")
    except Exception:
        raise _unknown(path, spark.simpleString()) from None


def _check_known(tree: object, path: str) -> None:
    """Refuse types that PySpark lacks, and those that it would unpickle."""
    if isinstance(tree, str):
        try:
            st._parse_datatype_json_value(tree)
        except Exception:
            raise _unknown(path, tree) from None
        return
    assert isinstance(tree, dict)
    match tree["type"]:
        case "udt":
            raise _no_user_type(path, str(tree.get("class") or tree.get("pyClass")))
        case "struct":
            for field in tree["fields"]:
                name = field["name"]
                _check_known(field["type"], f"{path}.{name}" if path else name)
        case "array":
            _check_known(tree["elementType"], f"{path}[]")
        case "map":
            _check_known(tree["keyType"], f"{path}[]")
            _check_known(tree["valueType"], f"{path}[]")


def _no_length(path: str, shown: str) -> SchemaMismatch:
    return SchemaMismatch(
        f"Cannot keep column {path!r} as {shown}: a table keeps no lengths of text. Use string, or "
        "in a query CAST(… AS STRING)."
    )


def _no_user_type(path: str, shown: str) -> SchemaMismatch:
    return SchemaMismatch(
        f"Cannot keep column {path!r} as the user-defined type {shown}: only types of Spark SQL "
        "are read back as they were. Convert it to one first, such as an array."
    )


def _unknown(path: str, shown: str) -> SchemaMismatch:
    return SchemaMismatch(
        f"Cannot keep column {path!r} as {shown}: PySpark has no such type in Arrow. Cast it to "
        "another one."
    )


def _with_notes_only(field: pa.Field) -> pa.Field:
    """Without what Spark adds to fields on their way."""
    kind = field.type
    if pt.is_struct(kind):
        kind = pa.struct([_with_notes_only(child) for child in kind])
    elif pt.is_map(kind):
        kind = pa.map_(_with_notes_only(kind.key_field), _with_notes_only(kind.item_field))
    elif pt.is_list(kind):
        kind = pa.list_(_with_notes_only(kind.value_field))
    note = (field.metadata or {}).get(NOTE)
    return pa.field(field.name, kind, field.nullable, None if note is None else {NOTE: note})


def _check_same(given: pa.Field, stored: pa.Field, path: str) -> None:
    """Refuse values of another type of Spark, though the types of Arrow are the same."""
    if pt.is_null(given.type):
        return
    if _note_of(given) or _note_of(stored):
        # A column of the table may have a type that Spark lacks: only one with a note matters here.
        ours, theirs = _spark_type(stored, path), _spark_type(given, path)
        if not _fits(theirs, ours):
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


def _fits(given: st.DataType, wanted: st.DataType) -> bool:
    """Whether all values of a type are values of another, which differ in no more than a note."""
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


def fitted(array: pa.Array, field: pa.Field) -> pa.Array:
    """The same values in a type that holds them all; times are cut to what Spark's type has."""
    kind = field.type
    if pt.is_dictionary(array.type):
        return fitted(array.dictionary_decode(), field)
    if pt.is_time(kind):
        return _cut_time(array, field)
    if pt.is_duration(kind):
        return _cut_interval(array, field)
    if array.type == kind and not pt.is_nested(kind):
        return array
    if pt.is_nested(kind) and array.offset:
        # Arrow builds no nested array with NULLs from a slice.
        array = copied(array)
    if pt.is_struct(kind):
        # What is below NULL has no value, not even one that could be cast.
        inner = array.flatten() if array.null_count else map(array.field, range(len(kind)))
        children = [fitted(each, child) for each, child in zip(inner, kind, strict=True)]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=_nulls(array))
    if pt.is_map(kind):
        keys, items = fitted(array.keys, kind.key_field), fitted(array.items, kind.item_field)
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=kind, mask=_nulls(array))
    if pt.is_list(kind):
        offsets, items = offsets_and_items(array)
        values = fitted(items, kind.value_field)
        return pa.ListArray.from_arrays(
            offsets.cast(pa.int32()), values, type=kind, mask=_nulls(array)
        )
    if pt.is_timestamp(kind) and array.type.unit == "ns":
        return _microseconds(array, kind)
    return array.cast(kind)


def _cut_time(array: pa.Array, field: pa.Field) -> pa.Array:
    """Times with as many digits of a second as the type of Spark has."""
    spark = _spark_type(field, field.name)
    assert isinstance(spark, st.TimeType)
    numbers = array.cast(field.type).cast(pa.int64())
    unit = 10 ** (_NANOSECONDS - spark.precision)
    return pc.multiply(pc.divide(numbers, unit), unit).cast(field.type)


def _cut_interval(array: pa.Array, field: pa.Field) -> pa.Array:
    """Intervals up to the last field that the type of Spark has, cut toward zero."""
    spark = _spark_type(field, field.name)
    assert isinstance(spark, st.DayTimeIntervalType)
    if array.type.unit == "ns":
        array = pc.divide(array.cast(pa.int64()), 1000).cast(field.type)
    numbers = array.cast(field.type).cast(pa.int64())
    if (unit := _INTERVAL_UNITS[spark.endField]) == 1:
        return numbers.cast(field.type)
    return pc.multiply(pc.divide(numbers, unit), unit).cast(field.type)


def _microseconds(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Nanoseconds as the microseconds that they are in, also before 1970.

    Arrow's own functions for this go by the clocks of a zone, which show some hours twice.
    """
    numbers = array.cast(pa.int64())
    whole = pc.divide(numbers, 1000)
    is_later = pc.greater(pc.multiply(whole, 1000), numbers)
    return pc.subtract(whole, is_later.cast(pa.int64())).cast(kind)


def _nulls(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None
