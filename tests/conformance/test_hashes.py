"""conformance/hashes.json: the hash of values of every type, for any implementation."""

import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from phalanx.model.murmur3 import murmur3, murmur3_multi

CASES = json.loads(
    (Path(__file__).parents[2] / "conformance" / "hashes.json").read_text(encoding="utf-8")
)
PLAIN_TYPES = {
    "float16": pa.float16(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "date32": pa.date32(),
    "date64": pa.date64(),
} | {
    str(plain): plain
    for plain in (
        *(pa.null(), pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64()),
        *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.string(), pa.large_string(), pa.string_view()),
        *(pa.binary(), pa.large_binary(), pa.binary_view()),
    )
}
PARAMETRIC_TYPES = {
    *("time32", "time64", "timestamp", "fixed_size_binary", "dictionary"),
    *("decimal32", "decimal64", "decimal128", "decimal256"),
}


def type_of(text: str) -> pa.DataType:
    name, *arguments = re.split(r"[(<\[]|, ?", text.rstrip(")>]"), maxsplit=2)
    if not arguments:
        return PLAIN_TYPES[name]
    match name:
        case "dictionary":
            return pa.dictionary(pa.int32(), type_of(text[len("dictionary<") : -1]))
        case "fixed_size_binary":
            return pa.binary(int(arguments[0]))
        case "timestamp" | "time32" | "time64":
            return getattr(pa, name)(*(argument.removeprefix("tz=") for argument in arguments))
        case _:
            return getattr(pa, name)(*map(int, arguments))


def array_of(text: str, value: Any) -> pa.Array:
    """The value as an array of one."""
    arrow_type = type_of(text)
    if value is None:
        return pa.nulls(1, arrow_type)
    if pa.types.is_dictionary(arrow_type):
        values = array_of(text[len("dictionary<") : -1], value)
        return pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), values)
    if pa.types.is_temporal(arrow_type):
        moment = f"1970-01-01T{value}" if pa.types.is_time(arrow_type) else value
        unit = {"date32": "D", "date64": "ms"}.get(text) or arrow_type.unit
        count = np.datetime64(moment.removeprefix("+").removesuffix("Z"), unit).astype(np.int64)
        return pa.array([int(count)], f"int{arrow_type.bit_width}").cast(arrow_type)
    if pa.types.is_decimal(arrow_type):
        return pa.array([Decimal(value)], arrow_type)
    if pa.types.is_integer(arrow_type):
        return pa.array([int(value)], arrow_type)
    if pa.types.is_floating(arrow_type):
        return pa.array([np.dtype(arrow_type.to_pandas_dtype()).type(value)], arrow_type)
    return pa.array([bytes.fromhex(value) if "binary" in text else value], arrow_type)


@pytest.mark.parametrize("case", CASES["cases"], ids=lambda case: f"{case['type']} {case['value']}")
def test_a_value_hashes_as_listed(case: dict[str, Any]) -> None:
    array = array_of(case["type"], case["value"])
    assert murmur3(array).to_pylist() == [case["hash"]]
    assert murmur3_multi(array).to_pylist() == [case["hash"]]


@pytest.mark.parametrize(
    "case", CASES["multi"], ids=lambda case: " ".join(map(str, case["values"]))
)
def test_several_values_hash_as_listed(case: dict[str, Any]) -> None:
    arrays = map(array_of, case["types"], case["values"])
    assert murmur3_multi(*arrays).to_pylist() == [case["hash"]]


def test_every_hashable_type_is_listed() -> None:
    listed = {re.split(r"\W", case["type"])[0] for case in CASES["cases"]}
    assert listed == PLAIN_TYPES.keys() | PARAMETRIC_TYPES
