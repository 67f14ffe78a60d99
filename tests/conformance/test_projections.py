"""conformance/projections.json: what predicates say about partitions, for any implementation."""

import json
import struct
from functools import cache
from pathlib import Path
from typing import Any

import mmh3
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
import pytest
from datafusion import SessionConfig, SessionContext, udf

from conformance.values import array_of
from phalanx.model.predicates.binding import bind_predicate
from phalanx.model.predicates.rendering import to_datafusion
from phalanx.model.schema.arrow_json import type_from_json
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.spec import PartitionSpec
from phalanx.planning.pruning.prune import Pruning, prune

Json = dict[str, Any]
TABLE = json.loads((Path(__file__).parents[2] / "conformance" / "projections.json").read_text())
CASES = [
    pytest.param(group, case, id=f"{group['about']} | {case['where']}")
    for group in TABLE["groups"]
    for case in group["cases"]
]
with_group = pytest.mark.parametrize(("group", "case"), CASES)


@cache
def schema_of(text: str) -> Schema:
    return Schema.from_json(text)


@cache
def spec_of(text: str) -> PartitionSpec:
    return PartitionSpec.from_json(text)


def read(group: Json) -> tuple[Schema, dict[int, PartitionSpec]]:
    specs = [spec_of(json.dumps(spec)) for spec in group["specs"]]
    return schema_of(json.dumps(group["schema"])), {spec.id: spec for spec in specs}


def prune_case(group: Json, case: Json) -> Pruning:
    return _prune(json.dumps({**group, "rows": [], "cases": []}), case["where"])


@cache
def _prune(group: str, where: str) -> Pruning:
    schema, specs = read(json.loads(group))
    return prune(bind_predicate(where, schema), specs, schema)


def table_of(group: Json, case: Json) -> pa.Table:
    """The rows of the case, or else of the group."""
    schema, _ = read(group)
    rows = case.get("rows", group["rows"])
    columns = [
        column_of([row[place] for row in rows], field.type)
        for place, field in enumerate(schema.arrow)
    ]
    return pa.table(columns, schema=schema.arrow)


def column_of(written: list[Any], data_type: pa.DataType) -> pa.Array:
    if not pt.is_struct(data_type):
        return array_of(written, data_type)
    children = [
        column_of([None if row is None else row[child.name] for row in written], child.type)
        for child in data_type
    ]
    gone = pa.array([row is None for row in written])
    return pa.StructArray.from_arrays(children, fields=list(data_type), mask=gone)


# --- the texts -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("group", "case"), [p for p in CASES if "filters" in p.values[1]])
def test_filters_and_residuals_read_as_listed(group: Json, case: Json) -> None:
    specs = prune_case(group, case).specs
    assert [to_datafusion(spec.filter) for spec in specs] == case["filters"]
    assert [to_datafusion(spec.residual) for spec in specs] == case["residuals"]


@pytest.mark.parametrize(("group", "case"), [p for p in CASES if "manifest_filter" in p.values[1]])
def test_manifest_filters_read_as_listed(group: Json, case: Json) -> None:
    assert prune_case(group, case).manifest_filter == case["manifest_filter"]


@pytest.mark.parametrize("group", TABLE["groups"], ids=lambda group: group["about"])
def test_every_residual_has_its_reason(group: Json) -> None:
    for case in group["cases"]:
        for spec in prune_case(group, case).specs:
            for reason in spec.reasons:
                assert reason.exact == (reason.why == ""), (case["where"], reason)


def test_the_table_is_large_enough_to_mean_something() -> None:
    assert len(CASES) >= 60
    false = [p for p in CASES if "false" in p.values[1].get("filters", [])]
    assert len(false) >= 10


# --- the rows ------------------------------------------------------------------------------------


def hash_of(*values: Any) -> int | None:
    """murmur3_multi by another implementation; of one value it is murmur3."""
    parts = [
        value.encode() if isinstance(value, str) else struct.pack("<q", value)
        for value in values
        if value is not None
    ]
    return mmh3.hash(b"".join(parts), 0, signed=True) if parts else None


def compute_hashes(*columns: pa.Array) -> pa.Array:
    rows = zip(*(column.to_pylist() for column in columns), strict=True)
    return pa.array([hash_of(*row) for row in rows], pa.int32())


@cache
def plain_session() -> SessionContext:
    names_as_written = {"datafusion.sql_parser.enable_ident_normalization": "false"}
    session = SessionContext(SessionConfig(names_as_written))
    session.register_udf(udf(compute_hashes, [pa.int64()], pa.int32(), "immutable", "murmur3"))
    both = [pa.int64(), pa.string()]
    session.register_udf(udf(compute_hashes, both, pa.int32(), "immutable", "murmur3_multi"))
    return session


def holds(table: pa.Table, condition: str) -> pa.Array:
    """For which rows DataFusion alone finds the condition true."""
    if condition in ("true", "false"):
        return pa.array([condition == "true"] * table.num_rows)
    session = plain_session()
    session.register_record_batches("rows", [table.combine_chunks().to_batches()])
    found = session.sql(f"SELECT ({condition}) AS value FROM rows").to_arrow_table()
    session.deregister_table("rows")
    return pc.fill_null(found.column("value").combine_chunks().cast(pa.bool_()), False)


def find_matches(group: Json, case: Json) -> pa.Array:
    """For which rows the text holds."""
    return _matching(json.dumps({**group, "cases": []}), json.dumps(case))


@cache
def _matching(group: str, case: str) -> pa.Array:
    given = json.loads(case)
    return holds(table_of(json.loads(group), given), given.get("same_as", given["where"]))


@with_group
def test_the_kept_partitions_and_the_residual_give_just_the_right_rows(
    group: Json, case: Json
) -> None:
    schema, specs = read(group)
    table = table_of(group, case)
    expected = find_matches(group, case)
    for projection in prune_case(group, case).specs:
        spec = specs[projection.spec_id]
        values = spec.compute_partition_values(table, schema)
        partitions = values.rename_columns([field.column for field in spec.fields])
        kept = holds(partitions, to_datafusion(projection.filter))
        lost = pc.and_(expected, pc.invert(kept))
        assert not any(lost.to_pylist()), table.filter(lost).to_pylist()
        found = pc.and_(kept, holds(table, to_datafusion(projection.residual)))
        assert found.to_pylist() == expected.to_pylist(), projection


@pytest.mark.parametrize("group", TABLE["groups"], ids=lambda group: group["about"])
def test_the_rows_of_a_group_tell_its_cases_apart(group: Json) -> None:
    """A group whose predicates all or none of the rows satisfy would show nothing."""
    found = []
    for case in group["cases"]:
        if "rows" not in case:
            found.append(sum(find_matches(group, case).to_pylist()))
    assert any(0 < count < len(group["rows"]) for count in found)


# --- Appendix D, as printed ----------------------------------------------------------------------


@cache
def manifest() -> SessionContext:
    """A session with the table of Appendix C."""
    rows, columns = TABLE["manifest"]["rows"], TABLE["manifest"]["columns"]
    arrays = {
        column["name"]: array_of([row[place] for row in rows], type_from_json(column["type"]))
        for place, column in enumerate(columns)
    }
    session = SessionContext()
    session.register_record_batches("__manifest", [pa.table(arrays).to_batches()])
    return session


def answer(query: str) -> list[list[Any]]:
    rows = manifest().sql(f"{query} ORDER BY object_id").to_arrow_table()
    return [list(row.values()) for row in rows.to_pylist()]


RESULT = [[*row[:2], int(row[2])] for row in TABLE["manifest"]["result"]]


def test_the_query_of_appendix_d_finds_the_tables_of_appendix_d() -> None:
    assert answer(TABLE["manifest"]["query"]) == RESULT


def test_our_manifest_filter_finds_the_same_tables() -> None:
    appendix = TABLE["groups"][0]
    pruning = prune_case(appendix, {"where": TABLE["manifest"]["where"]})
    columns = "object_id, location, read_version"
    assert answer(f"SELECT {columns} FROM __manifest WHERE {pruning.manifest_filter}") == RESULT


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ("country = 'DE'", ["v1$k7", "v1$w1", "v2$e9f0g1h2i3j4k5l6$u1"]),
        (
            "event_date = '2025-12-11'",
            ["v1$w1", "v2$e9f0g1h2i3j4k5l6$m7", "v2$e9f0g1h2i3j4k5l6$u1"],
        ),
        ("event_date = '2024-12-11'", []),
        ("event_date > '2025-12-31'", []),
        (
            "country IN ('US', 'DE') AND event_date < '2025-12-11'",
            ["v1$k7", "v2$e9f0g1h2i3j4k5l6$m7", "v2$e9f0g1h2i3j4k5l6$u1"],
        ),
        ("country = 'FR'", ["v1$k7", "v1$w1"]),
        ("country IS NULL AND country = 'US'", []),
    ],
)
def test_other_queries_find_their_tables(where: str, found: list[str]) -> None:
    pruning = prune_case(TABLE["groups"][0], {"where": where})
    rows = answer(f"SELECT object_id FROM __manifest WHERE {pruning.manifest_filter}")
    assert len(rows) == len(found)
    for (object_id,), start in zip(rows, found, strict=True):
        assert object_id.startswith(start)
