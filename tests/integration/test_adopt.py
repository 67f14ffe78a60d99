"""Existing Lance tables become partitions where they are, without a copy."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import lance
import lance_namespace as catalog
import lancedb
import pyarrow as pa
import pytest
from lance_namespace import DescribeTableRequest, ListTablesRequest

import phalanx
from phalanx.model.schema.rows import remove_ids
from phalanx.model.schema.schema import Schema
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.schema import field_ids_of
from phalanx.storage.leaf import adoption

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("tenant", pa.string()),
        pa.field("place", pa.struct([("city", pa.string()), ("zip", pa.int32())])),
        pa.field("tags", pa.list_(pa.string())),
    ]
)


def rows(tenant: str | None, *ids: int) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {"id": id, "tenant": tenant, "place": {"city": f"c{id}", "zip": id}, "tags": [str(id)]}
            for id in ids
        ],
        schema=SCHEMA,
    )


def data_files(uri: str | Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in (Path(uri) / "data").glob("**/*.lance")}


@pytest.fixture
def table(tmp_path: Path) -> phalanx.Table:
    made = phalanx.create(tmp_path / "root", SCHEMA, ["tenant"])
    made.append(rows("ours", 1, 2))
    return made


@pytest.fixture
def changed_namespace(tmp_path: Path) -> phalanx.Table:
    """A namespace whose columns are in another order and have other ids than a new table's."""
    fields = [SCHEMA.field("tags"), pa.field("gone", pa.int8()), SCHEMA.field("place")]
    fields += [SCHEMA.field("tenant"), SCHEMA.field("id")]
    made = phalanx.create(tmp_path / "root", pa.schema(fields), ["tenant"])
    made.drop_column("gone")
    made.append(rows("ours", 1, 2))
    return made


def read_rows(table: phalanx.Table, where: str | None = None) -> list[dict[str, Any]]:
    scanned = table.scan(where, columns=SCHEMA.names).to_arrow()
    return sorted(scanned.to_pylist(), key=lambda row: row["id"])


def test_a_table_inside_the_root(table: phalanx.Table) -> None:
    uri = f"{table.uri}/acme.lance"
    lance.write_dataset(rows("acme", 3, 4), uri)
    files = data_files(uri)
    key = table.adopt(uri)
    assert (key.spec_id, key.values) == (1, ("acme",))
    assert data_files(uri) == files
    assert read_rows(table) == rows("ours", 1, 2).to_pylist() + rows("acme", 3, 4).to_pylist()
    plan = table.plan("tenant = 'acme'")
    assert [partition.location for partition in plan.partitions] == [uri]
    manifest = lance.dataset(f"{table.uri}/__manifest").to_table(filter="object_type = 'table'")
    assert "acme.lance" in manifest.column("location").to_pylist()


def test_a_table_outside_the_root(table: phalanx.Table, tmp_path: Path) -> None:
    uri = str(tmp_path / "acme.lance")
    lance.write_dataset(rows("acme", 3), uri)
    table.adopt(f"{table.uri}/../acme.lance")
    assert [row["id"] for row in read_rows(table)] == [1, 2, 3]
    assert table.partition(tenant="acme").count_rows() == 1
    [partition] = table.plan("tenant = 'acme'").partitions
    assert partition.location == uri
    table.append(rows("acme", 4))
    assert lance.dataset(uri).count_rows() == 2


def test_stock_clients_open_what_is_inside_the_root_only(
    table: phalanx.Table, tmp_path: Path
) -> None:
    lance.write_dataset(rows("in", 3), f"{table.uri}/tables/in.lance")
    lance.write_dataset(rows("out", 4), str(tmp_path / "out.lance"))
    # A stock client that left `../` out would take this for the adopted table.
    lance.write_dataset(rows("trap", 5), f"{table.uri}/out.lance")
    table.adopt(f"{table.uri}/tables/in.lance")
    table.adopt(tmp_path / "out.lance")
    stock = catalog.connect("dir", {"root": table.uri})
    ours = phalanx.PartitionedNamespace(table.uri)
    database = lancedb.connect_namespace("dir", {"root": table.uri})
    opened, missing = [], []
    for id in ours.list_all_tables(ListTablesRequest()).tables:
        path = id.split("$")
        location = ours.describe_table(DescribeTableRequest(id=path)).location
        [tenant] = set(lance.dataset(location).to_table().column("tenant").to_pylist())
        try:
            stock_rows = lance.dataset(namespace_client=stock, table_id=path).to_table()
        except ValueError:
            missing.append(tenant)
            continue
        opened.append(tenant)
        assert stock_rows.column("tenant").to_pylist()[0] == tenant
        assert database.open_table(path[-1], namespace_path=path[:-1]).to_arrow() == stock_rows
    assert sorted(opened) == ["in", "ours"]
    assert missing == ["out"]


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
@pytest.mark.parametrize("stable_row_ids", [False, True])
def test_field_ids_become_the_namespaces(
    changed_namespace: phalanx.Table, tmp_path: Path, version: str, stable_row_ids: bool
) -> None:
    uri = str(tmp_path / "acme.lance")
    lance.write_dataset(
        rows("acme", *range(10, 20)).append_column("extra", pa.array(range(10), pa.int32())),
        uri,
        max_rows_per_file=4,
        data_storage_version=version,
        enable_stable_row_ids=stable_row_ids,
    )
    theirs = lance.dataset(uri)
    theirs.delete("id IN (11, 15)")
    theirs.drop_columns(["extra"])
    files = data_files(uri)
    changed_namespace.adopt(uri)
    assert data_files(uri) == files
    leaf = lance.dataset(uri)
    assert field_ids_of(leaf) == Schema.of(changed_namespace.schema).ids != tuple(range(7))
    assert leaf.schema.names == changed_namespace.schema.names
    expected = [id for id in range(10, 20) if id not in (11, 15)]
    assert read_rows(changed_namespace, "tenant = 'acme'") == rows("acme", *expected).to_pylist()
    assert read_rows(changed_namespace, "place.zip > 17") == rows("acme", 18, 19).to_pylist()
    # It is a leaf like the others from now on.
    changed_namespace.append(rows("acme", 30).select(changed_namespace.schema.names))
    assert changed_namespace.delete("id = 12 OR place.city = 'c30'") == 2
    changed_namespace.add_column(pa.field("note", pa.string()))
    changed_namespace.rename_column("tags", "labels")
    changed_namespace.promote_column("place.zip", pa.int64())
    expected.remove(12)
    scanned = changed_namespace.scan("tenant = 'acme'").to_arrow()
    assert sorted(scanned.column("id").to_pylist()) == expected
    assert sorted(row["zip"] for row in scanned.column("place").to_pylist()) == expected
    assert scanned.column("note").null_count == len(expected)
    leaf = lance.dataset(uri)
    assert field_ids_of(leaf) == Schema.of(changed_namespace.schema).ids
    leaf.optimize.compact_files()
    assert sorted(lance.dataset(uri).to_table().column("id").to_pylist()) == expected


def test_a_map_keeps_its_values(tmp_path: Path) -> None:
    scores = pa.field("scores", pa.map_(pa.string(), pa.float32()))
    table = phalanx.create(
        tmp_path / "root",
        pa.schema([scores, ("t", pa.int8()), ("v", pa.list_(pa.float32(), 2))]),
        ["t"],
    )
    theirs = pa.table(
        {"v": [[1.0, 2.0]], "t": [1], "scores": [[("a", 1.0)]]},
        pa.schema([("v", pa.list_(pa.float32(), 2)), ("t", pa.int8()), scores]),
    )
    lance.write_dataset(theirs, str(tmp_path / "x.lance"))
    table.adopt(tmp_path / "x.lance")
    assert table.scan().to_arrow().to_pylist() == theirs.select(table.schema.names).to_pylist()


def test_indexes_live_on_where_ids_are_the_same(table: phalanx.Table, tmp_path: Path) -> None:
    dataset = lance.write_dataset(rows("acme", 3, 4, 5), str(tmp_path / "acme.lance"))
    dataset.create_scalar_index("id", "BTREE")
    table.adopt(tmp_path / "acme.lance")
    leaf = table.partition(tenant="acme")
    assert [index.name for index in leaf.describe_indices()] == ["id_idx"]
    assert "ScalarIndex" in leaf.scanner(filter="id = 4").explain_plan()
    assert [row["id"] for row in read_rows(table, "id = 4")] == [4]


def test_indexes_must_go_where_ids_change(changed_namespace: phalanx.Table, tmp_path: Path) -> None:
    uri = str(tmp_path / "acme.lance")
    dataset = lance.write_dataset(rows("acme", 3), uri)
    dataset.create_scalar_index("id", "BTREE")
    version = lance.dataset(uri).version
    with pytest.raises(phalanx.PhalanxError, match=r"indexes id_idx .* Drop the indexes"):
        changed_namespace.adopt(uri)
    assert lance.dataset(uri).version == version
    lance.dataset(uri).drop_index("id_idx")
    changed_namespace.adopt(uri)
    assert [row["id"] for row in read_rows(changed_namespace)] == [1, 2, 3]


def test_a_transformed_value_is_derived(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us"))])
    table = phalanx.create(tmp_path / "root", schema, [phalanx.year("at"), phalanx.bucket("id", 4)])
    one = pa.table({"id": [1, 1], "at": [dt.datetime(2025, 1, 1), dt.datetime(2025, 7, 1)]}, schema)
    lance.write_dataset(one, str(tmp_path / "x.lance"))
    bucket = phalanx.create(tmp_path / "other", schema, table.spec.label(Schema.of(table.schema)))
    bucket.append(one)
    [expected] = [partition.key for partition in bucket.plan().partitions]
    assert table.adopt(tmp_path / "x.lance") == expected
    assert table.plan("at < timestamp '2025-01-01T00:00:00'").partitions == ()


def test_rows_of_a_null_partition(table: phalanx.Table, tmp_path: Path) -> None:
    lance.write_dataset(rows(None, 3), str(tmp_path / "none.lance"))
    assert table.adopt(tmp_path / "none.lance").values == (None,)
    assert [row["id"] for row in read_rows(table, "tenant IS NULL")] == [3]


def test_an_empty_table_needs_its_values(changed_namespace: phalanx.Table, tmp_path: Path) -> None:
    uri = tmp_path / "acme.lance"
    lance.write_dataset(SCHEMA.empty_table(), str(uri))
    with pytest.raises(phalanx.PhalanxError, match=r"no rows .* expected tenant"):
        changed_namespace.adopt(uri)
    with pytest.raises(phalanx.PhalanxError, match="expected exactly tenant"):
        changed_namespace.adopt(uri, country="US")
    assert changed_namespace.adopt(uri, tenant="acme").values == ("acme",)
    changed_namespace.append(rows("acme", 3).select(changed_namespace.schema.names))
    assert lance.dataset(str(uri)).count_rows() == 1
    assert read_rows(changed_namespace, "tenant = 'acme'") == rows("acme", 3).to_pylist()


def check_refused(table: phalanx.Table, uri: Path, match: str, **values: Any) -> None:
    """The adoption fails, and neither the namespace nor the table is touched."""
    version = lance.dataset(str(uri)).version
    manifest = lance.dataset(f"{table.uri}/__manifest").version
    with pytest.raises(phalanx.PhalanxError, match=match):
        table.adopt(uri, **values)
    assert lance.dataset(str(uri)).version == version
    assert lance.dataset(f"{table.uri}/__manifest").version == manifest


def test_rows_of_several_partitions_are_refused(table: phalanx.Table, tmp_path: Path) -> None:
    both = pa.concat_tables([rows("a", *range(3000)), rows("b", 1)])
    lance.write_dataset(both, str(tmp_path / "x.lance"))
    check_refused(table, tmp_path / "x.lance", r"several partitions, such as \('a',\) and \('b',\)")


def test_wrong_values_are_refused(table: phalanx.Table, tmp_path: Path) -> None:
    lance.write_dataset(rows("acme", 3), str(tmp_path / "x.lance"))
    check_refused(
        table, tmp_path / "x.lance", r"as \('other',\): its rows have \('acme',\)", tenant="other"
    )
    assert table.adopt(tmp_path / "x.lance", tenant="acme").values == ("acme",)


def test_a_partition_that_exists_is_refused(table: phalanx.Table, tmp_path: Path) -> None:
    lance.write_dataset(rows("ours", 3), str(tmp_path / "x.lance"))
    check_refused(table, tmp_path / "x.lance", r"partition \('ours',\) exists")
    table.delete("true")
    check_refused(table, tmp_path / "x.lance", r"partition \('ours',\) exists")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda given: given.drop_columns(["tags"]), "lacks the column 'tags'"),
        (lambda given: given.append_column("more", pa.array([1])), "has the column 'more'"),
        (
            lambda given: given.set_column(0, "id", pa.array([1], pa.int32())),
            "column 'id' is int32, expected int64 not null",
        ),
        (
            lambda given: given.cast(
                pa.schema([field.with_nullable(True) for field in given.schema])
            ),
            "column 'id' is int64, expected int64 not null",
        ),
        (
            lambda given: given.cast(
                given.schema.set(1, given.schema.field(1).with_metadata({"x": "y"}))
            ),
            "column 'tenant' is string with",
        ),
    ],
)
def test_another_schema_is_refused(
    table: phalanx.Table, tmp_path: Path, change: Any, match: str
) -> None:
    lance.write_dataset(change(rows("acme", 3)), str(tmp_path / "x.lance"))
    check_refused(table, tmp_path / "x.lance", match)


def test_a_table_is_adopted_once(table: phalanx.Table, tmp_path: Path) -> None:
    lance.write_dataset(rows("acme", 3), str(tmp_path / "x.lance"))
    table.adopt(tmp_path / "x.lance")
    (tmp_path / "alias.lance").symlink_to(tmp_path / "x.lance")
    table.evolve([phalanx.bucket("id", 4)])
    check_refused(table, tmp_path / "x.lance", "is already a partition of")
    check_refused(table, tmp_path / "alias.lance", "is already a partition of")
    with pytest.raises(phalanx.PhalanxError, match=r"is already a partition of"):
        table.adopt(f"file://{tmp_path}/x.lance")
    [ours] = [p.location for p in table.plan("tenant = 'ours'").partitions]
    check_refused(table, Path(ours), "is already a partition of")
    assert [row["id"] for row in read_rows(table)] == [1, 2, 3]


def test_a_table_of_another_namespace_is_refused(table: phalanx.Table, tmp_path: Path) -> None:
    other = phalanx.create(tmp_path / "other", SCHEMA, ["tenant"])
    other.append(rows("acme", 3))
    [leaf] = [partition.location for partition in other.plan().partitions]
    check_refused(table, Path(leaf), f"a partition of the namespace at {other.uri}")
    lance.write_dataset(rows("umbrella", 4), str(tmp_path / "x.lance"))
    other.adopt(tmp_path / "x.lance")
    check_refused(table, tmp_path / "x.lance", f"a partition of the namespace at {other.uri}")


def test_what_is_no_table_is_refused(table: phalanx.Table, tmp_path: Path) -> None:
    with pytest.raises(phalanx.PhalanxError, match="not a Lance table"):
        table.adopt(tmp_path / "nothing.lance")
    lance.write_dataset(
        rows("acme", 3).select(["id", "tenant"]), str(tmp_path / "old"), data_storage_version="0.1"
    )
    with pytest.raises(phalanx.PhalanxError, match="legacy format"):
        table.adopt(tmp_path / "old")


def test_a_write_in_the_middle_is_not_lost(
    changed_namespace: phalanx.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = str(tmp_path / "acme.lance")
    lance.write_dataset(rows("acme", 3), uri)
    real = adoption._new_ids

    def append_and_call(*arguments: Any) -> Any:
        lance.write_dataset(rows("acme", 4), uri, mode="append")
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(adoption, "_new_ids", append_and_call)
        with pytest.raises(phalanx.CommitConflict, match="another client wrote to it"):
            changed_namespace.adopt(uri)
    assert lance.dataset(uri).to_table().column("id").to_pylist() == [3, 4]
    changed_namespace.adopt(uri)
    assert [row["id"] for row in read_rows(changed_namespace)] == [1, 2, 3, 4]


def test_a_partition_made_in_the_middle_wins(
    table: phalanx.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = str(tmp_path / "acme.lance")
    lance.write_dataset(rows("acme", 3), uri)

    def append_to_partition(
        dataset: lance.LanceDataset, schema: Schema, location: Location
    ) -> None:
        monkeypatch.undo()
        phalanx.open(table.uri).append(rows("acme", 9))

    monkeypatch.setattr("phalanx.table.write.adopt.renumber_fields", append_to_partition)
    with pytest.raises(phalanx.PhalanxError, match=r"partition \('acme',\) exists"):
        table.adopt(uri)
    assert [row["id"] for row in read_rows(table)] == [1, 2, 9]
    assert remove_ids(table.schema).equals(lance.dataset(uri).schema)
