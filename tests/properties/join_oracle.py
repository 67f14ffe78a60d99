"""Brute force: the rows of a join, one pair after another."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

Row = tuple[Any, ...]


def same(mine: Any, theirs: Any) -> bool:
    """Whether two values are equal as keys: NULL never, NaN with NaN, and both zeros."""
    if mine is None or theirs is None:
        return False
    if isinstance(mine, float) and isinstance(theirs, float) and math.isnan(mine):
        return math.isnan(theirs)
    return bool(mine == theirs)


def brute_force(
    kind: str,
    left: Sequence[Row],
    right: Sequence[Row],
    keys: Callable[[Row, Row], bool],
    widths: tuple[int, int],
) -> Counter[Row]:
    """The rows of a join, left values first; NULL where a side has no partner."""
    pairs = [(a, b) for a in range(len(left)) for b in range(len(right)) if keys(left[a], right[b])]
    met_left, met_right = {a for a, _ in pairs}, {b for _, b in pairs}
    lone_left = [row for place, row in enumerate(left) if place not in met_left]
    lone_right = [row for place, row in enumerate(right) if place not in met_right]
    blank_left, blank_right = (None,) * widths[0], (None,) * widths[1]
    rows: list[Row] = []
    if kind in ("inner", "left", "right", "full"):
        rows += [(*left[a], *right[b]) for a, b in pairs]
    if kind in ("left", "full"):
        rows += [(*row, *blank_right) for row in lone_left]
    if kind in ("right", "full"):
        rows += [(*blank_left, *row) for row in lone_right]
    if kind == "semi":
        rows = [row for place, row in enumerate(left) if place in met_left]
    if kind == "anti":
        rows = lone_left
    if kind == "right_anti":
        rows = lone_right
    return count_rows(rows)


def count_rows(rows: Sequence[Row]) -> Counter[Row]:
    """How often each row is there; NaN as text, because it equals nothing."""
    return Counter(tuple(_plain(value) for value in row) for row in rows)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    return tuple(value) if isinstance(value, list) else value
