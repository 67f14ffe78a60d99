"""The namespace of the format's Appendices A–E, made through the public API."""

from __future__ import annotations

import datetime as dt
import json
import re
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from datafusion import SessionContext
from lance_namespace import DescribeNamespaceRequest

import phalanx

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("event_date", pa.date32()),
        pa.field("country", pa.string()),
    ]
)
DECEMBER_10, DECEMBER_11 = dt.date(2025, 12, 10), dt.date(2025, 12, 11)
UNDER_V1 = [(1, DECEMBER_10, "US"), (2, DECEMBER_10, "DE"), (3, DECEMBER_11, "US")]
UNDER_V2 = [(4, DECEMBER_10, "US"), (5, dt.date(2025, 1, 1), "US")]

SPEC_V1 = (
    '{"id":1,"fields":[{"field_id":"event_date","source_ids":[1],'
    '"transform":{"type":"identity"},"result_type":{"type":"date32"}}]}'
)
SPEC_V2 = (
    '{"id":2,"fields":[{"field_id":"event_year","source_ids":[1],'
    '"transform":{"type":"year"},"result_type":{"type":"int32"}},'
    '{"field_id":"country","source_ids":[2],'
    '"transform":{"type":"identity"},"result_type":{"type":"utf8"}}]}'
)
SCHEMA_JSON = (
    '{"fields":[{"name":"id","nullable":false,"type":{"type":"int64"},'
    '"metadata":{"lance:field_id":"0"}},'
    '{"name":"event_date","nullable":true,"type":{"type":"date32"},'
    '"metadata":{"lance:field_id":"1"}},'
    '{"name":"country","nullable":true,"type":{"type":"utf8"},'
    '"metadata":{"lance:field_id":"2"}}]}'
)
PRINTED_QUERY = """
SELECT object_id, location, read_version
FROM __manifest
WHERE object_type = 'table'
  AND (
    (object_id LIKE 'v1$%'
      AND partition_field_event_date = DATE '2025-12-10')
    OR
    (object_id LIKE 'v2$%'
      AND partition_field_event_year = date_part('year', DATE '2025-12-10')
      AND partition_field_country = 'US')
  )
"""
USER_WHERE = "event_date = '2025-12-10' AND country = 'US'"
PARTITION = "[a-z0-9]{16}"


def rows(records: list[tuple[int, dt.date, str]]) -> pa.Table:
    return pa.Table.from_pylist(
        [dict(zip(SCHEMA.names, record, strict=True)) for record in records], schema=SCHEMA
    )


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> phalanx.Table:
    root = tmp_path_factory.mktemp("my") / "dir1"
    made = phalanx.create(root, SCHEMA, ["event_date"])
    made.append(rows(UNDER_V1))
    made.evolve([phalanx.year("event_date", field_id="event_year"), "country"])
    made.append(rows(UNDER_V2))
    return made


@pytest.fixture(scope="module")
def manifest(table: phalanx.Table) -> lance.LanceDataset:
    return lance.dataset(f"{table.uri}/__manifest")


def objects(manifest: lance.LanceDataset) -> list[dict[str, Any]]:
    return sorted(manifest.to_table().to_pylist(), key=lambda row: row["object_id"])


def by_value(manifest: lance.LanceDataset, **values: Any) -> str:
    """The id of the namespace whose last set partition value this is."""
    [found] = [
        row["object_id"]
        for row in objects(manifest)
        if row["object_type"] == "namespace"
        and {
            name.removeprefix("partition_field_"): value
            for name, value in row.items()
            if name.startswith("partition_field_") and value is not None
        }
        == values
    ]
    return found


# ── Appendix A ───────────────────────────────────────────────────────────────────────────────


def test_a_metadata(manifest: lance.LanceDataset) -> None:
    assert manifest.metadata["partition_spec_v1"] == SPEC_V1
    assert manifest.metadata["partition_spec_v2"] == SPEC_V2
    assert manifest.metadata["schema"] == SCHEMA_JSON
    of_the_format = {"partition_spec_v1", "partition_spec_v2", "schema"}
    others = set(manifest.metadata) - of_the_format
    assert all(key.startswith(("phalanx.", "lance.")) for key in others)


# ── Appendix B ───────────────────────────────────────────────────────────────────────────────


def test_b_layout(table: phalanx.Table, manifest: lance.LanceDataset) -> None:
    entries = sorted(path.name for path in Path(table.uri).iterdir())
    leaves = [name for name in entries if name != "__manifest"]
    v1 = [name for name in leaves if re.fullmatch(rf"[0-9a-f]{{8}}_v1\${PARTITION}\$dataset", name)]
    v2 = [
        name
        for name in leaves
        if re.fullmatch(rf"[0-9a-f]{{8}}_v2\${PARTITION}\${PARTITION}\$dataset", name)
    ]
    assert "__manifest" in entries
    assert (len(v1), len(v2), len(leaves)) == (2, 1, 3)
    for part in ("data", "_versions"):
        assert (Path(table.uri) / "__manifest" / part).is_dir()
    located = {row["object_id"]: row["location"] for row in objects(manifest) if row["location"]}
    assert sorted(located.values()) == sorted(leaves)
    assert all(location.partition("_")[2] == id for id, location in located.items())


# ── Appendix C ───────────────────────────────────────────────────────────────────────────────


def test_c_manifest_schema(manifest: lance.LanceDataset) -> None:
    expected = pa.schema(
        [
            pa.field("object_id", pa.string(), nullable=False),
            pa.field("object_type", pa.string(), nullable=False),
            pa.field("location", pa.string()),
            pa.field("metadata", pa.string()),
            pa.field("base_objects", pa.list_(pa.field("object_id", pa.string()))),
            pa.field("read_version", pa.uint64()),
            pa.field("partition_field_event_date", pa.date32()),
            pa.field("partition_field_event_year", pa.int32()),
            pa.field("partition_field_country", pa.string()),
        ]
    )
    assert manifest.schema.equals(expected)
    assert manifest.schema.field("object_id").metadata == {
        b"lance-schema:unenforced-primary-key:position": b"0"
    }
    flags = {key: text for key, text in manifest.metadata.items() if "feature_flags" in key}
    assert flags == {"lance.namespace.manifest.writer_feature_flags": str(1 << 62)}


def test_c_manifest_rows(manifest: lance.LanceDataset) -> None:
    """As printed, without the `table_version` rows, which only strong mode has."""
    first = by_value(manifest, event_date=DECEMBER_10)
    second = by_value(manifest, event_date=DECEMBER_11)
    year = by_value(manifest, event_year=2025)
    country = by_value(manifest, event_year=2025, country="US")
    assert re.fullmatch(rf"v1\${PARTITION}", first)
    assert re.fullmatch(rf"v2\${PARTITION}", year)
    assert re.fullmatch(rf"{re.escape(year)}\${PARTITION}", country)
    found = {
        (
            row["object_id"],
            row["object_type"],
            row["metadata"],
            row["read_version"],
            row["partition_field_event_date"],
            row["partition_field_event_year"],
            row["partition_field_country"],
        )
        for row in objects(manifest)
    }
    assert found == {
        ("v1", "namespace", "{}", None, None, None, None),
        (first, "namespace", "{}", None, DECEMBER_10, None, None),
        (f"{first}$dataset", "table", "{}", None, DECEMBER_10, None, None),
        (second, "namespace", "{}", None, DECEMBER_11, None, None),
        (f"{second}$dataset", "table", "{}", None, DECEMBER_11, None, None),
        ("v2", "namespace", "{}", None, None, None, None),
        (year, "namespace", "{}", None, None, 2025, None),
        (country, "namespace", "{}", None, None, 2025, "US"),
        (f"{country}$dataset", "table", "{}", None, None, 2025, "US"),
    }
    assert manifest.count_rows() == len(found)


# ── Appendix D ───────────────────────────────────────────────────────────────────────────────


def answer(manifest: lance.LanceDataset) -> list[dict[str, Any]]:
    """The two tables that the printed query returns; in weak mode without versions."""
    ids = [
        by_value(manifest, event_date=DECEMBER_10) + "$dataset",
        by_value(manifest, event_year=2025, country="US") + "$dataset",
    ]
    located = {row["object_id"]: row["location"] for row in objects(manifest)}
    return [{"object_id": id, "location": located[id], "read_version": None} for id in ids]


def test_d_the_printed_query_in_datafusion(manifest: lance.LanceDataset) -> None:
    context = SessionContext()
    context.from_arrow(manifest.to_table(), name="__manifest")
    found = context.sql(PRINTED_QUERY).to_arrow_table().to_pylist()
    assert sorted(found, key=lambda row: row["object_id"]) == answer(manifest)


def test_d_the_printed_filter_in_lance(manifest: lance.LanceDataset) -> None:
    found = manifest.to_table(
        columns=["object_id", "location", "read_version"],
        filter=PRINTED_QUERY.partition("WHERE")[2],
    ).to_pylist()
    assert sorted(found, key=lambda row: row["object_id"]) == answer(manifest)


def test_d_the_plan_finds_the_same(table: phalanx.Table, manifest: lance.LanceDataset) -> None:
    plan = table.plan(USER_WHERE)
    found = manifest.to_table(
        columns=["object_id", "location", "read_version"], filter=plan.pruning.manifest_filter
    ).to_pylist()
    assert sorted(found, key=lambda row: row["object_id"]) == answer(manifest)
    assert [partition.location for partition in plan.partitions] == [
        f"{table.uri}/{row['location']}" for row in answer(manifest)
    ]
    assert (len(plan.partitions), plan.total_partitions) == (2, 3)


def test_d_what_is_left_for_the_scan(table: phalanx.Table) -> None:
    v1, v2 = table.plan(USER_WHERE).partitions
    assert (v1.key.spec_id, v1.key.values) == (1, (DECEMBER_10,))
    assert (v2.key.spec_id, v2.key.values) == (2, (2025, "US"))
    assert v1.version is None
    assert v2.version is None
    # v1 has no country; v2 knows the year, which is not yet the day.
    assert v1.residual is not None
    assert "country" in v1.residual
    assert "event_date" not in v1.residual
    assert v2.residual is not None
    assert "event_date" in v2.residual
    assert "country" not in v2.residual
    assert (
        table.scan(USER_WHERE).to_arrow().to_pylist()
        == rows([UNDER_V1[0], UNDER_V2[0]]).to_pylist()
    )


# ── Appendix E ───────────────────────────────────────────────────────────────────────────────


def test_e_runtime_properties(table: phalanx.Table, manifest: lance.LanceDataset) -> None:
    namespace = phalanx.PartitionedNamespace(root=table.uri)

    def describe(object_id: str) -> str:
        request = DescribeNamespaceRequest(id=object_id.split("$"))
        return json.dumps({"properties": namespace.describe_namespace(request).properties})

    expected = {
        "v1": {"partition_spec": SPEC_V1},
        "v2": {"partition_spec": SPEC_V2},
        by_value(manifest, event_date=DECEMBER_10): {"partition.event_date": "2025-12-10"},
        by_value(manifest, event_date=DECEMBER_11): {"partition.event_date": "2025-12-11"},
        by_value(manifest, event_year=2025): {"partition.event_year": "2025"},
        by_value(manifest, event_year=2025, country="US"): {"partition.country": "US"},
    }
    for object_id, properties in expected.items():
        assert describe(object_id) == json.dumps({"properties": properties})
    root = namespace.describe_namespace(DescribeNamespaceRequest(id=[])).properties
    assert root == {
        "partition_spec_v1": SPEC_V1,
        "partition_spec_v2": SPEC_V2,
        "schema": SCHEMA_JSON,
    }
