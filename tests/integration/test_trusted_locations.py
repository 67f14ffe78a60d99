"""Leaves outside of the table's folder: each way to read them refuses, and reads where trusted."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import lance
import lance_namespace as catalog
import pyarrow as pa
import pytest

import phalanx
from integration.shell import run, run_json
from integration.spawning import count

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64()), ("v", pa.list_(pa.float32(), 2))])
WHERE = "k = 'a'"


def rows(*values: tuple[str, int]) -> pa.Table:
    vectors = [[float(n), 0.0] for _, n in values]
    return pa.table([[k for k, _ in values], [n for _, n in values], vectors], schema=SCHEMA)


@pytest.fixture(params=["weak", "strong"])
def uri(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """A table of the rows 1 to 3, of which those of 'a' are outside of it.

    It was moved since that leaf was adopted: the leaf names another place as its table.
    """
    table = phalanx.create(tmp_path / "first", SCHEMA, ["k"], transaction="weak")
    table.append(rows(("b", 3)))
    lance.write_dataset(rows(("a", 1), ("a", 2)), tmp_path / "outside")
    table.adopt(tmp_path / "outside")
    table.set_mode(request.param)
    return str((tmp_path / "first").rename(tmp_path / "table"))


def numbers(found: pa.Table) -> list[int]:
    return sorted(found.column("n").to_pylist())


def _elsewhere(table: phalanx.Table) -> int:
    """Return how many rows another process reads."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(count, table).result()


READS: dict[str, Callable[[phalanx.Table], Any]] = {
    "scan": lambda table: len(numbers(table.scan().to_arrow())),
    "count_rows": count,
    "limit": lambda table: table.scan(limit=3).to_arrow().num_rows,
    "pickle": lambda table: count(pickle.loads(pickle.dumps(table))),
    "another process": _elsewhere,
    "search": lambda table: table.search("v", [0, 0], 9).num_rows,
    "partitions": lambda table: sum(table.partitions()["rows"].to_pylist()),
}
STRONG_READS: dict[str, Callable[[phalanx.Table], Any]] = {
    "at": lambda table: count(table.at(table.newest_snapshot)),
    "pickled at": lambda table: count(pickle.loads(pickle.dumps(table.at(table.newest_snapshot)))),
    "changes": lambda table: table.changes(0).to_arrow().num_rows,
}


def test_python(uri: str) -> None:
    strong = phalanx.open(uri).mode == "strong"
    for name, read in {**READS, **(STRONG_READS if strong else {})}.items():
        with pytest.raises(phalanx.UntrustedLocation, match="trust_locations=True"):
            read(phalanx.open(uri))
        assert read(phalanx.open(uri, trust_locations=True)) == 3, name


def test_a_partition_that_is_not_needed_is_not_asked_for(uri: str) -> None:
    assert numbers(phalanx.open(uri).scan("k = 'b'").to_arrow()) == [3]


def test_trust_is_for_reading(uri: str) -> None:
    table = phalanx.open(uri, trust_locations=True)
    for write in (
        lambda: table.append(rows(("a", 9))),
        lambda: pickle.loads(pickle.dumps(table)).delete("k = 'a' AND n = 1"),
    ):
        with pytest.raises(phalanx.UntrustedLocation, match="Cannot write"):
            write()
    assert numbers(table.scan().to_arrow()) == [1, 2, 3]


def test_shell(uri: str) -> None:
    strong = phalanx.open(uri).mode == "strong"
    commands: dict[str, tuple[list[str], Callable[[Any], int]]] = {
        "scan": (["scan", uri], len),
        "count": (["scan", uri, "--count"], lambda output: int(output["count"])),
        "ls": (["ls", uri], lambda output: sum(each["rows"] for each in output)),
        "search": (["search", uri, "v", "[0, 0]"], len),
    }
    if strong:
        commands["changes"] = (["changes", uri, "0"], len)
        commands["scan at"] = (["scan", uri, "--snapshot", "1"], len)
    for name, (command, size) in commands.items():
        refused = run(*command)
        assert refused.exit_code == 1, (name, refused.output)
        assert "trust" in refused.stderr, name
        assert size(run_json(*command, "--trust-locations")) == 3, name
    assert run("explain", uri, "k = 'a'", "--trust-locations").exit_code == 0
    refused = run("verify", uri)
    assert refused.exit_code == 1
    assert "trust" in refused.output
    assert run("verify", uri, "--trust-locations").exit_code == 0


def test_namespace(uri: str) -> None:
    def described(**properties: str) -> tuple[Any, int]:
        namespace = phalanx.PartitionedNamespace(uri, **properties)
        again = pickle.loads(pickle.dumps(namespace))
        found = []
        for each in (namespace, again):
            [name] = [
                name
                for name in each.list_all_tables(catalog.ListTablesRequest(id=[])).tables
                if _key_of(each, name) == "a"
            ]
            request = catalog.DescribeTableRequest(id=name.split("$"), load_detailed_metadata=True)
            counted = catalog.CountTableRowsRequest(id=name.split("$"))
            found.append(
                (each.describe_table(request).location, each.count_table_rows(counted).count)
            )
        assert found[0] == found[1]
        return found[0]

    with pytest.raises(phalanx.UntrustedLocation, match="trust_locations"):
        described()
    with pytest.raises(phalanx.UntrustedLocation, match="trust_locations"):
        described(trust_locations="false")
    location, count = described(trust_locations="true")
    assert (Path(location).name, count) == ("outside", 2)


def _key_of(namespace: Any, name: str) -> str | None:
    request = catalog.DescribeNamespaceRequest(id=name.split("$")[:-1])
    found: str | None = namespace.describe_namespace(request).properties.get("partition.k")
    return found


def test_the_namespace_hands_out_no_options_of_the_store(uri: str) -> None:
    """A client would send them wherever the manifest says."""
    namespace = phalanx.PartitionedNamespace(uri, **{"storage.token": "secret"})
    for name in namespace.list_all_tables(catalog.ListTablesRequest(id=[])).tables:
        request = catalog.DescribeTableRequest(id=name.split("$"))
        if _key_of(namespace, name) == "b":
            assert namespace.describe_table(request).storage_options == {"token": "secret"}
        else:
            with pytest.raises(phalanx.UntrustedLocation, match="trust_locations"):
                namespace.describe_table(request)
