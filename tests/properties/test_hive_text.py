"""Paths of the Hive-style layout: every value comes back from its text, and none as another."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from phalanx.errors import InvalidSpec, PhalanxError
from phalanx.model.schema.arrow_ipc_json import schema_from_any_json, schema_to_ipc_json
from phalanx.model.specs.hive_paths import (
    NULL_NAME,
    TABLE_SUFFIX,
    check_path_type,
    escape,
    format_folder_name,
    format_path_value,
    parse_folder_name,
    parse_path_values,
    unescape,
)
from phalanx.model.specs.spec import PartitionField
from phalanx.model.transforms.transform import IDENTITY
from phalanx.model.transforms.truncate import Truncate
from properties.strategies import KINDS, Kind
from properties.strategies_schema import schemas

TEXT = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    st.text("a/=%$.\\_\x00\x1f\x7f:#?2Fé😀", max_size=8),
    st.sampled_from(["", NULL_NAME, "a.lance", ".lance", "%2F", "%zz", "%", "..", ".", "_x"]),
)


@given(TEXT)
def test_escaping_is_exact(text: str) -> None:
    assert unescape(escape(text)) == text
    assert not set('/=$"\\') & set(escape(text))


@given(TEXT.filter(bool), TEXT | st.none())
@example("k", NULL_NAME)
@example("k", "")
@example("k", None)
@example("k", "a.lance")
def test_folders_are_read_back(key: str, text: str | None) -> None:
    name = format_folder_name(key, text)
    assert parse_folder_name(name) == (key, text)
    assert "/" not in name
    # The text never looks like a table name, and means the same value as one.
    assert not name.endswith(TABLE_SUFFIX)
    assert parse_folder_name(f"{name}{TABLE_SUFFIX}".removesuffix(TABLE_SUFFIX)) == (key, text)


@given(TEXT | st.none(), TEXT | st.none())
def test_no_two_values_share_a_folder(one: str | None, other: str | None) -> None:
    assert (format_folder_name("k", one) == format_folder_name("k", other)) == (one == other)


def test_names_of_hive() -> None:
    assert format_folder_name("ts", "2025-12-10 10:00:00") == "ts=2025-12-10 10%3A00%3A00"
    assert format_folder_name("k", None) == "k=__HIVE_DEFAULT_PARTITION__"
    assert parse_folder_name("_SUCCESS") is None


def test_a_name_that_no_file_system_takes() -> None:
    with pytest.raises(PhalanxError, match="at most 255 bytes"):
        format_folder_name("k", "é" * 130)


def is_kept_as_text(kind: Kind) -> bool:
    try:
        check_path_type(kind.type)
    except InvalidSpec:
        return False
    return True


@given(st.data())
def test_values_come_back_from_their_texts(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from([kind for kind in KINDS if is_kept_as_text(kind)]))
    field = PartitionField("f", (0,), IDENTITY, kind.type)
    values = data.draw(st.lists(kind.values | st.none(), max_size=8))
    array = pa.array([pa.scalar(None, kind.type) if v is None else v for v in values], kind.type)
    texts = [format_path_value(field, value) for value in array]
    assert parse_path_values(field, texts, texts).equals(array)
    assert all((text is None) != value.is_valid for text, value in zip(texts, array, strict=True))


@given(st.data())
def test_truncated_values_come_back(data: st.DataObject) -> None:
    kinds = [k for k in KINDS if pa.types.is_integer(k.type) or pa.types.is_string(k.type)]
    kind = data.draw(st.sampled_from(kinds))
    array = Truncate(3).apply(pa.array(data.draw(st.lists(kind.values, max_size=5)), kind.type))
    field = PartitionField("f", (0,), Truncate(3), kind.type)
    texts = [format_path_value(field, value) for value in array]
    assert parse_path_values(field, texts, texts).equals(array)


def test_a_wrong_text_is_reported_with_its_path() -> None:
    field = PartitionField("d", (0,), IDENTITY, pa.date32())
    with pytest.raises(PhalanxError, match=r"root/d=x: d is 'x', expected date32"):
        parse_path_values(field, ["2025-01-01", "x"], ["root/d=2025-01-01", "root/d=x"])


@settings(max_examples=settings().max_examples // 4)
@given(schemas())
def test_schemas_come_back_from_their_json(schema: pa.Schema) -> None:
    kinds = str([field.type for field in schema])
    # Arrow names the parts of a map itself, and a dictionary inside one has no field of its own.
    assume("map<" not in kinds and "dictionary<" not in kinds)
    written = json.loads(json.dumps(schema_to_ipc_json(schema)))
    assert schema_from_any_json(written).equals(schema, check_metadata=True)
