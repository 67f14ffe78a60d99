"""`PartitionedNamespace`: what any client of Lance's catalog interface sees of a namespace."""

from __future__ import annotations

import datetime as dt
import math
import pickle
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import lance_namespace as catalog
import lancedb
import pyarrow as pa
import pytest
from lance_namespace import (
    CountTableRowsRequest,
    DescribeNamespaceRequest,
    DescribeTableRequest,
    ListNamespacesRequest,
    ListTablesRequest,
    NamespaceExistsRequest,
    TableExistsRequest,
)

import phalanx

SCHEMA = pa.schema([("id", pa.int64()), ("country", pa.string()), ("city", pa.string())])
ROWS = pa.table(
    {
        "id": [1, 2, 3, 4, 5],
        "country": ["US", "US", "DE", None, "%_'"],
        "city": ["NY", "LA", "Berlin", None, "x"],
    },
    SCHEMA,
)


@pytest.fixture
def root(tmp_path: Path) -> str:
    phalanx.create(tmp_path / "root", SCHEMA, ["country", "city"]).append(ROWS)
    return str(tmp_path / "root")


@pytest.fixture
def namespace(root: str) -> catalog.LanceNamespace:
    return catalog.connect("phalanx.PartitionedNamespace", {"root": root})


def namespaces(of: catalog.LanceNamespace, *id: str) -> list[str]:
    return of.list_namespaces(ListNamespacesRequest(id=list(id))).namespaces


def properties(of: catalog.LanceNamespace, *id: str) -> dict[str, str]:
    return of.describe_namespace(DescribeNamespaceRequest(id=list(id))).properties


def first_table(of: catalog.LanceNamespace) -> list[str]:
    return of.list_all_tables(ListTablesRequest()).tables[0].split("$")


def test_every_level_is_listed(namespace: catalog.LanceNamespace) -> None:
    assert namespaces(namespace) == ["v1"]
    countries = namespaces(namespace, "v1")
    assert len(countries) == 4
    assert countries == sorted(countries)
    cities = {country: namespaces(namespace, "v1", country) for country in countries}
    assert sorted(map(len, cities.values())) == [1, 1, 1, 2]
    for country in countries:
        assert namespace.list_tables(ListTablesRequest(id=["v1", country])).tables == []
        for city in cities[country]:
            below = ListTablesRequest(id=["v1", country, city])
            assert namespace.list_tables(below).tables == ["dataset"]
            assert namespaces(namespace, "v1", country, city) == []
    assert namespace.list_tables(ListTablesRequest(id=[])).tables == []


def test_each_level_has_its_own_value_and_null_has_none(namespace: catalog.LanceNamespace) -> None:
    found = {}
    for country in namespaces(namespace, "v1"):
        for city in namespaces(namespace, "v1", country):
            found[properties(namespace, "v1", country).get("partition.country")] = properties(
                namespace, "v1", country
            )
            assert set(properties(namespace, "v1", country, city)) <= {"partition.city"}
    assert found == {
        "US": {"partition.country": "US"},
        "DE": {"partition.country": "DE"},
        "%_'": {"partition.country": "%_'"},
        None: {},
    }


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5])
def test_pages_together_are_the_whole(namespace: catalog.LanceNamespace, limit: int) -> None:
    whole = namespaces(namespace, "v1")
    assert _list_pages(lambda token: namespace.list_namespaces(_namespaces(limit, token))) == whole
    tables = namespace.list_all_tables(ListTablesRequest()).tables
    assert len(tables) == 5
    assert _list_pages(lambda token: namespace.list_all_tables(_tables(limit, token))) == tables


def _namespaces(limit: int, token: str | None) -> ListNamespacesRequest:
    return ListNamespacesRequest(id=["v1"], limit=limit, page_token=token)


def _tables(limit: int, token: str | None) -> ListTablesRequest:
    return ListTablesRequest(limit=limit, page_token=token)


def _list_pages(page: Callable[[str | None], Any]) -> list[str]:
    found: list[str] = []
    token = None
    while True:
        answer = page(token)
        names = answer.namespaces if hasattr(answer, "namespaces") else answer.tables
        assert names
        found += names
        token = answer.page_token
        if not token:
            return found


def test_a_described_table_can_be_opened(namespace: catalog.LanceNamespace, root: str) -> None:
    rows = []
    for id in namespace.list_all_tables(ListTablesRequest()).tables:
        path = id.split("$")
        described = namespace.describe_table(DescribeTableRequest(id=path))
        assert described.location.startswith(f"{root}/")
        assert described.version is None
        assert [field.metadata for field in described.var_schema.fields] == [
            {"lance:field_id": str(number)} for number in range(3)
        ]
        assert lance.dataset(described.location).count_rows() == 1
        rows += lance.dataset(namespace_client=namespace, table_id=path).to_table().to_pylist()
    assert sorted(rows, key=lambda row: row["id"]) == ROWS.to_pylist()


def test_details_say_the_version_and_the_fragments(namespace: catalog.LanceNamespace) -> None:
    path = first_table(namespace)
    request = DescribeTableRequest(id=path, load_detailed_metadata=True, with_table_uri=True)
    described = namespace.describe_table(request)
    dataset = lance.dataset(described.location)
    assert (described.table, described.namespace) == ("dataset", path[:-1])
    assert described.version == dataset.version
    assert described.stats.num_fragments == 1
    assert described.table_uri == f"file://{described.location}"
    old = namespace.describe_table(DescribeTableRequest(id=path, version=2))
    assert (old.version, old.stats.num_fragments) == (2, 0)


def test_the_version_is_the_one_to_read(namespace: catalog.LanceNamespace, root: str) -> None:
    path = first_table(namespace)
    # What a strong commit does to the row of a table.
    manifest = lance.dataset(f"{root}/__manifest")
    pinned = pa.table({"object_id": ["$".join(path)], "read_version": pa.array([2], pa.uint64())})
    manifest.merge_insert("object_id").when_matched_update_all().execute(pinned)
    assert namespace.describe_table(DescribeTableRequest(id=path)).version == 2
    assert namespace.count_table_rows(CountTableRowsRequest(id=path)).count == 0


def test_a_strong_table_is_described_by_its_main_branch(tmp_path: Path) -> None:
    table = phalanx.create(tmp_path / "strong", SCHEMA, ["country"], transaction="strong")
    table.append(ROWS)
    namespace = catalog.connect("phalanx.PartitionedNamespace", {"root": table.uri})
    path = first_table(namespace)
    described = namespace.describe_table(DescribeTableRequest(id=path))
    assert described.version == lance.dataset(described.location).version < 1 << 63
    detailed = namespace.describe_table(DescribeTableRequest(id=path, load_detailed_metadata=True))
    assert (detailed.version, detailed.stats.num_fragments) == (described.version, 1)
    rows = lance.dataset(namespace_client=namespace, table_id=path).count_rows()
    database = lancedb.connect_namespace("phalanx.PartitionedNamespace", {"root": table.uri})
    opened = database.open_table(path[-1], namespace_path=path[:-1])
    assert opened.count_rows() == rows > 0


def test_no_version_is_described_while_the_main_branch_lags(tmp_path: Path) -> None:
    table = phalanx.create(tmp_path / "strong", SCHEMA, ["country"], transaction="strong")
    table.append(ROWS)
    namespace = catalog.connect("phalanx.PartitionedNamespace", {"root": table.uri})
    path = first_table(namespace)
    location = namespace.describe_table(DescribeTableRequest(id=path)).location
    # As it was before the main branch followed: its newest version is the one before.
    newest = lance.dataset(location)
    rows = newest.count_rows()
    lance.dataset(location, version=newest.version - 1).restore()
    described = namespace.describe_table(DescribeTableRequest(id=path, load_detailed_metadata=True))
    assert described.version is None
    assert described.stats.num_fragments == 1
    assert namespace.count_table_rows(CountTableRowsRequest(id=path)).count == rows > 0


def test_rows_are_counted(namespace: catalog.LanceNamespace) -> None:
    counts = [
        namespace.count_table_rows(
            CountTableRowsRequest(id=id.split("$"), predicate="\"country\" = 'US'")
        ).count
        for id in namespace.list_all_tables(ListTablesRequest()).tables
    ]
    assert sorted(counts) == [0, 0, 0, 1, 1]
    with pytest.raises(catalog.InvalidInputError, match="nope"):
        namespace.count_table_rows(
            CountTableRowsRequest(id=first_table(namespace), predicate="nope = 1")
        )


def test_what_is_there_exists(namespace: catalog.LanceNamespace) -> None:
    path = first_table(namespace)
    for end in range(len(path)):
        namespace.namespace_exists(NamespaceExistsRequest(id=path[:end]))
    namespace.table_exists(TableExistsRequest(id=path))
    namespace.table_exists(TableExistsRequest(id=path, version=2))


MISSING = ["v1", "nope"]


@pytest.mark.parametrize(
    ("method", "request_", "error"),
    [
        ("list_namespaces", ListNamespacesRequest(id=MISSING), catalog.NamespaceNotFoundError),
        ("list_namespaces", ListNamespacesRequest(id=["v%"]), catalog.NamespaceNotFoundError),
        ("list_namespaces", ListNamespacesRequest(id=["v2"]), catalog.NamespaceNotFoundError),
        ("list_tables", ListTablesRequest(id=MISSING), catalog.NamespaceNotFoundError),
        (
            "describe_namespace",
            DescribeNamespaceRequest(id=MISSING),
            catalog.NamespaceNotFoundError,
        ),
        ("namespace_exists", NamespaceExistsRequest(id=MISSING), catalog.NamespaceNotFoundError),
        ("describe_table", DescribeTableRequest(id=MISSING), catalog.TableNotFoundError),
        ("describe_table", DescribeTableRequest(id=["v1"]), catalog.TableNotFoundError),
        ("table_exists", TableExistsRequest(id=["a'b"]), catalog.TableNotFoundError),
        ("count_table_rows", CountTableRowsRequest(id=MISSING), catalog.TableNotFoundError),
        ("describe_table", DescribeTableRequest(id=[]), catalog.InvalidInputError),
        ("list_tables", ListTablesRequest(id=["v1"], limit=0), catalog.InvalidInputError),
    ],
)
def test_what_is_missing_is_reported(
    namespace: catalog.LanceNamespace, method: str, request_: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        getattr(namespace, method)(request_)


def test_a_name_is_not_a_path(namespace: catalog.LanceNamespace) -> None:
    path = first_table(namespace)
    with pytest.raises(catalog.TableNotFoundError):
        namespace.describe_table(DescribeTableRequest(id=["$".join(path)]))
    with pytest.raises(catalog.TableVersionNotFoundError):
        namespace.describe_table(DescribeTableRequest(id=path, version=999))


def test_it_shows_what_is_stored_now(namespace: catalog.LanceNamespace, root: str) -> None:
    table = phalanx.open(root)
    table.evolve(["city"])
    table.append(ROWS)
    assert namespaces(namespace) == ["v1", "v2"]
    assert len(namespaces(namespace, "v2")) == 5
    assert properties(namespace, "v2") == {"partition_spec": table.spec.to_json()}
    assert set(properties(namespace)) == {"partition_spec_v1", "partition_spec_v2", "schema"}


def test_every_other_operation_says_what_to_use_instead(
    namespace: catalog.LanceNamespace,
) -> None:
    done = {
        "count_table_rows describe_namespace describe_table list_all_tables list_namespaces",
        "list_tables namespace_exists namespace_id table_exists",
    }
    refused = [
        name
        for name in dir(catalog.LanceNamespace)
        if not name.startswith("_") and name not in " ".join(done).split()
    ]
    assert "create_table" in refused
    for name in refused:
        with pytest.raises(catalog.UnsupportedOperationError, match=f"{name}: .*phalanx"):
            getattr(namespace, name)(None)


def test_it_can_be_pickled(namespace: catalog.LanceNamespace) -> None:
    again = pickle.loads(pickle.dumps(namespace))
    assert again.namespace_id() == namespace.namespace_id()
    assert namespaces(again, "v1") == namespaces(namespace, "v1")


def test_a_wrong_root_or_property_is_reported(tmp_path: Path, root: str) -> None:
    with pytest.raises(ValueError, match="no partitioned namespace"):
        catalog.connect("phalanx.PartitionedNamespace", {"root": str(tmp_path / "nothing")})
    with pytest.raises(ValueError, match="no property 'manifest_enabled'"):
        catalog.connect("phalanx.PartitionedNamespace", {"root": root, "manifest_enabled": "true"})


MOMENT = 1_765_353_600_123_456_789


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (dt.date(2025, 12, 10), pa.date32(), "2025-12-10"),
        (MOMENT // 10**9, pa.timestamp("s"), "2025-12-10T08:00:00"),
        (MOMENT // 10**3, pa.timestamp("us"), "2025-12-10T08:00:00.123456"),
        (MOMENT, pa.timestamp("ns"), "2025-12-10T08:00:00.123456789"),
        (MOMENT // 10**6, pa.timestamp("ms", "Europe/Paris"), "2025-12-10T08:00:00.123Z"),
        (3600, pa.time32("s"), "01:00:00"),
        (True, pa.bool_(), "true"),
        (-7, pa.int8(), "-7"),
        (2**64 - 1, pa.uint64(), "18446744073709551615"),
        (0.1, pa.float32(), "0.1"),
        (-0.0, pa.float64(), "0"),
        (math.nan, pa.float64(), "nan"),
        (Decimal("14.20"), pa.decimal128(12, 2), "14.20"),
        (b"\x00\xff", pa.binary(), "00ff"),
        ("a$b/c=d", pa.string(), "a$b/c=d"),
        ("", pa.string(), ""),
    ],
)
def test_values_as_text(tmp_path: Path, value: Any, kind: pa.DataType, text: str) -> None:
    table = phalanx.create(tmp_path / "root", pa.schema([("p", kind)]), ["p"])
    table.append(pa.table({"p": pa.array([value], kind)}))
    namespace = phalanx.PartitionedNamespace(table.uri)
    [name] = namespaces(namespace, "v1")
    assert properties(namespace, "v1", name) == {"partition.p": text}
