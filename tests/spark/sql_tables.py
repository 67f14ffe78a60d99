"""One set of rows as a table of Phalanx under three specs, and as Parquet files."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import phalanx

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("country", pa.string()),
        ("ts", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("d", pa.date32()),
        ("n", pa.int32()),
        ("big", pa.int64()),
        ("x", pa.float64()),
        ("y", pa.float32()),
        ("price", pa.decimal128(12, 2)),
        ("name", pa.string()),
        ("flag", pa.bool_()),
        ("data", pa.binary()),
        ("place", pa.struct([("city", pa.string()), ("zip", pa.int32())])),
        ("tags", pa.list_(pa.string())),
    ]
)
ROWS = 600
COUNTRIES = ["US", "DE", "FR", "", "Ünïcode", None]
NEGATIVE_NAN = struct.unpack("<d", struct.pack("<Q", 0xFFF8000000000001))[0]
FLOATS = [
    0.0,
    -0.0,
    1.5,
    -2.5,
    float("nan"),
    NEGATIVE_NAN,
    float("inf"),
    float("-inf"),
    1e300,
    None,
]
NARROW = [0.0, -0.0, 0.5, -7.25, float("nan"), float("inf"), float("-inf"), 3.0, None]
NAMES = ["", "a", "A", "ab", "abc", "a%c", "a_c", "a\\c", "ä", "\n", "日本", "zz", " a", "a ", None]
INTS = [0, 1, -1, 2**31 - 1, -(2**31), 7, 42, 100, None]
BIGS = [0, 1, -1, 2**63 - 1, -(2**63), 2**53 + 1, 10**12, None]
PRICES = ["0.00", "-0.01", "14.20", "14.2", "9999999999.99", "-9999999999.99", "100", None]
FAR = [date(1, 1, 1), date(9999, 12, 31), date(1582, 10, 10), date(1969, 12, 31), date(1970, 1, 1)]


@dataclass(frozen=True)
class Twin:
    """The same rows in both forms, and the views by which SQL knows them."""

    uri: str
    parquet: str
    leaves: dict[int, str]


def rows() -> pa.Table:
    chance = random.Random(8)
    made = []
    for number in range(ROWS):
        day = date(2023, 1, 1) + timedelta(days=chance.randrange(1095))
        if number % 50 == 7:
            day = chance.choice(FAR)
        moment = datetime(2023, 1, 1, tzinfo=UTC) + timedelta(seconds=chance.randrange(94_600_000))
        name = chance.choice(NAMES)
        made.append(
            {
                "id": number,
                "country": chance.choice(COUNTRIES),
                "ts": None if number % 40 == 3 else moment,
                "local": None if number % 40 == 5 else moment.replace(tzinfo=None),
                "d": None if number % 40 == 9 else day,
                "n": chance.choice(INTS),
                "big": chance.choice(BIGS),
                "x": chance.choice(FLOATS),
                "y": chance.choice(NARROW),
                "price": None if (p := chance.choice(PRICES)) is None else Decimal(p),
                "name": name,
                "flag": chance.choice([True, False, None]),
                "data": None if name is None else name.encode(),
                "place": None
                if number % 9 == 0
                else {"city": chance.choice(NAMES), "zip": chance.choice(INTS)},
                "tags": chance.choice([None, [], ["a", None]]),
            }
        )
    return pa.Table.from_pylist(made, SCHEMA)


def create_twin(folder: Path) -> Twin:
    """Create a table with a third of the rows under each of three specs."""
    data = rows()
    table = phalanx.create(folder / "table", SCHEMA, ["country"], transaction="strong")
    table.append(data.slice(0, 200))
    table.evolve("year(d), bucket(2, id)")
    table.append(data.slice(200, 200))
    table.evolve("year(ts), month(ts)")
    table.append(data.slice(400))
    pq.write_table(data, folder / "rows.parquet")
    leaves = {
        number: each.location
        for each in table.plan().partitions
        for number in table_ids(each.location, each.version)
    }
    return Twin(str(folder / "table"), str(folder / "rows.parquet"), leaves)


def table_ids(location: str, version: int | None) -> list[int]:
    import lance

    found: list[int] = lance.dataset(location, version=version).to_table(["id"])["id"].to_pylist()
    return found


def register(spark: SparkSession, twin: Twin) -> None:
    """The views `t` and `p`; what is expected is what Spark itself evaluates.

    Parquet's own filters lose rows: `x = double('NaN')` finds none.
    """
    spark.conf.set("spark.sql.parquet.filterPushdown", "false")
    spark.read.format("phalanx").load(twin.uri).createOrReplaceTempView("t")
    spark.read.parquet(twin.parquet).createOrReplaceTempView("p")
