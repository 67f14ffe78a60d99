"""Joins by Phalanx compared with Spark's own joins."""

from __future__ import annotations

import contextlib
import functools
import io
from collections import Counter
from collections.abc import Mapping

from pyspark.sql import DataFrame


def together(frames: Mapping[str, DataFrame]) -> DataFrame:
    """The rows of all frames in one query, each with the name of its frame."""
    named = [frame.selectExpr(f"'{name}' AS how", "*") for name, frame in frames.items()]
    return functools.reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), named)


def physical_plan(frame: DataFrame) -> str:
    """Return the physical plan of a query."""
    with contextlib.redirect_stdout(io.StringIO()) as told:
        frame.explain()
    return told.getvalue()


def assert_same(found: Mapping[str, DataFrame], expected: Mapping[str, DataFrame]) -> None:
    """Check that frames with the same name are equal, column by column and row by row."""
    for how, frame in found.items():
        assert frame.columns == expected[how].columns
        types, wanted = ([f.dataType for f in each.schema] for each in (frame, expected[how]))
        assert types == wanted
    rows, own_rows = (
        Counter(map(repr, together(frames).collect())) for frames in (found, expected)
    )
    assert rows - own_rows == Counter()
    assert own_rows - rows == Counter()
