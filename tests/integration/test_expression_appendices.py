"""The expression draft's Appendices A–F, through the public API and by another writer."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from datafusion import SessionContext
from lance_namespace import (
    DescribeNamespaceRequest,
    DescribeTableRequest,
    ListNamespacesRequest,
    ListTablesRequest,
    connect,
)

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
APPENDIX_A = json.loads(
    """{
  "partition_spec_v1": [
    {
      "field_id": "event_date",
      "source_ids": [1],
      "expression": "col0",
      "result_type": { "type": "date32" }
    }
  ],
  "partition_spec_v2": [
    {
      "field_id": "event_year",
      "source_ids": [1],
      "expression": "date_part('year', col0)",
      "result_type": { "type": "int32" }
    },
    {
      "field_id": "country",
      "source_ids": [2],
      "expression": "col0",
      "result_type": { "type": "utf8" }
    }
  ],
  "schema": {
    "fields": [
      {
        "name": "id",
        "nullable": false,
        "type": { "type": "int64" },
        "metadata": { "lance:field_id": "0" }
      },
      {
        "name": "event_date",
        "nullable": true,
        "type": { "type": "date32" },
        "metadata": { "lance:field_id": "1" }
      },
      {
        "name": "country",
        "nullable": true,
        "type": { "type": "utf8" },
        "metadata": { "lance:field_id": "2" }
      }
    ]
  }
}"""
)
SPEC_V1 = (
    '[{"field_id":"event_date","source_ids":[1],"expression":"col0",'
    '"result_type":{"type":"date32"}}]'
)
SELECTED = ["object_id", "location", "read_version", "read_branch", "read_tag"]
PRINTED_FILTER = """
  object_type = 'table'
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
# Appendix B and C, as printed.
FIRST, SECOND = "v1$k7m2n9p4q8r5s3t6", "v1$w1x2y3z4a5b6c7d8"
YEAR = "v2$e9f0g1h2i3j4k5l6"
COUNTRY = f"{YEAR}$m7n8o9p0q1r2s3t4"
LOCATIONS = {
    f"{FIRST}$dataset": f"b4a3c2d1_{FIRST}$dataset",
    f"{SECOND}$dataset": f"55667788_{SECOND}$dataset",
    f"{COUNTRY}$dataset": f"aabbccdd_{COUNTRY}$dataset",
}


def rows(records: list[tuple[int, dt.date, str]]) -> pa.Table:
    return pa.Table.from_pylist(
        [dict(zip(SCHEMA.names, record, strict=True)) for record in records], schema=SCHEMA
    )


@pytest.fixture(scope="module", params=["weak", "strong"])
def table(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = tmp_path_factory.mktemp("my") / "dir1"
    made = phalanx.create(
        root, SCHEMA, ["event_date"], transaction=request.param, layout="expressions"
    )
    made.append(rows(UNDER_V1))
    made.evolve([phalanx.year("event_date", field_id="event_year"), "country"])
    made.append(rows(UNDER_V2))
    return phalanx.open(root)


@pytest.fixture
def manifest(table: phalanx.Table) -> lance.LanceDataset:
    return lance.dataset(f"{table.uri}/__manifest")


def objects(manifest: lance.LanceDataset) -> list[dict[str, Any]]:
    kinds = "object_type IN ('namespace', 'table')"
    return sorted(manifest.to_table(filter=kinds).to_pylist(), key=lambda row: row["object_id"])


def by_value(manifest: lance.LanceDataset, **values: Any) -> str:
    """The id of the namespace with exactly these partition values."""
    [found] = [
        row["object_id"]
        for row in objects(manifest)
        if row["object_type"] == "namespace" and values_of(row) == values
    ]
    return found


def values_of(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name.removeprefix("partition_field_"): value
        for name, value in row.items()
        if name.startswith("partition_field_") and value is not None
    }


def test_a_metadata(table: phalanx.Table, manifest: lance.LanceDataset) -> None:
    found = {name: json.loads(manifest.metadata[name]) for name in APPENDIX_A}
    assert found == APPENDIX_A
    assert list(found["partition_spec_v2"][0]) == list(APPENDIX_A["partition_spec_v2"][0])
    assert manifest.metadata["partition_spec_v1"] == SPEC_V1
    others = set(manifest.metadata) - set(APPENDIX_A)
    assert all(key.startswith(("phalanx.", "lance.")) for key in others)
    assert table.layout == "expressions"


def test_b_layout(table: phalanx.Table, manifest: lance.LanceDataset) -> None:
    leaves = sorted(path.name for path in Path(table.uri).iterdir() if path.name != "__manifest")
    level = re.escape("$") + PARTITION
    patterns = [rf"[0-9a-f]{{8}}_v1{level}\$dataset"] * 2 + [
        rf"[0-9a-f]{{8}}_v2{level}{level}\$dataset"
    ]
    by_version = sorted(leaves, key=lambda name: name.partition("_")[2])
    assert all(map(re.fullmatch, patterns, by_version))
    located = {row["object_id"]: row["location"] for row in objects(manifest) if row["location"]}
    assert sorted(located.values()) == leaves
    assert all(location.partition("_")[2] == id for id, location in located.items())


def test_c_manifest(table: phalanx.Table, manifest: lance.LanceDataset) -> None:
    assert [(each.name, each.type) for each in manifest.schema] == [
        ("object_id", pa.string()),
        ("object_type", pa.string()),
        ("location", pa.string()),
        ("metadata", pa.string()),
        ("base_objects", pa.list_(pa.field("object_id", pa.string()))),
        ("read_version", pa.uint64()),
        ("read_branch", pa.string()),
        ("read_tag", pa.string()),
        ("partition_field_event_date", pa.date32()),
        ("partition_field_event_year", pa.int32()),
        ("partition_field_country", pa.string()),
    ]
    first, second = (
        by_value(manifest, event_date=DECEMBER_10),
        by_value(manifest, event_date=DECEMBER_11),
    )
    year = by_value(manifest, event_year=2025)
    country = by_value(manifest, event_year=2025, country="US")
    expected = [
        ("v1", {}),
        (first, {"event_date": DECEMBER_10}),
        (f"{first}$dataset", {"event_date": DECEMBER_10}),
        (second, {"event_date": DECEMBER_11}),
        (f"{second}$dataset", {"event_date": DECEMBER_11}),
        ("v2", {}),
        (year, {"event_year": 2025}),
        (country, {"event_year": 2025, "country": "US"}),
        (f"{country}$dataset", {"event_year": 2025, "country": "US"}),
    ]
    found = objects(manifest)
    assert [(row["object_id"], values_of(row)) for row in found] == sorted(expected)
    for row in found:
        assert row["metadata"] == "{}"
        assert row["object_type"] == (
            "table" if row["object_id"].endswith("dataset") else "namespace"
        )
        pinned = row["object_type"] == "table" and table.mode == "strong"
        assert (row["read_version"] is not None) == pinned
        assert row["read_branch"] is row["read_tag"] is None


def test_d_common_expressions(tmp_path: Path) -> None:
    """All nine, in one spec: stored as printed, and each row in the partition they give it."""
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("ts", pa.timestamp("us"))])
    terms = [
        phalanx.identity("name"),
        *(make("ts") for make in (phalanx.year, phalanx.month, phalanx.day, phalanx.hour)),
        phalanx.bucket("id", 4),
        phalanx.multi_bucket(["id", "name"], 4),
        phalanx.truncate("name", 1),
        phalanx.truncate("id", 10),
    ]
    made = phalanx.create(tmp_path / "t", schema, terms, layout="expressions")
    stored = json.loads(lance.dataset(f"{made.uri}/__manifest").metadata["partition_spec_v1"])
    assert [(each["expression"], each["result_type"]["type"]) for each in stored] == [
        ("col0", "utf8"),
        ("date_part('year', col0)", "int32"),
        ("date_part('month', col0)", "int32"),
        ("date_part('day', col0)", "int32"),
        ("date_part('hour', col0)", "int32"),
        ("abs(md5_int(col0)) % 4", "int64"),
        ("abs(md5_int(concat(col0, col1))) % 4", "int64"),
        ("left(col0, 1)", "utf8"),
        ("col0 - (col0 % 10)", "int64"),
    ]
    at = dt.datetime(2025, 12, 10, 13)
    made.append(pa.table({"id": [123, None], "name": ["naïve", None], "ts": [at, None]}, schema))
    first, second = phalanx.open(made.uri).plan().partitions
    assert first.key.values == ("naïve", 2025, 12, 10, 13, *_md5_buckets(), "n", 120)
    assert second.key.values == (None,) * 9


def _md5_buckets() -> tuple[int, int]:
    digests = (hashlib.md5(text.encode()).digest()[:8] for text in ("123", "123naïve"))
    one, two = (abs(int.from_bytes(each, "big", signed=True)) % 4 for each in digests)
    return one, two


def test_e_pruning(table: phalanx.Table, manifest: lance.LanceDataset) -> None:
    """The printed query in DataFusion and in Lance, and the plan, find the same two tables."""
    ids = [
        by_value(manifest, event_date=DECEMBER_10) + "$dataset",
        by_value(manifest, event_year=2025, country="US") + "$dataset",
    ]
    context = SessionContext()
    context.from_arrow(manifest.to_table(), name="__manifest")
    query = f"SELECT {', '.join(SELECTED)} FROM __manifest WHERE {PRINTED_FILTER}"
    plan = table.plan(USER_WHERE)
    found = [
        context.sql(query).to_arrow_table(),
        manifest.to_table(columns=SELECTED, filter=PRINTED_FILTER),
        manifest.to_table(columns=SELECTED, filter=plan.pruning.manifest_filter),
    ]
    for each in found:
        answer = each.sort_by("object_id").to_pylist()
        assert [row["object_id"] for row in answer] == ids
        assert [f"{table.uri}/{row['location']}" for row in answer] == [
            partition.location for partition in plan.partitions
        ]
        assert [row["read_version"] for row in answer] == [
            partition.version for partition in plan.partitions
        ]
    assert (len(plan.partitions), plan.total_partitions) == (2, 3)
    v1, v2 = plan.partitions
    # v1 has no country; v2 knows the year, which is not yet the day.
    assert v1.residual is not None
    assert "country" in v1.residual
    assert "event_date" not in v1.residual
    assert v2.residual is not None
    assert "event_date" in v2.residual
    assert "country" not in v2.residual
    expected = rows([UNDER_V1[0], UNDER_V2[0]]).to_pylist()
    assert table.scan(USER_WHERE).to_arrow().to_pylist() == expected


def test_f_runtime_properties(table: phalanx.Table, manifest: lance.LanceDataset) -> None:
    namespace = phalanx.PartitionedNamespace(root=table.uri)
    expected = {
        "v1": {"partition_spec": SPEC_V1},
        by_value(manifest, event_date=DECEMBER_10): {"partition.event_date": "2025-12-10"},
        by_value(manifest, event_year=2025): {"partition.event_year": "2025"},
        by_value(manifest, event_year=2025, country="US"): {"partition.country": "US"},
    }
    for object_id, properties in expected.items():
        request = DescribeNamespaceRequest(id=object_id.split("$"))
        assert namespace.describe_namespace(request).properties == properties
    root = namespace.describe_namespace(DescribeNamespaceRequest(id=[])).properties
    assert root is not None
    assert {name: json.loads(text) for name, text in root.items()} == APPENDIX_A


def test_stock_clients_list_and_read_it(table: phalanx.Table, manifest: lance.LanceDataset) -> None:
    stock = connect("dir", {"root": table.uri})
    assert sorted(stock.list_namespaces(ListNamespacesRequest(id=[])).namespaces) == ["v1", "v2"]
    path = by_value(manifest, event_year=2025, country="US").split("$")
    assert stock.list_tables(ListTablesRequest(id=path)).tables == ["dataset"]
    leaf = lance.dataset(namespace_client=stock, table_id=[*path, "dataset"])
    assert leaf.to_table().to_pylist() == rows(UNDER_V2).to_pylist()


# ── the namespace of Appendix C, by another writer ───────────────────────────────────────────


@pytest.fixture
def printed_namespace(tmp_path: Path) -> Path:
    """Exactly the printed objects and versions, and newer versions as well."""
    root = tmp_path / "dir1"
    under = {
        f"{FIRST}$dataset": (UNDER_V1[:2], 5),
        f"{SECOND}$dataset": (UNDER_V1[2:], 5),
        f"{COUNTRY}$dataset": (UNDER_V2, 3),
    }
    for object_id, (records, version) in under.items():
        where = str(root / LOCATIONS[object_id])
        lance.write_dataset(rows([]), where)
        # One row at a time up to the printed version, then what no reader should see yet.
        steps = [records[place : place + 1] for place in range(version - 1)]
        for step in [*steps, [(99, records[0][1], records[0][2])]]:
            lance.write_dataset(rows(step), where, mode="append")
        assert lance.dataset(where, version=version).count_rows() == len(records)
    values: list[tuple[str, int | None, dt.date | None, int | None, str | None]] = [
        ("v1", None, None, None, None),
        (FIRST, None, DECEMBER_10, None, None),
        (f"{FIRST}$dataset", 5, DECEMBER_10, None, None),
        (SECOND, None, DECEMBER_11, None, None),
        (f"{SECOND}$dataset", 5, DECEMBER_11, None, None),
        ("v2", None, None, None, None),
        (YEAR, None, None, 2025, None),
        (COUNTRY, None, None, 2025, "US"),
        (f"{COUNTRY}$dataset", 3, None, 2025, "US"),
    ]
    key = {b"lance-schema:unenforced-primary-key:position": b"0"}
    listed = pa.table(
        {
            "object_id": [each[0] for each in values],
            "object_type": ["table" if "dataset" in each[0] else "namespace" for each in values],
            "location": [LOCATIONS.get(each[0]) for each in values],
            "metadata": ["{}"] * len(values),
            "base_objects": [None] * len(values),
            "read_version": [each[1] for each in values],
            "partition_field_event_date": [each[2] for each in values],
            "partition_field_event_year": [each[3] for each in values],
            "partition_field_country": [each[4] for each in values],
        },
        schema=pa.schema(
            [
                pa.field("object_id", pa.string(), nullable=False, metadata=key),
                pa.field("object_type", pa.string(), nullable=False),
                ("location", pa.string()),
                ("metadata", pa.string()),
                ("base_objects", pa.list_(pa.field("object_id", pa.string()))),
                ("read_version", pa.uint64()),
                ("partition_field_event_date", pa.date32()),
                ("partition_field_event_year", pa.int32()),
                ("partition_field_country", pa.string()),
            ]
        ),
    )
    manifest = lance.write_dataset(listed, str(root / "__manifest"))
    manifest.update_metadata({name: json.dumps(each) for name, each in APPENDIX_A.items()})
    return root


def test_what_another_wrote_is_read_by_the_rules(printed_namespace: Path) -> None:
    table = phalanx.open(printed_namespace)
    assert (table.layout, table.mode, sorted(table.specs)) == ("expressions", "strong", [1, 2])
    assert table.scan().to_arrow().to_pylist() == rows([*UNDER_V1, *UNDER_V2]).to_pylist()
    plan = table.plan(USER_WHERE)
    assert [(each.location, each.version) for each in plan.partitions] == [
        (f"{printed_namespace}/{LOCATIONS[f'{FIRST}$dataset']}", 5),
        (f"{printed_namespace}/{LOCATIONS[f'{COUNTRY}$dataset']}", 3),
    ]
    namespace = phalanx.PartitionedNamespace(root=str(printed_namespace))
    request = DescribeTableRequest(id=[*COUNTRY.split("$"), "dataset"])
    assert namespace.describe_table(request).version == 3


def test_what_another_wrote_is_appended_to(printed_namespace: Path) -> None:
    """Rows go on top of the versions that are read; other versions stay unread."""
    table = phalanx.open(printed_namespace)
    added = [(6, DECEMBER_10, "US"), (7, DECEMBER_10, "FR")]
    table.append(rows(added))
    found = phalanx.open(printed_namespace)
    assert sorted(found.scan().to_arrow()["id"].to_pylist()) == [1, 2, 3, 4, 5, 6, 7]
    assert found.plan("country = 'FR'").scanned_partitions == 3
    names = {
        row["object_id"] for row in objects(lance.dataset(str(printed_namespace / "__manifest")))
    }
    # The year is there already, under the name that the other writer gave it.
    assert len([name for name in names if name.startswith(f"{YEAR}$")]) == 4


def test_what_another_wrote_is_upgraded(printed_namespace: Path) -> None:
    before = phalanx.open(printed_namespace)
    everything, plan = before.scan().to_arrow(), before.plan(USER_WHERE)
    before.upgrade()
    table = phalanx.open(printed_namespace)
    assert (table.layout, table.mode) == ("namespace", "strong")
    assert table.scan().to_arrow() == everything
    assert table.plan(USER_WHERE).partitions == plan.partitions
    table.append(rows([(6, DECEMBER_10, "US")]))
    assert table.scan().count_rows() == 6
