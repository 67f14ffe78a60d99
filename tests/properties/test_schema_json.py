import json

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from lance_namespace_urllib3_client.models import JsonArrowSchema

from phalanx.errors import InvalidSchema, SchemaMismatch
from phalanx.model.schema.arrow_json import (
    schema_from_json,
    schema_to_json,
    type_from_json,
    type_to_json,
)
from phalanx.model.schema.schema import FIELD_ID, Schema
from properties.strategies_schema import schemas, types

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
)
TYPE_NAMES = st.sampled_from(
    ["list", "struct", "map", "dictionary", "fixed_size_list", "decimal128", "utf8", "timestamp"]
) | st.text(max_size=8)


def almost_types() -> st.SearchStrategy[object]:
    """JSON that resembles a type: right keys, anything in them."""

    def around(inner: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
        field = st.fixed_dictionaries(
            {"name": st.text(max_size=3), "nullable": st.booleans(), "type": inner},
            optional={"metadata": JSON},
        )
        return st.fixed_dictionaries(
            {"type": TYPE_NAMES},
            optional={
                "fields": st.lists(field | JSON, max_size=3),
                "length": st.integers() | JSON,
                "unit": JSON,
                "timezone": JSON,
            },
        )

    return st.recursive(JSON, around, max_leaves=5)


def format_schema(schema: pa.Schema) -> str:
    """Everything in a schema: equality of Arrow types ignores some names."""
    text: str = schema.to_string(truncate_metadata=False)
    return text


@given(types())
def test_types_survive(arrow_type: pa.DataType) -> None:
    read = type_from_json(json.loads(json.dumps(type_to_json(arrow_type))))
    assert read.equals(arrow_type, check_metadata=True)
    assert str(read) == str(arrow_type)


@given(schemas())
def test_schemas_survive_other_clients(schema: pa.Schema) -> None:
    model = JsonArrowSchema.from_dict(schema_to_json(schema))
    assert model is not None
    read = schema_from_json(json.loads(model.to_json()))
    assert read.equals(schema, check_metadata=True)
    assert format_schema(read) == format_schema(schema)


@given(almost_types() | JSON)
def test_junk_is_read_or_refused(junk: object) -> None:
    try:
        read = type_from_json(junk)
    except InvalidSchema:
        return
    assert type_from_json(type_to_json(read)) == read


@given(schemas())
def test_ids_are_unique_and_dense_and_survive(arrow: pa.Schema) -> None:
    schema = Schema.of(arrow)
    assert schema.ids == tuple(range(schema.last_field_id + 1))
    for field_id in schema.ids:
        assert schema.field(field_id).metadata[FIELD_ID.encode()] == str(field_id).encode()
        path = schema.path_of(field_id)
        assert path is None or schema.id_of(path) == field_id
    assert schema.arrow.equals(arrow), "only metadata is new"
    for numbered, field in zip(schema.arrow, arrow, strict=True):
        assert numbered.metadata.items() >= (field.metadata or {}).items()
    read = Schema.from_json(schema.to_json())
    assert read == schema
    assert read.ids == schema.ids
    assert read.to_json() == schema.to_json()
    assert Schema.of(schema.arrow) == schema


POINT = pa.struct([pa.field("x", pa.int8()), pa.field("y", pa.list_(pa.int8()))])
SHAPES = [pa.int8(), POINT, pa.list_(POINT), pa.map_(pa.utf8(), POINT), pa.list_(pa.int8(), 2)]
FEW_NAMES = st.sampled_from(["a", "b", "c", "x", "y"])
COLUMNS = st.builds(pa.field, FEW_NAMES, st.sampled_from(SHAPES))


@given(st.lists(COLUMNS, min_size=1, unique_by=lambda column: column.name), st.data())
def test_ids_are_never_given_again(columns: list[pa.Field], data: st.DataObject) -> None:
    schema = Schema.of(pa.schema(columns))
    ever = set(schema.ids)
    for change in data.draw(st.lists(st.sampled_from(["add", "drop", "rename"]), max_size=12)):
        before = schema
        paths = [path for path in map(schema.path_of, schema.ids) if path is not None]
        try:
            match change:
                case "add":
                    schema = schema.add(data.draw(COLUMNS))
                    new = set(schema.ids) - set(before.ids)
                    assert new.isdisjoint(ever)
                    assert min(new) == before.last_field_id + 1
                case "drop":
                    schema = schema.drop(data.draw(st.sampled_from(paths)))
                    assert set(schema.ids) < set(before.ids)
                case "rename":
                    schema = schema.rename(data.draw(st.sampled_from(paths)), data.draw(FEW_NAMES))
                    assert schema.ids == before.ids
        except SchemaMismatch:
            continue
        ever |= set(schema.ids)
        assert len(set(schema.ids)) == len(schema.ids)
        assert schema.last_field_id == max(ever)
        assert Schema.from_json(schema.to_json()) == schema
