"""Laws of single transforms and of the JSON they are stored as."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from phalanx.model.schema.schema import Schema
from phalanx.model.specs.evolution import build_next_spec, check_specs
from phalanx.model.specs.spec import PartitionSpec
from properties.strategies import rows, specs


@given(st.data())
def test_an_array_is_transformed_as_its_elements_are(data: st.DataObject) -> None:
    """(4) `apply` on an array equals `apply` on each element."""
    given_rows = data.draw(rows())
    spec = data.draw(specs(given_rows))
    table, schema = given_rows.table, given_rows.schema
    whole = spec.compute_partition_values(table, schema)
    assert whole.schema == pa.schema([(f.field_id, f.result_type) for f in spec.fields])
    singles = [
        spec.compute_partition_values(table.slice(row, 1), schema) for row in range(len(table))
    ]
    joined = pa.concat_tables([whole.slice(0, 0), *singles])
    assert [repr(list(c)) for c in whole.columns] == [repr(list(c)) for c in joined.columns]


@given(st.data())
def test_specs_round_trip_through_json(data: st.DataObject) -> None:
    """(3) a spec read back is the same spec, writes the same text, and still fits."""
    given_rows = data.draw(rows(max_rows=0))
    spec = data.draw(specs(given_rows))
    text = spec.to_json()
    again = PartitionSpec.from_json(text)
    assert again == spec
    assert again.to_json() == text
    again.check(given_rows.schema)


@given(st.data())
def test_schemas_round_trip_through_json(data: st.DataObject) -> None:
    """(3) a schema read back is the same schema."""
    schema = data.draw(rows(max_rows=0)).schema
    assert Schema.from_json(schema.to_json()) == schema


@given(st.data())
def test_a_field_id_keeps_its_meaning_over_any_evolution(data: st.DataObject) -> None:
    """Same meaning, same id; another meaning, another id."""
    given_rows = data.draw(rows(max_rows=0))
    evolved: dict[int, PartitionSpec] = {}
    for _ in range(data.draw(st.integers(1, 4))):
        wanted = data.draw(specs(given_rows))
        again = PartitionSpec.from_json(wanted.to_json())
        terms = [_term(field, given_rows.schema) for field in again.fields]
        spec = build_next_spec(terms, given_rows.schema, evolved)
        evolved[spec.id] = spec
    check_specs(evolved)
    assert sorted(evolved) == list(range(1, len(evolved) + 1))
    meanings: dict[object, str] = {}
    for spec in evolved.values():
        for field in spec.fields:
            assert meanings.setdefault(field.meaning, field.field_id) == field.field_id


def _term(field: object, schema: Schema) -> object:
    from phalanx.model.specs.partition_by import CustomExpression, PartitionTerm
    from phalanx.model.specs.spec import PartitionField

    assert isinstance(field, PartitionField)
    names = tuple(".".join(schema.path_of(source) or ()) for source in field.source_ids)
    if field.expression is not None:
        custom = CustomExpression(field.expression, field.result_type)
        return PartitionTerm(custom, names, field.field_id)
    return PartitionTerm(field.derivation, names)
