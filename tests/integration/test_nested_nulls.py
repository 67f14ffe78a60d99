"""NULL inside lists, maps and structs: what is below a NULL has no value, required or not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import phalanx
from phalanx.errors import SchemaMismatch


def required(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


OPTIONAL = pa.struct([pa.field("a", pa.int32()), pa.field("b", pa.string())])
REQUIRED = pa.struct([required("a", pa.int32()), required("b", pa.string())])
FULL = {"a": 1, "b": "x"}
Nest = Callable[[pa.DataType], pa.DataType]
# How the data and the table hold a struct, and the values.
CASES: dict[str, tuple[Nest, Nest, list[Any]]] = {
    "plain": (lambda s: s, lambda s: s, [FULL, None]),
    "list": (
        lambda s: pa.list_(pa.field("element", s)),
        pa.list_,
        [[FULL, None], None, [], [None]],
    ),
    "list_to_large": (pa.list_, pa.large_list, [[FULL, None], None, [], [None]]),
    "large_to_list": (pa.large_list, pa.list_, [[FULL, None], None, [], [None]]),
    "fixed_to_list": (lambda s: pa.list_(s, 2), pa.list_, [[FULL, None], None]),
    "map": (
        lambda s: pa.map_(pa.int32(), s),
        lambda s: pa.map_(pa.int32(), s),
        [[(1, FULL), (2, None)], None, []],
    ),
    "struct": (
        lambda s: pa.struct([("s", s)]),
        lambda s: pa.struct([("s", s)]),
        [{"s": FULL}, {"s": None}, None],
    ),
    "list_of_lists": (
        lambda s: pa.list_(pa.list_(pa.field("element", s))),
        lambda s: pa.list_(pa.list_(s)),
        [[[FULL, None], None, []], None, []],
    ),
    "list_of_maps": (
        lambda s: pa.list_(pa.field("element", pa.map_(pa.int32(), s))),
        lambda s: pa.list_(pa.map_(pa.int32(), s)),
        [[[(1, FULL), (2, None)], None, []], None, []],
    ),
    "list_of_structs_of_lists": (
        lambda s: pa.list_(pa.struct([required("v", pa.list_(pa.field("element", s)))])),
        lambda s: pa.list_(pa.struct([("v", pa.list_(s))])),
        [[{"v": [FULL, None]}, None], None, []],
    ),
}


def null_below_null(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The array in a type of the same layout; all below NULL is NULL, as a JVM has it."""
    nulls = array.is_null() if array.null_count else None
    if pa.types.is_struct(kind):
        inner = [
            null_below_null(each, f.type) for each, f in zip(array.flatten(), kind, strict=True)
        ]
        return pa.StructArray.from_arrays(inner, fields=list(kind), mask=nulls)
    if pa.types.is_map(kind):
        items = null_below_null(array.items, kind.item_type)
        return pa.MapArray.from_arrays(array.offsets, array.keys, items, type=kind, mask=nulls)
    if pa.types.is_fixed_size_list(kind):
        values = null_below_null(array.values, kind.value_type)
        return pa.FixedSizeListArray.from_arrays(values, type=kind, mask=nulls)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        build = pa.ListArray if pa.types.is_list(kind) else pa.LargeListArray
        values = null_below_null(array.values, kind.value_type)
        return build.from_arrays(array.offsets, values, type=kind, mask=nulls)
    return array


@pytest.mark.parametrize("case", CASES)
def test_null_is_stored_wherever_it_is_nested(tmp_path: Path, case: str) -> None:
    given, stored, values = CASES[case]
    wrong = {}
    for n, data in enumerate((OPTIONAL, REQUIRED)):
        for m, table in enumerate((OPTIONAL, REQUIRED)):
            schema = pa.schema([("row", pa.int32()), ("c", stored(table))])
            made = phalanx.create(tmp_path / f"{n}{m}", schema, [], transaction="strong")
            column = null_below_null(pa.array(values, given(OPTIONAL)), given(data))
            rows = pa.table({"row": pa.array(range(len(values)), pa.int32()), "c": column})
            made.append(rows)
            made.append(rows.slice(1))
            made.update("row = 0", {"row": "100"})
            found = made.scan().to_arrow()
            places = [0 if row == 100 else row for row in found["row"].to_pylist()]
            expected = [values[row] for row in places]
            if found["c"].to_pylist() != expected or len(places) != 2 * len(values) - 1:
                wrong[n, m] = found["c"].to_pylist()
    assert wrong == {}


def test_null_in_a_required_field_of_a_nested_value_is_refused(tmp_path: Path) -> None:
    kinds = {
        "list": (pa.list_, [[], [{"a": 1, "b": None}]]),
        "map": (lambda s: pa.map_(pa.int32(), s), [[], [(1, {"a": 1, "b": None})]]),
        "keys": (lambda s: pa.map_(s, pa.int32()), [[], [({"a": 1, "b": None}, 1)]]),
        "maps": (
            lambda s: pa.list_(pa.map_(pa.int32(), s)),
            [[[], []], [[], [(1, {"a": 1, "b": None})]]],
        ),
    }
    for name, (nest, values) in kinds.items():
        made = phalanx.create(tmp_path / name, pa.schema([("c", nest(REQUIRED))]), [])
        with pytest.raises(SchemaMismatch, match=r"'c(\[\])+\.b' is not nullable, but row 1 "):
            made.append(pa.table({"c": pa.array(values, nest(OPTIONAL))}))
        assert made.scan().count_rows() == 0
