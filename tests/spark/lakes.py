"""Catalogs of Spark for tests, each with a root and a name of its own."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import phalanx

_NUMBERS = itertools.count()


@dataclass(frozen=True)
class Lake:
    """A catalog; statements call it `lake`."""

    spark: SparkSession
    name: str
    root: str

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        """Return the rows of a statement."""
        return [tuple(row) for row in self.frame(statement).collect()]

    def frame(self, statement: str) -> DataFrame:
        """A query."""
        return self.spark.sql(re.sub(r"\blake\b", self.name, statement))

    def table(self, name: str) -> phalanx.Table:
        """Open the table as another program."""
        return phalanx.open(f"{self.root}/{name}")

    def check_refused(self, statement: str, message: str) -> None:
        """Check that the statement fails with a one-line error."""
        with pytest.raises(Exception, match=message) as raised:
            self.sql(statement)
        told = [line for line in str(raised.value).splitlines() if re.search(message, line)]
        assert len(told) == 1
        assert "Traceback" not in told[0]


def lake_at(spark: SparkSession, root: str, **storage: str) -> Lake:
    """Return a catalog with a root, under a unique name."""
    name = f"lake{next(_NUMBERS)}"
    spark.conf.set(f"spark.sql.catalog.{name}", "phalanx.bridge.Catalog")
    spark.conf.set(f"spark.sql.catalog.{name}.root", root)
    for key, value in storage.items():
        spark.conf.set(f"spark.sql.catalog.{name}.storage.{key}", value)
    return Lake(spark, name, root)


def rows_of(table: phalanx.Table) -> list[tuple[Any, ...]]:
    """Return all rows in a fixed order."""
    found = table.scan().to_arrow()
    return sorted(zip(*(column.to_pylist() for column in found.columns), strict=True), key=repr)
