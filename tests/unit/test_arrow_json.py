from typing import Any

import pyarrow as pa
import pytest
from lance_namespace_urllib3_client.models import JsonArrowDataType, JsonArrowSchema

from phalanx.errors import InvalidSchema
from phalanx.model.schema.arrow_json import (
    field_from_json,
    field_to_json,
    schema_from_json,
    schema_to_json,
    type_from_json,
    type_to_json,
)

UNITS = ("s", "ms", "us", "ns")
ZONES = ("UTC", "Europe/Paris", "+05:30", "a]b, tz=c")
STRUCT = pa.struct([pa.field("x", pa.int8(), nullable=False), pa.field("y", pa.utf8())])
TYPES = [
    *(pa.null(), pa.bool_(), pa.float16(), pa.float32(), pa.float64(), pa.date32(), pa.date64()),
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.utf8(), pa.large_utf8(), pa.binary(), pa.large_binary(), pa.binary(0), pa.binary(16)),
    *(pa.decimal32(1, 0), pa.decimal32(9, 9), pa.decimal64(18, -128), pa.decimal64(1, 127)),
    *(pa.decimal128(38, 38), pa.decimal128(1, -1), pa.decimal256(76, 0), pa.decimal256(3, 127)),
    *(pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
    *(pa.timestamp(unit) for unit in UNITS),
    *(pa.timestamp(unit, zone) for unit in UNITS for zone in ZONES),
    *(pa.duration(unit) for unit in UNITS),
    *(pa.struct([]), STRUCT, pa.list_(STRUCT), pa.large_list(STRUCT), pa.list_(STRUCT, 3)),
    *(pa.list_(pa.float32(), 0), pa.list_(pa.field("element", pa.int8(), nullable=False))),
    *(pa.map_(pa.utf8(), STRUCT), pa.map_(STRUCT, pa.list_(pa.int8()), keys_sorted=True)),
    *(pa.dictionary(pa.int8(), pa.utf8()), pa.dictionary(pa.uint64(), STRUCT, ordered=True)),
]


def through_upstream(written: dict[str, Any]) -> dict[str, Any]:
    """What is left after a client that knows only lance-namespace's own keys."""
    model = JsonArrowSchema.from_dict(written)
    assert model is not None
    return model.to_dict()


@pytest.mark.parametrize("arrow_type", TYPES, ids=str)
def test_every_type_survives(arrow_type: pa.DataType) -> None:
    written = type_to_json(arrow_type)
    assert set(written) <= {"type", "fields", "length"}
    read = type_from_json(written)
    assert read.equals(arrow_type, check_metadata=True)
    assert str(read) == str(arrow_type), "equality of Arrow types ignores some names"


@pytest.mark.parametrize("arrow_type", TYPES, ids=str)
def test_every_type_survives_other_clients(arrow_type: pa.DataType) -> None:
    field = pa.field("column", arrow_type, arrow_type == pa.null(), metadata={"unit": "€"})
    schema = pa.schema([field], metadata={"owner": "sales"})
    read = schema_from_json(through_upstream(schema_to_json(schema)))
    assert read.equals(schema, check_metadata=True)
    assert str(read) == str(schema)


def test_upstream_knows_no_other_keys() -> None:
    assert set(JsonArrowDataType.model_fields) == {"type", "fields", "length"}


def test_keys_are_in_the_order_of_the_format() -> None:
    inner = pa.field("inner", pa.binary(3), metadata={"a": "b"})
    written = field_to_json(pa.field("outer", pa.list_(inner, 2), nullable=False))
    assert list(written) == ["name", "nullable", "type"]
    assert list(written["type"]) == ["type", "fields", "length"]
    assert list(written["type"]["fields"][0]) == ["name", "nullable", "type", "metadata"]
    assert field_from_json(written).equals(
        pa.field("outer", pa.list_(inner, 2), nullable=False), check_metadata=True
    )


def test_metadata_of_nested_fields_survives() -> None:
    key = pa.field("k", pa.utf8(), nullable=False, metadata={"at": "key"})
    value = pa.field("v", pa.list_(pa.field("item", pa.int8(), metadata={"at": "item"})))
    field = pa.field("m", pa.map_(key, value), metadata={"at": "map", "": ""})
    read = field_from_json(field_to_json(field))
    assert read.equals(field, check_metadata=True)
    assert read.type.key_field.name == "k"
    assert read.type.key_field.metadata == {b"at": b"key"}
    assert read.type.item_type.value_field.metadata == {b"at": b"item"}


def test_empty_metadata_is_left_out() -> None:
    schema = pa.schema([pa.field("a", pa.int8(), metadata={})], metadata={})
    assert schema_to_json(schema) == {
        "fields": [{"name": "a", "nullable": True, "type": {"type": "int8"}}]
    }


def test_absent_and_null_metadata_mean_the_same() -> None:
    field = {"name": "a", "nullable": True, "type": {"type": "int8"}}
    assert field_from_json({**field, "metadata": None}) == field_from_json(field)
    assert schema_from_json({"fields": [], "metadata": None}) == pa.schema([])


class Celsius(pa.ExtensionType):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__(pa.float64(), "phalanx.test.celsius")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""


@pytest.mark.parametrize(
    "arrow_type",
    [
        pa.string_view(),
        pa.binary_view(),
        pa.list_view(pa.int8()),
        pa.large_list_view(pa.int8()),
        pa.month_day_nano_interval(),
        pa.run_end_encoded(pa.int32(), pa.utf8()),
        pa.dense_union([pa.field("a", pa.int8())]),
        pa.sparse_union([pa.field("a", pa.int8())]),
        pa.binary(-2),
        pa.decimal128(5, 128),
        pa.decimal128(5, -129),
        pa.uuid(),
        pa.json_(),
        Celsius(),
    ],
    ids=str,
)
def test_what_the_format_has_no_name_for_is_refused(arrow_type: pa.DataType) -> None:
    nested = pa.field("outer", pa.list_(pa.struct([pa.field("inner", arrow_type)])))
    with pytest.raises(InvalidSchema) as refused:
        schema_to_json(pa.schema([nested]))
    assert "column 'outer.item.inner'" in str(refused.value)
    assert str(arrow_type) in str(refused.value)


@pytest.mark.parametrize("metadata", [{b"k": b"\xff"}, {b"\xff": b"v"}])
def test_metadata_that_is_no_text_is_refused(metadata: dict[bytes, bytes]) -> None:
    with pytest.raises(InvalidSchema, match=r"metadata of column 'a' .* not UTF-8"):
        field_to_json(pa.field("a", pa.int8(), metadata=metadata))
    with pytest.raises(InvalidSchema, match=r"metadata of the top .* not UTF-8"):
        schema_to_json(pa.schema([pa.field("a", pa.int8())], metadata=metadata))


def test_a_null_column_that_is_not_nullable_is_refused() -> None:
    with pytest.raises(InvalidSchema, match="column 'a'"):
        field_from_json({"name": "a", "nullable": False, "type": {"type": "null"}})


@pytest.mark.parametrize(
    "written",
    [
        {"name": "\ud800", "nullable": True, "type": {"type": "int8"}},
        {"name": "a", "nullable": True, "type": {"type": "timestamp[us, tz=\ud800]"}},
        {"name": "a", "nullable": True, "type": {"type": "int8"}, "metadata": {"k": "\ud800"}},
    ],
)
def test_text_that_is_no_unicode_is_refused(written: dict[str, Any]) -> None:
    with pytest.raises(InvalidSchema):
        field_from_json(written)


def test_a_look_alike_of_a_type_name_is_refused() -> None:
    with pytest.raises(InvalidSchema):
        type_from_json({"type": "time\u017ftamp"})  # a long s, which is an s in lower case


def test_the_refusal_names_place_found_and_expected() -> None:
    inner = {"name": "b", "nullable": True, "type": {"type": "strng"}}
    outer = {"name": "a", "nullable": True, "type": {"type": "struct", "fields": [inner]}}
    with pytest.raises(InvalidSchema, match=r"column 'a\.b': expected .*utf8.*, found 'strng'"):
        schema_from_json({"fields": [outer]})
    with pytest.raises(InvalidSchema, match=r"column 'a': expected true or false.*found nothing"):
        field_from_json({"name": "a", "type": {"type": "int8"}})
    with pytest.raises(InvalidSchema, match=r"the top: expected a list of 1 field.*found nothing"):
        type_from_json({"type": "list"})


def nested_lists(depth: int) -> tuple[pa.DataType, dict[str, Any]]:
    arrow_type: pa.DataType = pa.int8()
    written: dict[str, Any] = {"type": "int8"}
    for _ in range(depth):
        arrow_type = pa.list_(arrow_type)
        item = {"name": "item", "nullable": True, "type": written}
        written = {"type": "list", "fields": [item]}
    return arrow_type, written


def test_deep_nesting_is_refused_and_not_a_recursion_error() -> None:
    arrow_type, written = nested_lists(64)
    assert type_from_json(written) == arrow_type
    assert type_to_json(arrow_type) == written
    for depth in (65, 2000):
        _, written = nested_lists(depth)
        with pytest.raises(InvalidSchema, match="64 levels"):
            type_from_json(written)
    arrow_type, _ = nested_lists(65)
    with pytest.raises(InvalidSchema, match="64 levels"):
        type_to_json(arrow_type)
