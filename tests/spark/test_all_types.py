"""Every type of Spark, at every place: a table keeps it unchanged, or cannot be created."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t

from spark.lakes import Lake, lake_at
from spark.test_types import plain

_POINT = "X'0101000000000000000000F03F0000000000000040'"
_GEOMETRY = f"st_setsrid(st_geomfromwkb({_POINT}), 4326)"
# For each class of types that is kept: types, and two values of each, of which the first is less.
KEPT: dict[str, dict[str, tuple[str, str]]] = {
    "NullType": {"void": ("NULL", "NULL")},
    "BooleanType": {"boolean": ("false", "true")},
    "ByteType": {"tinyint": ("-128Y", "127Y")},
    "ShortType": {"smallint": ("-32768S", "32767S")},
    "IntegerType": {"int": ("-2147483648", "2147483647")},
    "LongType": {"bigint": ("-9223372036854775808L", "9223372036854775807L")},
    "FloatType": {"float": ("float('-Infinity')", "float('NaN')")},
    "DoubleType": {"double": ("-0.0D", "double('NaN')")},
    "DecimalType": {
        "decimal(38,38)": (f"-0.{'9' * 38}", f"0.{'9' * 38}"),
        "decimal(38,0)": (f"-{'9' * 38}BD", f"{'9' * 38}BD"),
        "decimal(1,1)": ("-0.9BD", "0.9BD"),
    },
    "StringType": {
        "string": ("''", "'ü🗡'"),
        "string collate UTF8_LCASE": ("'Ab'", "'aC'"),
        "string collate UNICODE_CI_RTRIM": ("'ab '", "'AC'"),
    },
    "BinaryType": {"binary": ("X''", "X'00FF'")},
    "DateType": {"date": ("DATE '0001-01-01'", "DATE '9999-12-31'")},
    "TimeType": {
        "time(0)": ("TIME '00:00:00'", "TIME '23:59:59'"),
        "time(3)": ("TIME '00:00:00.001'", "TIME '23:59:59.999'"),
        "time(6)": ("TIME '00:00:00.000001'", "TIME '23:59:59.999999'"),
        "time(9)": ("TIME '00:00:00.000000001'", "TIME '23:59:59.999999999'"),
    },
    "TimestampType": {
        "timestamp": ("TIMESTAMP '1883-01-01 00:00:00'", "TIMESTAMP '2262-01-01 00:00:00.000001'")
    },
    "TimestampNTZType": {
        "timestamp_ntz": (
            "TIMESTAMP_NTZ '0001-01-01 00:00:00'",
            "TIMESTAMP_NTZ '9999-12-31 23:59:59.999999'",
        )
    },
    "DayTimeIntervalType": {
        "interval day": ("INTERVAL '-106751991' DAY", "INTERVAL '106751991' DAY"),
        "interval hour to minute": (
            "INTERVAL '-1:02' HOUR TO MINUTE",
            "INTERVAL '1:02' HOUR TO MINUTE",
        ),
        "interval day to second": (
            "INTERVAL '-1 00:00:00.000001' DAY TO SECOND",
            "INTERVAL '106751991 04:00:54.775807' DAY TO SECOND",
        ),
    },
    "VariantType": {
        "variant": ("parse_json('null')", """parse_json('{"a": [1, null, "x"], "b": 1.5}')""")
    },
    "GeometryType": {
        "geometry(4326)": (_GEOMETRY, _GEOMETRY),
        "geometry(any)": (f"{_GEOMETRY}::geometry(any)", f"{_GEOMETRY}::geometry(any)"),
    },
    "GeographyType": {"geography(4326)": (f"st_geogfromwkb({_POINT})", "NULL")},
    "StructType": {
        "struct<a: int not null, b: struct<c: string>>": (
            "named_struct('a', 1, 'b', NULL)",
            "named_struct('a', 2, 'b', named_struct('c', 'x'))",
        )
    },
    "ArrayType": {
        "array<struct<a: int not null>>": (
            "array(named_struct('a', 1), NULL)",
            "array(named_struct('a', 2))",
        ),
        "array<array<int>>": ("array()", "array(array(1, NULL), NULL, array())"),
    },
    "MapType": {
        "map<int, struct<a: int not null>>": (
            "map()",
            "map(1, named_struct('a', 1), 2, NULL)",
        )
    },
}
# Refused when a table is made, altered or written to: see `test_catalog_answers.py`.
REFUSED = {
    *("CharType", "VarcharType", "YearMonthIntervalType", "CalendarIntervalType"),
    *("UserDefinedType", "PythonUserDefinedType"),
    *("TimestampLTZNanosType", "TimestampNTZNanosType"),
}
# What is above several types, or no type of a column.
NO_TYPES = {
    *("DataType", "AbstractDataType", "AnyDataType", "AtomicType", "NumericType", "IntegralType"),
    *("FractionalType", "DatetimeType", "AnyTimeType", "AnyTimestampType", "AnyTimestampNanoType"),
    *("AnsiIntervalType", "SpatialType", "ObjectType", "IndeterminateStringType"),
    *("ExplicitUTF8BinaryStringType", "StructField"),
    "SQLUserDefinedType",  # an annotation
}
UNORDERED = {"VariantType", "GeometryType", "GeographyType", "MapType", "NullType"}
NO_KEYS = {"VariantType", "MapType", "NullType"}


def test_no_type_of_spark_is_overlooked() -> None:
    inner = re.compile(r"org/apache/spark/sql/types/(\w+Type)\.class")
    jars = Path(pyspark.__file__).parent.glob("jars/spark-*.jar")
    names = [name for jar in jars for name in zipfile.ZipFile(jar).namelist()]
    in_java = {found[1] for name in names if (found := inner.fullmatch(name))}

    def names_of_subtypes(kind: type) -> Iterator[str]:
        for each in kind.__subclasses__():
            if each.__module__ == t.__name__:
                yield each.__name__
                yield from names_of_subtypes(each)

    assert len(in_java) > 40
    assert in_java | set(names_of_subtypes(t.DataType)) == {*KEPT, *REFUSED, *NO_TYPES}


class Columns:
    """A column of each type, alone and in a struct, an array and a map, with three rows."""

    def __init__(self) -> None:
        # The type of each column, its value in each row, and how Python can hold it.
        self.types: dict[str, str] = {}
        self.rows: list[dict[str, str]] = [{}, {}, {}]
        self.shown: list[str] = []
        # The columns that Spark compares, with what they are compared with.
        self.compared: dict[str, str] = {}
        number = 0
        for group, kinds in KEPT.items():
            for kind, (less, more) in kinds.items():
                number += 1
                column, nested = f"c{number}", f"n{number}"
                # Python has no nanoseconds.
                text = f"CAST({column} AS string) AS {column}"
                self.shown.append(text if group == "TimeType" else column)
                self._add(column, kind, [less, more])
                self._nest(nested, kind, less, more, group not in NO_KEYS)
                if group not in UNORDERED:
                    self.compared[column] = f"CAST({more} AS {kind})"
        # In a struct conditions are pushed too.
        for name in [name for name in self.compared if "string" in self.types[name]]:
            self.compared[f"n{name[1:]}.x"] = self.compared[name]

    def _nest(self, name: str, kind: str, less: str, more: str, is_key: bool) -> None:
        kinds = [f"x: {kind}", f"a: array<{kind}>", f"m: map<string, {kind}>"]
        values = [more, f"array({less}, NULL, {more})", f"map('x', {less}, 'y', NULL)"]
        shown = [f"{name}.x", f"{name}.a", f"map_entries({name}.m)"]
        if is_key:
            kinds.append(f"k: map<{kind}, int>")
            values.append(f"map({less}, 1)")
            shown.append(f"map_entries({name}.k)")
        parts = ", ".join(f"'{n}', {v}" for n, v in zip("xamk", values, strict=False))
        self._add(name, f"struct<{', '.join(kinds)}>", [f"named_struct({parts})"])
        # In Python not all of them can be keys.
        self.shown.append(f"struct({', '.join(shown)}) AS {name}")

    def _add(self, name: str, kind: str, values: list[str]) -> None:
        self.types[name] = kind
        for row, value in zip(self.rows, [*values, "NULL", "NULL"], strict=False):
            row[name] = f"CAST({value} AS {kind})"

    @property
    def declared(self) -> str:
        return ", ".join(f"{name} {kind}" for name, kind in self.types.items())

    @property
    def query(self) -> str:
        return " UNION ALL ".join(
            f"SELECT {place} AS row, " + ", ".join(f"{row[name]} AS {name}" for name in self.types)
            for place, row in enumerate(self.rows)
        )

    def conditions(self) -> list[str]:
        return [
            condition.format(column, value)
            for column, value in self.compared.items()
            for condition in ("{0} = {1}", "NOT ({0} >= {1})")
        ]


COLUMNS = Columns()


def in_memory(spark: SparkSession) -> DataFrame:
    """The same rows without Phalanx."""
    made = spark.sql(COLUMNS.query)
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW all_types AS {COLUMNS.query}")
    return made


def differing(found: DataFrame, expected: DataFrame) -> dict[str, Any]:
    """The columns of which the type or a value is another."""
    wrong: dict[str, Any] = {}
    for name in COLUMNS.types:
        ours, theirs = found.schema[name].dataType, expected.schema[name].dataType
        if ours.simpleString() != theirs.simpleString():
            wrong[name] = (ours, theirs)
    # Sorting in Spark would take another two jobs.
    rows = [
        sorted(frame.selectExpr("row", *COLUMNS.shown).collect(), key=lambda row: row["row"])
        for frame in (found, expected)
    ]
    for name in COLUMNS.types:
        ours, theirs = ([plain(row[name]) for row in each] for each in rows)
        if repr(ours) != repr(theirs):
            wrong[name] = (ours, theirs)
    return wrong


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return lake_at(spark, str(tmp_path_factory.mktemp("types")))


def test_every_type_is_kept_at_every_place(lake: Lake) -> None:
    expected = in_memory(lake.spark)
    lake.sql(f"CREATE TABLE lake.t (row int, {COLUMNS.declared})")
    lake.sql("INSERT INTO lake.t SELECT * FROM all_types")
    assert differing(lake.frame("SELECT * FROM lake.t"), expected) == {}
    # A table that is made of it has the same types.
    lake.sql("CREATE TABLE lake.copy TBLPROPERTIES (transaction='strong') AS SELECT * FROM lake.t")
    copied = lake.frame("SELECT * FROM lake.copy").schema
    assert copied.simpleString() == lake.frame("SELECT * FROM lake.t").schema.simpleString()
    conditions = COLUMNS.conditions()

    # Each condition alone is pushed down; without Phalanx one query counts them all.
    counts = [f"SELECT {n}, count(*) FROM lake.t WHERE {c}" for n, c in enumerate(conditions)]
    ours = [count for _, count in sorted(lake.sql(" UNION ALL ".join(counts)))]
    tests = ", ".join(f"count_if({condition})" for condition in conditions)
    (theirs,) = lake.sql(f"SELECT {tests} FROM all_types")
    wrong = {c: (a, b) for c, a, b in zip(conditions, ours, theirs, strict=True) if a != b}
    assert wrong == {}
    assert sum(theirs) > len(conditions) / 2


@pytest.mark.executors
@pytest.mark.bare
def test_a_path_keeps_every_type_too(spark: SparkSession, uri: str) -> None:
    expected = spark.sql(COLUMNS.query)
    expected.write.format("phalanx").mode("append").option("partition_by", "row").save(uri)
    assert differing(spark.read.format("phalanx").load(uri), expected) == {}
