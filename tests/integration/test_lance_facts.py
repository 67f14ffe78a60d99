"""What Phalanx relies on in Lance: one test for each fact, named after it."""

from __future__ import annotations

import copy
import dataclasses
import io
import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import boto3
import duckdb
import duckdb_extension_lance
import lance
import lance_namespace
import lancedb
import numpy as np
import pyarrow as pa
import pytest
from lance import LanceDataset, LanceOperation
from lance.commit import CommitConflictError
from lance.fragment import write_fragments
from lance.schema import LanceSchema
from lance_namespace.errors import UnsupportedOperationError
from moto.server import ThreadedMotoServer

from phalanx.model.schema.schema import Schema
from phalanx.storage.lance.versions import set_manifest_version

PRIMARY_KEY = {b"lance-schema:unenforced-primary-key:position": b"0"}
WRITER_FLAGS = {"lance.namespace.manifest.writer_feature_flags": str(1 << 62)}
STOCK = pa.schema(
    [
        pa.field("object_id", pa.utf8(), False, PRIMARY_KEY),
        pa.field("object_type", pa.utf8(), False),
        pa.field("location", pa.utf8()),
        pa.field("metadata", pa.utf8()),
        pa.field("base_objects", pa.list_(pa.field("object_id", pa.utf8()))),
    ]
)
MANIFEST = pa.schema(
    [*STOCK, pa.field("read_version", pa.uint64()), pa.field("partition_field_day", pa.int32())]
)
LEAF = "deadbeef_v1$k$dataset"
DETACHED = 1 << 63


def manifest_rows(*rows: dict[str, Any], schema: pa.Schema = MANIFEST) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=schema)


def row(object_id: str, read_version: int | None = None) -> pa.Table:
    return manifest_rows(
        {"object_id": object_id, "object_type": "table", "read_version": read_version}
    )


def create(uri: str, rows: pa.Table, options: dict[str, str] | None = None) -> LanceDataset:
    """A dataset with its rows and its table metadata in one commit, which fails if one exists."""
    staged = lance.write_dataset(rows, f"memory://{uuid4().hex}")
    staged.update_metadata(WRITER_FLAGS)
    return staged.deep_clone(uri, staged.version, storage_options=options)


def merge(manifest: LanceDataset, rows: pa.Table, delete: bool = False) -> dict[str, int]:
    merging = manifest.merge_insert("object_id")
    if delete:
        merging = merging.when_matched_delete()
    else:
        merging = merging.when_matched_update_all().when_not_matched_insert_all()
    counts: dict[str, int] = merging.use_index(False).conflict_retries(0).execute(rows)
    return counts


def outcomes(*attempts: Callable[[], object]) -> list[str]:
    """Start all attempts at once, and return the result of each."""
    start = threading.Barrier(len(attempts))
    results: list[str] = []

    def attempt(act: Callable[[], object]) -> None:
        start.wait()
        try:
            act()
            results.append("won")
        except OSError as error:
            results.append(str(error))

    threads = [threading.Thread(target=attempt, args=(act,)) for act in attempts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def varint(number: int) -> bytes:
    encoded, number = bytearray(), number & (1 << 64) - 1
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    return bytes([*encoded, number])


def lance_schema(
    arrow: pa.Schema, ids: Sequence[int], base: LanceSchema | None = None
) -> LanceSchema:
    """The schema with these ids; a field of the base is changed, and keeps what Arrow cannot say.

    The last value of a protobuf scalar counts, so that appending a value changes it.
    """
    known = {} if base is None else {field.id(): written for field, _, written in fields_of(base)}
    plain = LanceSchema.from_pyarrow(arrow)
    build, (metadata, *_) = plain.__reduce__()
    fields = [
        known.get(given, b"")
        + written
        + b"\x18"
        + varint(given)
        + b"\x20"
        + varint(-1 if parent is None else ids[parent])
        for given, (_, parent, written) in zip(ids, fields_of(plain), strict=True)
    ]
    return build(metadata, *fields)


def fields_of(schema: LanceSchema) -> list[tuple[Any, int | None, bytes]]:
    """Each field with the id of its parent and its protobuf, parents before children."""

    def walk(fields: Iterable[Any], parent: int | None) -> Iterator[tuple[Any, int | None]]:
        for field in fields:
            yield field, parent
            yield from walk(field.children(), field.id())

    _, (_, *written) = schema.__reduce__()
    placed = walk(schema.fields(), None)
    return [(*place, bytes(one)) for place, one in zip(placed, written, strict=True)]


def ids_of(dataset: LanceDataset) -> list[int]:
    return [field.id() for field, _, _ in fields_of(dataset.lance_schema)]


def project(dataset: LanceDataset, schema: LanceSchema, **options: Any) -> LanceDataset:
    operation = LanceOperation.Project(schema)
    return LanceDataset.commit(dataset, operation, read_version=dataset.version, **options)


def redefine(dataset: LanceDataset, arrow: pa.Schema, ids: Sequence[int]) -> LanceDataset:
    """The same fragments under another schema."""
    fragments = [fragment.metadata for fragment in dataset.get_fragments()]
    schema = lance_schema(arrow, ids, dataset.lance_schema)
    operation = LanceOperation.Merge(fragments, schema)
    return LanceDataset.commit(dataset, operation, read_version=dataset.version)


def append(dataset: LanceDataset, rows: pa.Table, detached: bool = False) -> LanceDataset:
    operation = LanceOperation.Append(write_fragments(rows, dataset))
    return LanceDataset.commit(dataset, operation, read_version=dataset.version, detached=detached)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "table")


@pytest.fixture
def manifest(path: str) -> LanceDataset:
    return create(path, pa.concat_tables([row("head", 0), row("a", 1), row("b", 2)]))


@pytest.fixture
def root(tmp_path: Path) -> str:
    """A root with one leaf, as Phalanx writes it."""
    create(
        str(tmp_path / "__manifest"),
        manifest_rows(
            {"object_id": "__phalanx_head", "object_type": "phalanx", "metadata": "{}"},
            {"object_id": "v1", "object_type": "namespace"},
            {"object_id": "v1$k", "object_type": "namespace", "partition_field_day": 3},
            {
                "object_id": "v1$k$dataset",
                "object_type": "table",
                "location": LEAF,
                "read_version": DETACHED + 5,
            },
            {"object_id": "v1$k$dataset$1", "object_type": "table_version", "metadata": "{}"},
        ),
    )
    lance.write_dataset(pa.table({"x": [1, 2]}), str(tmp_path / LEAF))
    return str(tmp_path)


class TestStockClients:
    """Lance's directory namespace lists and reads the root of a Phalanx table."""

    def test_a_stock_manifest_has_five_columns_and_a_primary_key(self, tmp_path: Path) -> None:
        stock = lance_namespace.connect("dir", {"root": str(tmp_path)})
        stock.create_namespace(lance_namespace.CreateNamespaceRequest(id=["a"]))
        written = lance.dataset(str(tmp_path / "__manifest"))
        assert written.schema.equals(STOCK, check_metadata=True)
        assert written.metadata == {}
        assert written.data_storage_version == "2.2"

    def test_they_list_and_read(self, root: str) -> None:
        stock = lance_namespace.connect("dir", {"root": root})
        child = lance_namespace.ListNamespacesRequest(id=["v1"])
        assert stock.list_namespaces(child).namespaces == ["k"]
        tables = lance_namespace.ListTablesRequest(id=["v1", "k"])
        assert stock.list_tables(tables).tables == ["dataset"]
        leaf = lance.dataset(namespace_client=stock, table_id=["v1", "k", "dataset"])
        assert leaf.count_rows() == 2

    def test_a_location_is_relative_to_the_root_and_not_escaped(self, root: str) -> None:
        stock = lance_namespace.connect("dir", {"root": root})
        table = lance_namespace.DescribeTableRequest(id=["v1", "k", "dataset"])
        assert stock.describe_table(table).location == f"file://{root}/{LEAF}"

    def test_lancedb_reads_a_leaf(self, root: str) -> None:
        database = lancedb.connect_namespace("dir", {"root": root})
        leaf = database.open_table("dataset", namespace_path=["v1", "k"])
        assert leaf.to_arrow().to_pydict() == {"x": [1, 2]}

    def test_duckdb_reads_a_leaf_and_the_manifest(self, root: str) -> None:
        duck = duckdb.connect()
        folder = Path(duckdb_extension_lance.__file__).parent / "extensions"
        duck.execute(f"LOAD '{next(folder.glob('*/lance.duckdb_extension'))}'")
        leaf = duck.execute("SELECT sum(x) FROM __lance_scan(?)", [f"{root}/{LEAF}"])
        assert leaf.fetchall() == [(3,)]
        versions = duck.execute(
            "SELECT read_version FROM __lance_scan(?) WHERE object_type = 'table'",
            [f"{root}/__manifest"],
        )
        assert versions.fetchall() == [(DETACHED + 5,)]

    @pytest.mark.parametrize("parent", [[], ["v1", "k"]], ids=["root", "below"])
    @pytest.mark.parametrize(
        "operation", ["create_namespace", "create_table", "declare_table", "register_table"]
    )
    def test_the_writer_flag_refuses_additions(
        self, root: str, parent: list[str], operation: str
    ) -> None:
        stock, target = lance_namespace.connect("dir", {"root": root}), [*parent, "new"]
        writes = {
            "create_namespace": lambda: stock.create_namespace(
                lance_namespace.CreateNamespaceRequest(id=target)
            ),
            "create_table": lambda: stock.create_table(
                lance_namespace.CreateTableRequest(id=target), stream(pa.table({"x": [1]}))
            ),
            "declare_table": lambda: stock.declare_table(
                lance_namespace.DeclareTableRequest(id=target)
            ),
            "register_table": lambda: stock.register_table(
                lance_namespace.RegisterTableRequest(id=target, location=LEAF)
            ),
        }
        assert_refused(root, writes[operation])

    @pytest.mark.parametrize("operation", ["overwrite", "deregister", "drop"])
    def test_the_writer_flag_refuses_removals(self, root: str, operation: str) -> None:
        stock, target = lance_namespace.connect("dir", {"root": root}), ["v1", "k", "dataset"]
        writes = {
            "overwrite": lambda: stock.create_table(
                lance_namespace.CreateTableRequest(id=target, mode="overwrite"),
                stream(pa.table({"x": [1]})),
            ),
            "deregister": lambda: stock.deregister_table(
                lance_namespace.DeregisterTableRequest(id=target)
            ),
            "drop": lambda: stock.drop_table(lance_namespace.DropTableRequest(id=target)),
        }
        assert_refused(root, writes[operation])


def stream(table: pa.Table) -> bytes:
    buffer = io.BytesIO()
    with pa.ipc.new_stream(buffer, table.schema) as writer:
        writer.write_table(table)
    return buffer.getvalue()


def assert_refused(root: str, write: Callable[[], object]) -> None:
    before = {file: file.stat().st_size for file in Path(root).rglob("*")}
    with pytest.raises(UnsupportedOperationError, match="writer feature flags"):
        write()
    assert {file: file.stat().st_size for file in Path(root).rglob("*")} == before


class TestCreation:
    def test_a_clone_from_memory_brings_rows_metadata_and_key_in_one_commit(
        self, manifest: LanceDataset
    ) -> None:
        assert len(manifest.versions()) == 1
        assert manifest.metadata == WRITER_FLAGS
        assert manifest.schema.field("object_id").metadata == PRIMARY_KEY
        assert manifest.count_rows() == 3

    def test_a_clone_from_memory_has_one_winner(self, path: str) -> None:
        ended = outcomes(*[lambda: create(path, row("a"))] * 4)
        assert ended.count("won") == 1
        losses = [end for end in ended if end != "won"]
        assert all("already exists" in end or "Clone operation" in end for end in losses), losses

    def test_an_overwrite_without_retries_has_one_winner(self, path: str) -> None:
        def write() -> None:
            fragments = write_fragments(row("a"), path)
            operation = LanceOperation.Overwrite(LanceSchema.from_pyarrow(MANIFEST), fragments)
            LanceDataset.commit(path, operation, read_version=0, max_retries=0)

        assert outcomes(*[write] * 4).count("won") == 1
        assert lance.dataset(path).version == 1
        with pytest.raises(OSError, match=r"0\.manifest was not found"):
            write()

    def test_an_overwrite_with_retries_replaces_what_exists(self, path: str) -> None:
        lance.write_dataset(row("a"), path)
        operation = LanceOperation.Overwrite(LanceSchema.from_pyarrow(MANIFEST), [])
        assert LanceDataset.commit(path, operation, read_version=0).count_rows() == 0

    def test_write_fragments_makes_the_directory_before_any_commit(self, path: str) -> None:
        write_fragments(row("a"), path, mode="create")
        assert not (Path(path) / "_versions").exists()
        with pytest.raises(ValueError, match="was not found"):
            lance.dataset(path)

    def test_an_empty_dataset_is_false(self, path: str) -> None:
        assert not lance.write_dataset(MANIFEST.empty_table(), path)


class TestManifestCommits:
    """Two handles on one version: the result of the second commit."""

    def update(self, manifest: LanceDataset, name: str, offset: int | None = None) -> None:
        """One row more by hand, and one less."""
        [fragment] = manifest.get_fragments()
        operation = LanceOperation.Update(
            new_fragments=write_fragments(row(name), manifest),
            updated_fragments=[] if offset is None else [fragment.delete_rows([offset])],
        )
        LanceDataset.commit(manifest, operation, read_version=manifest.version, max_retries=0)

    @pytest.mark.parametrize("same", [False, True])
    def test_an_update_by_hand_is_refused_after_one_of_the_same_fragment(
        self, manifest: LanceDataset, same: bool
    ) -> None:
        """Lance compares fragments, not rows: two commits that replace the head row conflict."""
        late = lance.dataset(manifest.uri)
        self.update(manifest, "one", 0)
        with pytest.raises(CommitConflictError, match="preempted"):
            self.update(late, "two", 0 if same else 1)

    @pytest.mark.parametrize("offset", [None, 0])
    def test_a_merge_that_inserts_loses_against_every_commit_by_hand(
        self, manifest: LanceDataset, offset: int | None
    ) -> None:
        late = lance.dataset(manifest.uri)
        self.update(manifest, "one", offset)
        with pytest.raises(OSError, match="Too many concurrent writers"):
            merge(late, row("two"))

    def test_a_commit_by_hand_wins_against_a_merge_of_the_same_key(
        self, manifest: LanceDataset
    ) -> None:
        """A manual commit must not meet a merge: it is used only in strong mode, after the head."""
        late = lance.dataset(manifest.uri)
        merge(manifest, row("one"))
        self.update(late, "one", 0)
        assert lance.dataset(manifest.uri).count_rows("object_id = 'one'") == 2

    def test_counts_tell_what_a_merge_did(self, manifest: LanceDataset) -> None:
        rows = pa.concat_tables([row("a", 9), row("new")])
        assert merge(manifest, rows) == {
            "num_inserted_rows": 1,
            "num_updated_rows": 1,
            "num_deleted_rows": 0,
        }
        key = manifest_rows({"object_id": "new"}, schema=pa.schema([MANIFEST.field(0)]))
        assert merge(manifest, key, delete=True)["num_deleted_rows"] == 1

    def test_an_update_leaves_columns_that_it_does_not_name(self, manifest: LanceDataset) -> None:
        named = pa.schema([MANIFEST.field("object_id"), MANIFEST.field("location")])
        change = manifest_rows({"object_id": "a", "location": "there"}, schema=named)
        manifest.merge_insert("object_id").when_matched_update_all().execute(change)
        (changed,) = manifest.to_table(filter="object_id = 'a'").to_pylist()
        assert (changed["location"], changed["read_version"]) == ("there", 1)

    def test_an_insert_of_an_existing_key_is_skipped_or_refused(
        self, manifest: LanceDataset
    ) -> None:
        skipping = manifest.merge_insert("object_id").when_not_matched_insert_all()
        assert skipping.execute(row("a", 9))["num_inserted_rows"] == 0
        failing = manifest.merge_insert("object_id").when_matched_fail()
        with pytest.raises(OSError, match="found matching row"):
            failing.when_not_matched_insert_all().execute(row("a", 9))

    def test_duplicate_keys_in_the_source_are_both_inserted(self, manifest: LanceDataset) -> None:
        merge(manifest, pa.concat_tables([row("new"), row("new")]))
        assert manifest.count_rows("object_id = 'new'") == 2

    @pytest.mark.parametrize(
        ("first", "second"),
        [
            ("update", "update"),
            ("update", "delete"),
            ("delete", "update"),
            ("delete", "delete"),
            ("insert", "insert"),
        ],
    )
    def test_merges_of_one_row_conflict(
        self, manifest: LanceDataset, path: str, first: str, second: str
    ) -> None:
        late = lance.dataset(path)
        act = {
            "update": lambda dataset: merge(dataset, row("a", 7)),
            "delete": lambda dataset: merge(dataset, row("a"), delete=True),
            "insert": lambda dataset: merge(dataset, row("new")),
        }
        act[first](manifest)
        with pytest.raises(OSError, match="Too many concurrent writers"):
            act[second](late)

    def test_merges_of_disjoint_rows_both_succeed(self, manifest: LanceDataset, path: str) -> None:
        late = lance.dataset(path)
        merge(manifest, row("a", 7))
        merge(late, row("b", 8))
        assert late.count_rows("read_version IN (7, 8)") == 2

    def test_a_shared_row_is_a_fence(self, manifest: LanceDataset, path: str) -> None:
        late = lance.dataset(path)
        merge(manifest, pa.concat_tables([row("head", 1), row("x")]))
        with pytest.raises(OSError, match="Too many concurrent writers"):
            merge(late, pa.concat_tables([row("head", 1), row("y")]))

    def test_metadata_is_compared_and_swapped_by_key(
        self, manifest: LanceDataset, path: str
    ) -> None:
        late, other = lance.dataset(path), lance.dataset(path)
        manifest.update_metadata({"schema": "1"})
        with pytest.raises(OSError, match="Incompatible transaction"):
            late.update_metadata({"schema": "2"})
        other.update_metadata({"spec": "1"})
        assert lance.dataset(path).metadata == {**WRITER_FLAGS, "schema": "1", "spec": "1"}

    def test_metadata_does_not_conflict_with_merges(
        self, manifest: LanceDataset, path: str
    ) -> None:
        late = lance.dataset(path)
        merge(manifest, row("new"))
        late.update_metadata({"schema": "1"})
        assert lance.dataset(path).count_rows() == 4

    @pytest.mark.parametrize("change", ["add", "widen"])
    @pytest.mark.parametrize("first", ["change", "merge"])
    def test_a_column_change_and_a_merge_conflict_either_way(
        self, manifest: LanceDataset, path: str, change: str, first: str
    ) -> None:
        def alter(dataset: LanceDataset) -> None:
            if change == "add":
                dataset.add_columns([pa.field("partition_field_hour", pa.int32())])
            else:
                dataset.alter_columns({"path": "partition_field_day", "data_type": pa.int64()})

        late = lance.dataset(path)
        if first == "change":
            alter(manifest)
            with pytest.raises(OSError, match="Too many concurrent writers"):
                merge(late, row("new"))
        else:
            merge(manifest, row("new"))
            with pytest.raises(OSError, match="Retryable commit conflict"):
                alter(late)

    def test_a_commit_conflict_is_an_os_error(self) -> None:
        assert issubclass(CommitConflictError, OSError)


NESTED = pa.schema(
    [
        pa.field("i", pa.int32()),
        pa.field("f", pa.float32()),
        pa.field("d", pa.decimal128(5, 2)),
        pa.field("s", pa.struct([pa.field("x", pa.int32()), pa.field("y", pa.utf8())])),
        pa.field("l", pa.list_(pa.int32())),
        pa.field("m", pa.map_(pa.utf8(), pa.int32())),
        pa.field("c", pa.dictionary(pa.int8(), pa.utf8())),
        pa.field("v", pa.list_(pa.float32(), 2)),
    ]
)
NESTED_IDS = Schema.of(NESTED).ids


def nested_rows(numbers: Iterable[int], schema: pa.Schema = NESTED) -> pa.Table:
    rows = [
        {
            "i": number,
            "f": number / 2,
            "d": Decimal("1.25"),
            "s": {"x": number, "y": "why"} if number % 3 else None,
            "l": [number],
            "m": [("k", number)],
            "c": "ab"[number % 2],
            "v": [1.0, 2.0],
        }
        for number in numbers
    ]
    return pa.Table.from_pylist(rows, schema=schema)


@pytest.fixture
def leaf(path: str) -> LanceDataset:
    """Two fragments of four rows, of which one row is deleted."""
    dataset = lance.write_dataset(nested_rows(range(8)), path, max_rows_per_file=4)
    dataset.delete("i = 1")
    # The handle that wrote a dictionary keeps its values. A newly built schema does not have them.
    return lance.dataset(path)


class TestFieldIds:
    def test_a_plain_write_numbers_as_the_model_does(self, leaf: LanceDataset) -> None:
        assert ids_of(leaf) == list(NESTED_IDS) == list(range(len(NESTED_IDS)))

    def test_an_overwrite_renumbers(self, path: str) -> None:
        ids = [number + 10 for number in NESTED_IDS]
        operation = LanceOperation.Overwrite(lance_schema(NESTED, ids), [])
        assert ids_of(LanceDataset.commit(path, operation)) == list(NESTED_IDS)

    def test_a_projected_empty_leaf_keeps_given_ids_through_clone_and_append(
        self, path: str
    ) -> None:
        ids = [100 - 2 * number for number in NESTED_IDS]
        staged = lance.write_dataset(NESTED.empty_table(), f"memory://{uuid4().hex}")
        staged = project(staged, lance_schema(NESTED, ids))
        created = staged.deep_clone(path, staged.version)
        created = append(created, nested_rows(range(3)))
        created = lance.write_dataset(nested_rows(range(3, 6)), created, mode="append")
        assert ids_of(created) == ids
        assert created.to_table().to_pylist() == nested_rows(range(6)).to_pylist()
        for fragment in created.get_fragments():
            assert set(fragment.metadata.files[0].fields) <= set(ids)

    def test_one_merge_drops_renames_and_adds_at_any_depth(self, leaf: LanceDataset) -> None:
        target = pa.schema(
            [
                pa.field("number", pa.int32()),
                pa.field("s", pa.struct([pa.field("x", pa.int32()), pa.field("z", pa.int64())])),
                pa.field("new", pa.utf8()),
            ]
        )
        changed = redefine(leaf, target, [0, 3, 4, 50, 51])
        assert ids_of(changed) == [0, 3, 4, 50, 51]
        added = {"number": 9, "s": {"x": 9, "z": 9}, "new": "n"}
        changed = append(changed, pa.Table.from_pylist([added], schema=target))
        assert changed.to_table().to_pylist() == [
            {"number": number, "s": {"x": number, "z": None} if number % 3 else None, "new": None}
            for number in (0, 2, 3, 4, 5, 6, 7)
        ] + [added]
        assert changed.count_rows("`s`.`z` = 9 AND new = 'n'") == 1

    def test_a_merge_must_repeat_the_mark_of_a_written_dictionary(self, leaf: LanceDataset) -> None:
        fragments = [fragment.metadata for fragment in leaf.get_fragments()]
        operation = LanceOperation.Merge(fragments, lance_schema(NESTED, NESTED_IDS))
        with pytest.raises(OSError, match=r"changes field id .* dictionary"):
            LanceDataset.commit(leaf, operation, read_version=leaf.version)

    def test_a_dropped_id_that_is_not_reused_stays_unread(self, leaf: LanceDataset) -> None:
        dropped = redefine(leaf, pa.schema([NESTED.field("i")]), [0])
        again = redefine(dropped, pa.schema([NESTED.field("i"), NESTED.field("f")]), [0, 60])
        assert again.to_table().column("f").null_count == 7

    def test_structs_lose_their_validity_with_their_last_stored_child(self, path: str) -> None:
        before = pa.schema([pa.field("s", pa.struct([pa.field("x", pa.int8())]))])
        dataset = lance.write_dataset(pa.Table.from_pylist([{"s": {"x": 1}}], schema=before), path)
        after = pa.schema([pa.field("s", pa.struct([pa.field("z", pa.int8())]))])
        assert redefine(dataset, after, [0, 9]).to_table().to_pylist() == [{"s": None}]

    def test_a_promotion_keeps_ids_fragments_and_deletions(self, leaf: LanceDataset) -> None:
        leaf.create_scalar_index("i", "BTREE")
        wide = {"i": pa.int64(), "f": pa.float64(), "d": pa.decimal128(20, 2)}
        wide["s"] = pa.struct([pa.field("x", pa.int64()), pa.field("y", pa.utf8())])
        wide |= {"l": pa.list_(pa.int64()), "m": pa.map_(pa.utf8(), pa.int64())}
        target = pa.schema([pa.field(f.name, wide.get(f.name, f.type)) for f in NESTED])
        promoted = promote(leaf, target, list(wide))
        assert promoted.schema.equals(target)
        assert ids_of(promoted) == list(NESTED_IDS)
        expected = nested_rows([0, *range(2, 8)]).to_pylist()
        assert promoted.to_table().to_pylist() == expected
        assert promoted.count_rows("i = 5") == 1
        assert [f.metadata.num_deletions for f in promoted.get_fragments()] == [1, 0]
        large = nested_rows([2**40], target)
        assert append(promoted, large).to_table().to_pylist() == expected + large.to_pylist()

    @pytest.mark.parametrize("change", ["promotion", "rename"])
    def test_rows_prepared_before_a_schema_change_are_refused(
        self, leaf: LanceDataset, path: str, change: str
    ) -> None:
        fragments = write_fragments(nested_rows([9]), leaf)
        if change == "rename":
            renamed = [pa.field("number", pa.int32()), *list(NESTED)[1:]]
            redefine(leaf, pa.schema(renamed), NESTED_IDS)
        else:
            promote(leaf, NESTED.set(0, pa.field("i", pa.int64())), ["i"])
        with pytest.raises(CommitConflictError, match="Retryable"):
            LanceDataset.commit(path, LanceOperation.Append(fragments), read_version=leaf.version)

    def test_a_schema_change_prepared_before_an_append_is_refused(
        self, leaf: LanceDataset, path: str
    ) -> None:
        append(lance.dataset(path), nested_rows([9]))
        with pytest.raises(CommitConflictError, match="Retryable"):
            redefine(leaf, NESTED, NESTED_IDS)


def promote(leaf: LanceDataset, target: pa.Schema, columns: list[str]) -> LanceDataset:
    """The columns in their new type, each fragment's in one more file of that fragment."""
    schema = lance_schema(target, NESTED_IDS, leaf.lance_schema)
    numbering = project(leaf, schema, detached=True)
    part = pa.schema([target.field(name) for name in columns])
    fragments = []
    for fragment in leaf.get_fragments():
        # Deleted rows are rewritten too: row addresses and the deletion file stay valid.
        scanner = leaf.scanner(
            columns, fragments=[fragment], with_row_id=True, include_deleted_rows=True
        )
        cast = scanner.to_table().select(columns).cast(part)
        (written,) = write_fragments(cast, numbering)
        replaced, kept = set(written.files[0].fields), []
        for file in map(copy.copy, fragment.metadata.files):
            file.fields = [-2 if number in replaced else number for number in file.fields]
            kept.append(file)
        files = [*kept, *written.files]
        fragments.append(dataclasses.replace(fragment.metadata, files=files))
    operation = LanceOperation.Merge(fragments, schema)
    return LanceDataset.commit(leaf, operation, read_version=leaf.version)


class TestLeaves:
    def test_rows_are_deleted_by_address(self, leaf: LanceDataset) -> None:
        found = leaf.scanner(["i"], filter="i IN (0, 2, 5)", with_row_address=True).to_table()
        addresses = found.column("_rowaddr").to_numpy()
        changed = []
        for fragment in leaf.get_fragments():
            inside = addresses[addresses >> np.uint64(32) == fragment.fragment_id]
            changed.append(fragment.delete_rows((inside & np.uint64(0xFFFFFFFF)).tolist()))
        operation = LanceOperation.Delete(changed, [], "by address")
        after = LanceDataset.commit(leaf, operation, read_version=leaf.version)
        assert after.to_table(columns=["i"]).column("i").to_pylist() == [3, 4, 6, 7]

    def test_deleting_all_rows_of_a_fragment_gives_none(self, leaf: LanceDataset) -> None:
        assert leaf.get_fragments()[1].delete_rows(range(4)) is None
        assert leaf.get_fragments()[1].delete("true") is None

    def test_deletions_of_one_fragment_by_address_conflict(
        self, leaf: LanceDataset, path: str
    ) -> None:
        first, second = (leaf.get_fragments()[0].delete_rows([offset]) for offset in (2, 3))
        LanceDataset.commit(path, LanceOperation.Delete([first], [], ""), read_version=leaf.version)
        with pytest.raises(CommitConflictError, match="Retryable"):
            LanceDataset.commit(
                path, LanceOperation.Delete([second], [], ""), read_version=leaf.version
            )

    def test_sizes_and_counts_come_from_metadata(self, leaf: LanceDataset, path: str) -> None:
        fragments = [fragment.metadata for fragment in leaf.get_fragments()]
        counts = [(one.physical_rows, one.num_deletions, one.num_rows) for one in fragments]
        assert counts == [(4, 1, 3), (4, 0, 4)]
        files = [file for one in fragments for file in one.files]
        on_disk = sum(file.stat().st_size for file in (Path(path) / "data").iterdir())
        assert sum(file.file_size_bytes for file in files) == on_disk

    def test_a_stream_of_batches_is_regrouped_into_files(self, path: str) -> None:
        batches = pa.table({"x": range(100)}).to_batches(max_chunksize=10)
        reader = pa.RecordBatchReader.from_batches(batches[0].schema, iter(batches))
        written = write_fragments(reader, path, mode="create", max_rows_per_file=60)
        assert [fragment.physical_rows for fragment in written] == [60, 40]

    def test_no_rows_make_no_fragment(self, path: str) -> None:
        assert write_fragments(NESTED.empty_table(), path, mode="create") == []

    def test_rows_of_another_type_are_refused(self, leaf: LanceDataset) -> None:
        with pytest.raises(OSError, match="should have type int32 but type was int64"):
            write_fragments(nested_rows([9], NESTED.set(0, pa.field("i", pa.int64()))), leaf)

    def test_dictionaries_may_differ_between_appends(self, path: str) -> None:
        words = [pa.array(text).dictionary_encode() for text in (["a", "b"], ["z", "a"])]
        dataset = lance.write_dataset(pa.table({"c": words[0]}), path)
        dataset = append(dataset, pa.table({"c": words[1]}))
        assert dataset.to_table().column("c").to_pylist() == ["a", "b", "z", "a"]
        assert dataset.count_rows("c = 'a'") == 2


class TestDetachedVersions:
    def test_one_can_be_the_base_of_the_next_and_main_stays(
        self, leaf: LanceDataset, path: str
    ) -> None:
        first = append(leaf, nested_rows([8]), detached=True)
        second = append(first, nested_rows([9]), detached=True)
        assert first.version & second.version & DETACHED
        assert lance.dataset(path, version=second.version).count_rows() == 9
        assert lance.dataset(path).count_rows() == 7

    def test_schemas_change_and_rows_go_detached(self, leaf: LanceDataset, path: str) -> None:
        renamed = pa.schema([pa.field("number", pa.int32())])
        projected = project(leaf, lance_schema(renamed, [0]), detached=True)
        changed = projected.get_fragments()[0].delete("number = 2")
        deletion = LanceOperation.Delete([changed], [], "")
        after = LanceDataset.commit(
            projected, deletion, read_version=projected.version, detached=True
        )
        assert after.to_table().column("number").to_pylist() == [0, 3, 4, 5, 6, 7]
        assert lance.dataset(path).schema.names == NESTED.names

    def test_restore_publishes_one_and_never_conflicts(self, leaf: LanceDataset, path: str) -> None:
        ours = append(leaf, nested_rows([8]), detached=True)
        append(lance.dataset(path), nested_rows([20, 21, 22]))
        LanceDataset.commit(path, LanceOperation.Restore(ours.version))
        assert lance.dataset(path).count_rows() == 8

    def test_a_manifest_under_the_next_number_is_the_next_version(
        self, leaf: LanceDataset, path: str
    ) -> None:
        """`restore_as_next` puts it there, and everything else goes on as after a `Restore`."""
        leaf.create_scalar_index("i", "BTREE")
        main = lance.dataset(path)
        ours = append(main, nested_rows([8]), detached=True)
        restored = LanceDataset.commit(
            main,
            LanceOperation.Restore(ours.version),
            read_version=main.version,
            detached=True,
            commit_message="a message",
        )
        folder, number = Path(path, "_versions"), main.version + 1
        manifest = set_manifest_version(
            (folder / f"d{restored.version}.manifest").read_bytes(), number
        )
        (folder / f"{(1 << 64) - 1 - number:020}.manifest").write_bytes(manifest)
        found = lance.dataset(path)
        assert (found.version, found.to_table()) == (number, ours.to_table())

        def segments(dataset: LanceDataset) -> list[tuple[str, set[int]]]:
            indexes = dataset.describe_indices()
            return [(one.uuid, set(one.fragment_ids)) for each in indexes for one in each.segments]

        assert segments(found) == segments(ours) != []
        transaction = found.read_transaction(number)
        assert transaction.operation.version == ours.version
        assert "a message" in transaction.transaction_properties.values()
        # A writer that has not seen it must look again, and one that has continues.
        with pytest.raises((CommitConflictError, OSError), match="Restore"):
            append(main, nested_rows([9]))
        append(found, nested_rows([9]))
        assert lance.dataset(path).count_rows() == found.count_rows() + 1

    def test_they_need_retries(self, leaf: LanceDataset) -> None:
        with pytest.raises(CommitConflictError, match="after 0 retries"):
            project(leaf, leaf.lance_schema, detached=True, max_retries=0)

    def test_clean_up_deletes_the_files_of_detached_versions(
        self, leaf: LanceDataset, path: str
    ) -> None:
        ours = append(leaf, nested_rows([8]), detached=True)
        lance.dataset(path).cleanup_old_versions(timedelta(0), delete_unverified=True)
        with pytest.raises((OSError, ValueError), match=r"(?i)not found"):
            lance.dataset(path, version=ours.version).to_table()

    def test_the_same_transaction_twice_appends_twice(self, leaf: LanceDataset, path: str) -> None:
        fragments = write_fragments(nested_rows([8]), leaf)
        transaction = lance.Transaction(leaf.version, LanceOperation.Append(fragments))
        LanceDataset.commit(path, transaction)
        assert LanceDataset.commit(path, transaction).count_rows() == 9


EXACT = [
    *[pa.bool_(), pa.int8(), pa.uint16(), pa.uint64(), pa.float16(), pa.float32(), pa.float64()],
    *[pa.decimal128(20, 2), pa.decimal256(50, 2), pa.utf8(), pa.large_utf8(), pa.binary()],
    *[pa.large_binary(), pa.binary(3), pa.date32(), pa.date64(), pa.time32("ms"), pa.time64("ns")],
    *[pa.timestamp("s"), pa.timestamp("ms", "UTC"), pa.timestamp("us", "Europe/Paris")],
    *[pa.timestamp("ns", "+02:00"), pa.duration("us"), pa.null(), pa.list_(pa.int8())],
    *[pa.large_list(pa.utf8()), pa.list_(pa.field("element", pa.int8(), False))],
    *[pa.list_(pa.float32(), 2), pa.list_(pa.list_(pa.int8(), 2), 2), pa.list_(pa.bool_(), 3)],
    *[pa.struct([pa.field("a", pa.int8())]), pa.map_(pa.int32(), pa.utf8())],
    *[pa.dictionary(pa.int8(), pa.utf8()), pa.dictionary(pa.int32(), pa.int64())],
]
REFUSED = [
    (pa.decimal32(5, 2), "Unsupported data type: Decimal32"),
    (pa.decimal64(12, 2), "Unsupported data type: Decimal64"),
    (pa.map_(pa.utf8(), pa.int8(), keys_sorted=True), "keys_sorted=true"),
    (pa.list_(pa.list_(pa.int8()), 2), "Unsupported data type: FixedSizeList"),
]


class TestTypes:
    def test_these_come_back_exactly(self, path: str) -> None:
        schema = pa.schema([pa.field(f"c{number}", kind) for number, kind in enumerate(EXACT)])
        dataset = lance.write_dataset(schema.empty_table(), path)
        rows = pa.table([pa.nulls(2, kind) for kind in EXACT], schema=schema)
        assert append(dataset, rows).to_table().equals(rows)

    @pytest.mark.parametrize(("kind", "message"), REFUSED, ids=lambda value: str(value))
    def test_these_are_refused(self, path: str, kind: pa.DataType, message: str) -> None:
        with pytest.raises(OSError, match=message):
            lance.write_dataset(pa.schema([pa.field("c", kind)]).empty_table(), path)

    def test_fixed_size_lists_of_structs_cannot_be_read_with_other_columns(self, path: str) -> None:
        pairs = pa.list_(pa.struct([pa.field("a", pa.int8())]), 2)
        schema = pa.schema([pa.field("k", pa.int8()), pa.field("c", pairs)])
        rows = pa.Table.from_pylist([{"k": 1, "c": [{"a": 1}, {"a": 2}]}], schema=schema)
        dataset = lance.write_dataset(rows, path)
        with pytest.raises(pa.ArrowInvalid, match="differing lengths"):
            dataset.to_table()

    def test_a_dictionary_forgets_that_it_is_ordered(self, path: str) -> None:
        ordered = pa.schema([pa.field("c", pa.dictionary(pa.int8(), pa.utf8(), ordered=True))])
        written = lance.write_dataset(ordered.empty_table(), path)
        assert not written.schema.field("c").type.ordered

    def test_names_with_a_dot_and_row_ids_are_refused(self, path: str) -> None:
        with pytest.raises(OSError, match="cannot contain"):
            lance.write_dataset(pa.table({"a.b": [1]}), path)
        with pytest.raises(OSError, match="reserved name"):
            lance.write_dataset(pa.table({"_rowid": [1]}), path)


@pytest.fixture(scope="module")
def options() -> Iterator[dict[str, str]]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    options = {
        "aws_access_key_id": "key",
        "aws_secret_access_key": "secret",
        "aws_endpoint": f"http://{host}:{port}",
        "aws_region": "us-east-1",
        "allow_http": "true",
    }
    client = boto3.client(
        "s3",
        endpoint_url=options["aws_endpoint"],
        region_name=options["aws_region"],
        aws_access_key_id=options["aws_access_key_id"],
        aws_secret_access_key=options["aws_secret_access_key"],
    )
    client.create_bucket(Bucket="bucket")
    yield options
    server.stop()


class TestObjectStore:
    def test_creation_has_one_winner(self, options: dict[str, str]) -> None:
        ended = outcomes(*[lambda: create("s3://bucket/created", row("a"), options)] * 4)
        assert ended.count("won") == 1

    def test_merges_of_one_row_have_one_winner(self, options: dict[str, str]) -> None:
        uri = "s3://bucket/merged"
        create(uri, row("head"), options)
        handles = [lance.dataset(uri, storage_options=options) for _ in range(4)]
        ended = outcomes(*[lambda one=one: merge(one, row("head", 1)) for one in handles])
        assert ended.count("won") == 1
        assert all("Too many concurrent" in end for end in ended if end != "won"), ended


def test_the_transaction_of_a_compaction_of_indexed_rows_lacks_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where this fails, the defaults that `storage.location` gives the class can go."""
    place = str(tmp_path / "t")
    for number in range(2):
        lance.write_dataset(pa.table({"i": [number]}), place, mode="append")
    dataset = lance.dataset(place)
    dataset.create_scalar_index("i", "BTREE")
    dataset.optimize.compact_files()
    made = dataset.read_transaction(dataset.version)
    assert isinstance(made.operation, LanceOperation.Rewrite)
    assert len(made.operation.groups) == len(made.operation.rewritten_indices) == 1
    monkeypatch.setattr(LanceOperation.RewrittenIndex.__init__, "__defaults__", None)
    with pytest.raises(TypeError, match="missing 3 required positional arguments"):
        dataset.read_transaction(dataset.version)


def test_the_message_of_a_commit_stays_with_it(tmp_path: Path) -> None:
    """Lance keeps the message when it rebases a commit onto another: marks depend on it."""
    path = str(tmp_path / "leaf")
    base = lance.write_dataset(pa.table({"n": [1]}), path)
    files = [write_fragments(pa.table({"n": [n]}), base) for n in (2, 3)]
    for number, new in enumerate(files):
        LanceDataset.commit(
            base, LanceOperation.Append(new), read_version=1, commit_message=f"mark {number}"
        )
    dataset = lance.dataset(path)
    messages = [
        (dataset.read_transaction(version).transaction_properties or {}).get(
            "__lance_commit_message"
        )
        for version in (1, 2, 3)
    ]
    assert messages == [None, "mark 0", "mark 1"]


def test_damage_that_aborts_the_process(tmp_path: Path) -> None:
    """A flipped bit in the footer of a deletion file changes a length; no handler can catch it.

    Found by flipping bits of every kind of file: deletion files abort by the lengths of their Arrow
    footer (18 of 2,500 flips of a small one), while data files and versions raised or panicked
    instead (none of 2,500 flips each).
    """
    place = str(tmp_path / "table")
    dataset = lance.write_dataset(pa.table({"n": list(range(20))}), place)
    dataset.delete("n IN (3, 4)")
    [path] = (tmp_path / "table" / "_deletions").glob("*.arrow")
    data = bytearray(path.read_bytes())
    data[5437 // 8] ^= 1 << (5437 % 8)
    path.write_bytes(data)
    read = f"import lance; lance.dataset({place!r}).to_table()"
    ended = subprocess.run([sys.executable, "-c", read], capture_output=True, timeout=120)
    assert ended.returncode == -signal.SIGABRT
    assert b"memory allocation of" in ended.stderr
    # Arrow's own reader, which verify asks first, says what is wrong.
    with pytest.raises((OSError, pa.ArrowException)):
        pa.ipc.open_file(pa.py_buffer(bytes(data))).read_all().validate(full=True)
