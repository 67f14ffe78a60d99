"""The small tables that many tests use: their schemas, their rows, and how to read them back.

`from tables import SCHEMA, rows` gives a table of keys `k` and numbers `n`, partitioned by `k` in
most tests. A test about other columns defines its own schema and builds rows with `table_of`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest

import phalanx

# Whether the soak runs: tests try many more cases.
SOAK = os.environ.get("PHALANX_PROFILE") == "soak"

both_modes = pytest.mark.parametrize("mode", ["weak", "strong"])

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64())])
# The same with 32-bit numbers, which Spark reads as `int`.
INT32_SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int32())])
# The same with a unique key.
KEYED_SCHEMA = pa.schema([("id", pa.int64()), ("k", pa.string()), ("n", pa.int32())])


def table_of(schema: pa.Schema, records: Iterable[Iterable[Any]]) -> pa.Table:
    """Build a table from records, each with one value for every column of the schema."""
    return pa.Table.from_pylist(
        [dict(zip(schema.names, record, strict=True)) for record in records], schema=schema
    )


def rows(*pairs: tuple[str | None, int | None], schema: pa.Schema = SCHEMA) -> pa.Table:
    """Build rows from pairs of a key and a number."""
    return table_of(schema, pairs)


def int32_rows(*pairs: tuple[str | None, int | None]) -> pa.Table:
    """Build rows of `INT32_SCHEMA` from pairs of a key and a number."""
    return table_of(INT32_SCHEMA, pairs)


def rows_of_key(key: str | None, numbers: Iterable[int], schema: pa.Schema = SCHEMA) -> pa.Table:
    """Build rows of one key, one for each number."""
    return table_of(schema, [(key, number) for number in numbers])


def contents(table: phalanx.Table, where: str | None = None) -> Counter[tuple[Any, ...]]:
    """Return the rows of a table as tuples, with how often each occurs."""
    found = table.scan(where).to_arrow().to_pylist()
    return Counter(tuple(row.values()) for row in found)


def sorted_rows(table: phalanx.Table) -> list[dict[str, Any]]:
    """Return the rows of a table as dictionaries, sorted by their text."""
    return sorted(table.scan().to_arrow().to_pylist(), key=str)


def numbers(table: phalanx.Table, where: str | None = None) -> list[int]:
    """Return the sorted values of the column `n`; all columns are read."""
    found: list[int] = table.scan(where).to_arrow()["n"].to_pylist()
    return sorted(found)


def ids(uri: Any) -> list[int]:
    """Return the sorted values of the column `id` of the table at `uri`; all columns are read."""
    found: list[int] = phalanx.open(uri).scan().to_arrow()["id"].to_pylist()
    return sorted(found)
