import copy
import json
import pickle
import re
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from phalanx.errors import InvalidArgument, InvalidSchema, SchemaMismatch
from phalanx.model.schema.schema import FIELD_ID, FORMER_NAMES, LAST_FIELD_ID, Schema

POINT = pa.struct([pa.field("x", pa.int32()), pa.field("y", pa.list_(pa.utf8()))])
EVENTS = Schema.of(
    pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("country", pa.utf8()),
            pa.field("at", pa.struct([pa.field("lat", pa.float32()), pa.field("City", pa.utf8())])),
            pa.field("tags", pa.list_(pa.utf8())),
            pa.field("price", pa.decimal128(10, 2)),
        ],
        metadata={"owner": "sales"},
    )
)


def with_id(name: str, field_id: object, arrow_type: pa.DataType | None = None) -> pa.Field:
    return pa.field(name, arrow_type or pa.int8(), metadata={FIELD_ID: str(field_id)})


# --- ids ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arrow_type",
    [
        pa.int64(),
        POINT,
        pa.struct([]),
        pa.struct([pa.field("deep", POINT), pa.field("after", pa.int8())]),
        pa.list_(pa.int8()),
        pa.list_(POINT),
        pa.list_(pa.list_(pa.list_(POINT))),
        pa.large_list(pa.dictionary(pa.int8(), pa.utf8())),
        pa.list_(pa.float32(), 4),
        pa.list_(pa.list_(pa.int8(), 2), 2),
        pa.list_(pa.dictionary(pa.int8(), pa.utf8()), 2),
        pa.list_(POINT, 3),
        pa.list_(pa.list_(pa.float32(), 4)),
        pa.map_(pa.utf8(), pa.int32()),
        pa.map_(pa.utf8(), POINT),
        pa.list_(pa.map_(pa.utf8(), pa.map_(pa.int8(), pa.list_(POINT)))),
        pa.dictionary(pa.int16(), pa.utf8()),
    ],
    ids=str,
)
def test_ids_are_those_that_lance_gives(arrow_type: pa.DataType, tmp_path: Path) -> None:
    columns = [pa.field("a", pa.int8()), pa.field("b", arrow_type), pa.field("c", pa.int8())]
    table = pa.schema(columns).empty_table()
    dataset = lance.write_dataset(table, tmp_path / "t", data_storage_version="2.2")
    by_lance = re.findall(r'name: "([^"]*)", id: (\d+)', str(dataset.lance_schema))
    schema = Schema.of(table.schema)
    ours = [(schema.field(field_id).name, str(field_id)) for field_id in schema.ids]
    assert ours == by_lance
    assert schema.last_field_id == int(by_lance[-1][1])


def test_every_field_carries_its_id() -> None:
    schema = Schema.of(pa.schema([pa.field("m", pa.map_(pa.utf8(), POINT)), pa.field("p", POINT)]))
    m = schema.arrow.field("m")
    assert m.metadata == {b"lance:field_id": b"0"}
    assert m.type.key_field.metadata == {b"lance:field_id": b"2"}
    assert m.type.item_field.metadata == {b"lance:field_id": b"3"}
    assert schema.arrow.field("p").type.field("y").type.value_field.metadata[b"lance:field_id"]
    for field_id in schema.ids:
        assert schema.field(field_id).metadata == {FIELD_ID.encode(): str(field_id).encode()}


def test_given_ids_are_kept_and_nested_ones_completed() -> None:
    schema = Schema.of(pa.schema([with_id("a", 7, POINT), with_id("b", 3), with_id("c", 12)]))
    assert schema.ids == (7, 13, 14, 15, 3, 12)
    assert schema.last_field_id == 15
    assert Schema.of(schema.arrow) == schema


def test_the_entries_of_a_map_come_just_before_its_key() -> None:
    key = pa.field("key", pa.utf8(), nullable=False, metadata={FIELD_ID: "5"})
    schema = Schema.of(pa.schema([with_id("m", 1, pa.map_(key, pa.field("value", pa.int8())))]))
    assert schema.ids == (1, 4, 5, 6)
    with pytest.raises(
        InvalidSchema, match=r"'m' and 'm\.entries' have the same lance:field_id, 4"
    ):
        Schema.of(pa.schema([with_id("m", 4, pa.map_(key, pa.field("value", pa.int8())))]))


def test_the_json_of_a_map_has_the_id_of_its_entries() -> None:
    schema = Schema.of(pa.schema([pa.field("m", pa.map_(pa.utf8(), pa.int8()))]))
    written = json.loads(schema.to_json())
    entries = written["fields"][0]["type"]["fields"][0]
    assert entries["metadata"] == {FIELD_ID: "1"}
    entries["metadata"] = {FIELD_ID: "9"}
    with pytest.raises(InvalidSchema, match=r"entries of a map have lance:field_id '9'.*'1'"):
        Schema.from_json(json.dumps(written))


def test_ids_that_lance_has_no_use_for_are_removed() -> None:
    stale = pa.field("item", pa.float32(), metadata={FIELD_ID: "0", "unit": "m"})
    schema = Schema.of(pa.schema([with_id("v", 0, pa.list_(stale, 2)), with_id("a", 1)]))
    assert schema.ids == (0, 1)
    assert schema.type_of(0).value_field.metadata == {b"unit": b"m"}


@pytest.mark.parametrize("bad", ["", "x", "-1", "1.5", " 1", "1_0", "²", str(2**31), "9" * 50])
def test_an_id_must_be_a_number(bad: str) -> None:
    with pytest.raises(InvalidSchema, match=r"'a' has lance:field_id .*expected an integer from 0"):
        Schema.of(pa.schema([with_id("a", bad)]))
    with pytest.raises(InvalidSchema, match=r"phalanx:last_field_id .*expected an integer from 0"):
        Schema.of(pa.schema([with_id("a", 1)], metadata={LAST_FIELD_ID: bad}))


def test_ids_on_some_columns_are_refused() -> None:
    plain = [pa.field("b", pa.int8()), pa.field("c", pa.int8())]
    with pytest.raises(InvalidSchema, match=r"columns 'b', 'c' have no lance:field_id"):
        Schema.of(pa.schema([with_id("a", 0), *plain]))


def test_repeated_ids_are_refused() -> None:
    with pytest.raises(InvalidSchema, match=r"'a' and 'b' have the same lance:field_id, 4"):
        Schema.of(pa.schema([with_id("a", 4), with_id("b", 4)]))
    nested = pa.struct([with_id("x", 4)])
    with pytest.raises(InvalidSchema, match=r"'a' and 'b\.x' have the same lance:field_id, 4"):
        Schema.of(pa.schema([with_id("a", 4), with_id("b", 5, nested)]))


def test_a_schema_cannot_be_made_without_ids() -> None:
    with pytest.raises(InvalidSchema, match=r"Column 'a' has no id\. Use Schema\.of"):
        Schema(pa.schema([pa.field("a", pa.int8())]), 0)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ([], "no columns"),
        ([pa.field("", pa.int8())], "is named ''"),
        ([pa.field("a.b", pa.int8())], r"is named 'a\.b'"),
        ([pa.field("a", pa.int8()), pa.field("a", pa.utf8())], "'a' occurs 2 times"),
        ([pa.field("s", pa.struct([pa.field("a.b", pa.int8())]))], r"is named 'a\.b'"),
        ([pa.field("s", pa.struct([pa.field("", pa.int8())]))], "is named ''"),
        (
            [pa.field("s", pa.struct([pa.field("a", pa.int8()), pa.field("a", pa.int8())]))],
            r"'s\.a' occurs 2 times",
        ),
        ([pa.field("a", pa.string_view())], r"column 'a' \(string_view\)"),
    ],
)
def test_what_cannot_be_stored_is_refused(columns: list[pa.Field], message: str) -> None:
    with pytest.raises(InvalidSchema, match=message):
        Schema.of(pa.schema(columns))


def test_names_that_no_path_leads_to_are_free() -> None:
    inside = pa.struct([pa.field("a.b", pa.int8()), pa.field("", pa.int8())])
    columns = [pa.field("a", pa.int8()), pa.field("A", pa.list_(pa.field("", inside)))]
    assert Schema.of(pa.schema(columns)).ids == (0, 1, 2, 3, 4)


# --- json --------------------------------------------------------------------------------------


def test_json_is_compact_and_ordered() -> None:
    assert Schema.of(pa.schema([pa.field("naïve", pa.int8())])).to_json() == (
        '{"fields":[{"name":"naïve","nullable":true,"type":{"type":"int8"},'
        '"metadata":{"lance:field_id":"0"}}]}'
    )


def test_the_last_id_is_written_only_when_its_field_is_gone() -> None:
    assert LAST_FIELD_ID not in EVENTS.to_json()
    dropped = EVENTS.drop("price")
    assert json.loads(dropped.to_json())["metadata"] == {
        "owner": "sales",
        LAST_FIELD_ID: "7",
        FORMER_NAMES: '{"7":["price"]}',
    }
    read = Schema.from_json(dropped.to_json())
    assert read == dropped
    assert read.arrow.metadata == {b"owner": b"sales"}
    assert read.last_field_id == 7
    assert LAST_FIELD_ID not in read.add(pa.field("new", pa.int8())).to_json()


def test_a_last_id_below_the_ids_in_use_does_not_count() -> None:
    schema = Schema.of(pa.schema([with_id("a", 9)], metadata={LAST_FIELD_ID: "2"}))
    assert schema.last_field_id == 9


@pytest.mark.parametrize("text", ["", "{", "[", '{"fields": [}'])
@pytest.mark.parametrize("times", [1, 100_000])
def test_text_that_is_no_json_is_refused(text: str, times: int) -> None:
    text *= times
    with pytest.raises(InvalidSchema, match="expected JSON"):
        Schema.from_json(text)


def test_copies_are_equal() -> None:
    keys_sorted = pa.map_(pa.utf8(), pa.int8(), keys_sorted=True)
    schema = EVENTS.add(pa.field("m", keys_sorted)).drop("id")
    for copied in (pickle.loads(pickle.dumps(schema)), copy.deepcopy(schema)):
        assert copied == schema
        assert hash(copied) == hash(schema)
        assert copied.type_of(copied.id_of("m")).keys_sorted


def test_equality_minds_ids_metadata_and_the_last_id() -> None:
    assert Schema.of(pa.schema([with_id("a", 0)])) != Schema.of(pa.schema([with_id("a", 1)]))
    assert Schema.of(EVENTS.arrow.with_metadata({"owner": "hr"})) != EVENTS
    assert EVENTS.add(pa.field("new", pa.int8())).drop("new") != EVENTS
    assert EVENTS.arrow != EVENTS
    assert Schema.of(EVENTS.arrow) == EVENTS


# --- look-ups ----------------------------------------------------------------------------------


def test_look_ups() -> None:
    assert EVENTS.names == ("id", "country", "at", "tags", "price")
    assert EVENTS.ids == tuple(range(8))
    assert EVENTS.id_of("country") == 1
    assert EVENTS.id_of("at.City") == EVENTS.id_of(("at", "City")) == 4
    assert EVENTS.path_of(4) == ("at", "City")
    assert EVENTS.field(1).name == "country"
    assert EVENTS.type_of(7) == pa.decimal128(10, 2)


def test_names_match_in_another_case_if_only_one_does() -> None:
    assert EVENTS.resolve("AT.city") == ("at", "City")
    both = Schema.of(pa.schema([pa.field("Id", pa.int8()), pa.field("iD", pa.int8())]))
    assert both.id_of("iD") == 1
    with pytest.raises(InvalidSchema, match=r"'id' is ambiguous: write 'Id' or 'iD'"):
        both.id_of("id")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("contry", r"No column 'contry'\. Did you mean 'country'\?"),
        ("CONTRY", r"No column 'CONTRY'\. Did you mean 'country'\?"),
        ("at.cty", r"No column 'at\.cty'\. Did you mean 'at\.City'\?"),
        ("zzz", r"No column 'zzz'\. The columns are id, country, at, tags, price\."),
        ("", "No column ''"),
        ((), "No column ''"),
        ("tags.item", r"No column 'tags\.item'"),
    ],
)
def test_an_unknown_column_gets_a_hint(path: str | tuple[str, ...], message: str) -> None:
    with pytest.raises(InvalidSchema, match=message):
        EVENTS.id_of(path)


def test_items_of_lists_have_an_id_but_no_path() -> None:
    assert EVENTS.field(6).name == "item"
    assert EVENTS.path_of(6) is None


def test_a_dropped_id_has_neither_field_nor_path() -> None:
    dropped = EVENTS.drop("price")
    assert dropped.path_of(7) is None
    with pytest.raises(InvalidSchema, match=r"No field has the id 7: .*dropped.*the last id is 7"):
        dropped.field(7)


# --- changes -----------------------------------------------------------------------------------


def test_add_gives_fresh_ids() -> None:
    key = pa.field("key", pa.utf8(), nullable=False, metadata={FIELD_ID: "nonsense"})
    added = pa.map_(key, pa.field("value", POINT))
    schema = EVENTS.add(with_id("m", 0, added))
    assert schema.ids == tuple(range(15))
    assert schema.id_of("m") == 8
    assert schema.last_field_id == 14
    assert EVENTS.last_field_id == 7, "a change leaves the original alone"


def test_add_refuses_what_exists_or_has_no_value_for_old_rows() -> None:
    with pytest.raises(SchemaMismatch, match="'country': it exists"):
        EVENTS.add(pa.field("country", pa.int8()))
    with pytest.raises(SchemaMismatch, match=r"'n' \(int8 not null\): expected a nullable"):
        EVENTS.add(pa.field("n", pa.int8(), nullable=False))
    with pytest.raises(InvalidSchema, match=r"is named 'a\.b'"):
        EVENTS.add(pa.field("a.b", pa.int8()))
    with pytest.raises(InvalidSchema, match="string_view"):
        EVENTS.add(pa.field("view", pa.string_view()))


def test_ids_are_never_given_again() -> None:
    schema = EVENTS.drop("price")
    for _ in range(3):
        schema = Schema.from_json(schema.to_json())
        last = schema.last_field_id
        schema = schema.add(pa.field("new", pa.list_(pa.int8())))
        assert schema.id_of("new") == last + 1
        schema = schema.drop("new")
        assert schema.last_field_id == last + 2


def test_drop() -> None:
    assert EVENTS.drop("at").ids == (0, 1, 5, 6, 7)
    assert EVENTS.drop("AT.city").type_of(2).num_fields == 1
    assert EVENTS.drop("at.City").arrow.metadata == {b"owner": b"sales"}
    with pytest.raises(InvalidSchema, match="Did you mean 'price'"):
        EVENTS.drop("prices")


def test_the_last_column_stays() -> None:
    with pytest.raises(SchemaMismatch, match="'a': it is the last one there"):
        Schema.of(pa.schema([pa.field("a", POINT)])).drop("a")
    with pytest.raises(SchemaMismatch, match=r"'at\.lat': it is the last one there"):
        EVENTS.drop("at.City").drop("at.lat")


def test_rename_keeps_the_id() -> None:
    schema = EVENTS.rename("country", "nation").rename("at.City", "town").rename("id", "ID")
    assert schema.names == ("ID", "nation", "at", "tags", "price")
    assert (schema.id_of("nation"), schema.id_of("at.town")) == (1, 4)
    assert schema.ids == EVENTS.ids
    assert schema.rename("nation", "nation") == schema


def test_rename_refuses_a_name_in_use_or_impossible() -> None:
    with pytest.raises(SchemaMismatch, match="'country' to 'price': that name exists"):
        EVENTS.rename("country", "price")
    with pytest.raises(SchemaMismatch, match=r"'at\.City' to 'lat': that name exists"):
        EVENTS.rename("at.City", "lat")
    with pytest.raises(InvalidSchema, match=r"is named 'at\.town'"):
        EVENTS.rename("at.City", "at.town")
    with pytest.raises(InvalidSchema, match="is named ''"):
        EVENTS.rename("id", "")
    with pytest.raises(InvalidArgument, match="'id' to None: expected a name as text"):
        EVENTS.rename("id", None)  # type: ignore[arg-type]
    with pytest.raises(InvalidSchema, match="No column None: expected a name as text"):
        EVENTS.rename(None, "x")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [pa.int8(), pa.struct([("a", pa.int8())])])
def test_ids_come_to_an_end(kind: pa.DataType) -> None:
    full = Schema(EVENTS.arrow, 2**31 - 1)
    with pytest.raises(
        InvalidSchema, match=r"an id to column 'new': Lance's ids end at 2147483647"
    ):
        full.add(pa.field("new", kind))


PROMOTIONS = [
    (pa.int8(), pa.int16()),
    (pa.int8(), pa.int64()),
    (pa.int32(), pa.int64()),
    (pa.uint8(), pa.uint32()),
    (pa.uint32(), pa.uint64()),
    (pa.float16(), pa.float32()),
    (pa.float16(), pa.float64()),
    (pa.float32(), pa.float64()),
    (pa.decimal128(10, 2), pa.decimal128(12, 2)),
    (pa.decimal128(38, 2), pa.decimal256(38, 2)),
    (pa.decimal128(38, 2), pa.decimal256(76, 2)),
    (pa.decimal32(9, 2), pa.decimal128(20, 2)),
]


@pytest.mark.parametrize(("old", "new"), PROMOTIONS, ids=str)
def test_promote(old: pa.DataType, new: pa.DataType) -> None:
    inner = pa.struct([pa.field("x", old, nullable=False, metadata={"unit": "m"})])
    schema = Schema.of(pa.schema([pa.field("s", inner), pa.field("a", old)]))
    promoted = schema.promote("a", new).promote("s.x", new)
    assert promoted.type_of(schema.id_of("a")) == new
    x = promoted.field(schema.id_of("s.x"))
    assert (x.type, x.nullable, x.metadata[b"unit"]) == (new, False, b"m")
    assert promoted.ids == schema.ids
    with pytest.raises(SchemaMismatch):
        promoted.promote("a", old)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (pa.int64(), pa.int64()),
        (pa.uint8(), pa.int16()),
        (pa.int8(), pa.uint16()),
        (pa.int32(), pa.float64()),
        (pa.int32(), pa.decimal128(20, 0)),
        (pa.decimal128(10, 2), pa.decimal128(12, 3)),
        (pa.decimal256(10, 2), pa.decimal128(38, 2)),
        (pa.decimal256(40, 2), pa.decimal128(12, 2)),
        (pa.decimal128(10, 2), pa.decimal256(9, 2)),
        (pa.utf8(), pa.large_utf8()),
        (pa.date32(), pa.date64()),
        (pa.timestamp("ms"), pa.timestamp("us")),
        (pa.bool_(), pa.int8()),
        (pa.list_(pa.int8()), pa.list_(pa.int16())),
    ],
    ids=str,
)
def test_nothing_else_is_a_promotion(old: pa.DataType, new: pa.DataType) -> None:
    schema = Schema.of(pa.schema([pa.field("a", old)]))
    message = re.escape(f"'a' from {schema.type_of(0)} to {new}: allowed are integers")
    with pytest.raises(SchemaMismatch, match=message):
        schema.promote("a", new)


def test_the_names_that_fields_had_are_kept() -> None:
    schema = Schema.of(pa.schema([("a", pa.int8()), ("s", pa.struct([("x", pa.int8())]))]))
    assert schema.former_names == frozenset()
    assert FORMER_NAMES not in schema.to_json()
    changed = schema.rename("a", "b").rename("s.x", "y").add(pa.field("a", pa.int8())).drop("s")
    assert changed.former_names == {(0, "a"), (2, "x"), (1, "s"), (2, "y")}
    again = Schema.from_json(changed.to_json())
    assert (again.former_names, again) == (changed.former_names, changed)
    assert FORMER_NAMES.encode() not in (again.arrow.metadata or {})


@pytest.mark.parametrize("text", ["", "[1]", '{"a": ["x"]}', '{"1": 2}', "{"])
def test_former_names_that_cannot_be_read(text: str) -> None:
    with pytest.raises(InvalidSchema, match=FORMER_NAMES):
        Schema.of(pa.schema([("a", pa.int8())], metadata={FORMER_NAMES: text}))
