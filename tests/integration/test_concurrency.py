"""Concurrent writers: no row is lost or duplicated, and the loser of a race gets an error."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import lance
import pyarrow as pa
import pytest

import phalanx
from integration.scripted import serve
from integration.stores import Store
from phalanx.model.schema.schema import Schema
from phalanx.storage.commit import writing
from phalanx.storage.leaf import leaf
from phalanx.storage.manifest.changes import change_properties
from phalanx.storage.manifest.manifest import Manifest
from phalanx.table import evolution as changes
from phalanx.table.handle import handle_of
from processes import SERVER

SCHEMA = pa.schema([("k", pa.int32()), ("writer", pa.int32()), ("n", pa.int32())])


@pytest.fixture(scope="module")
def workers() -> Iterator[list[Connection]]:
    """Processes that run given scripts."""
    ours, processes = [], []
    for _ in range(8):
        mine, theirs = SERVER.Pipe()
        process = SERVER.Process(target=serve, args=(theirs,))
        process.start()
        theirs.close()
        ours.append(mine)
        processes.append(process)
    yield ours
    for connection, process in zip(ours, processes, strict=True):
        connection.close()
        process.join(60)
        assert process.exitcode == 0


@dataclass(frozen=True)
class Race:
    """Starts a script in several processes at the same time."""

    workers: list[Connection]
    root: str
    store: Store

    def __call__(self, count: int, script: str) -> list[list[str]]:
        """Return the output of each process."""
        running = self.workers[:count]
        for number, process in enumerate(running):
            job = {"root": self.root, "options": self.store.storage_options, "number": number}
            process.send({**job, "script": textwrap.dedent(script)})
        for process in running:
            assert process.recv() == ["ready"]
        for process in running:
            process.send("go")
        answers = [process.recv() for process in running]
        assert "broke" not in [answer for answer, _ in answers], answers
        return answers


@pytest.fixture
def race(workers: list[Connection], root: str, store: Store) -> Race:
    return Race(workers, root, store)


def create_table(root: str, store: Store, **options: Any) -> phalanx.Table:
    return phalanx.create(
        root, SCHEMA, options.get("by", ["k"]), storage_options=store.storage_options
    )


def check_leaves(table: phalanx.Table, store: Store) -> None:
    """Check that each key has one leaf, listed in the manifest, with the table's field ids."""
    partitions = table.partitions()
    keys = partitions.drop_columns(["location", "read_version", "rows", "bytes"]).to_pylist()
    assert Counter(map(str, keys)).most_common(1)[0][1] == 1
    listed = {location.rsplit("/", 1)[1] for location in partitions.column("location").to_pylist()}
    assert store.folders(table.uri) == {*listed, "__manifest"}
    ids = Schema.of(table.schema).ids
    for location in partitions.column("location").to_pylist():
        dataset = lance.dataset(location, storage_options=store.storage_options)
        assert tuple(f.id() for f in dataset.lance_schema.fields()) == ids


def test_appends_into_overlapping_new_partitions(root: str, store: Store, race: Race) -> None:
    writers, batches = (8, 50) if store.storage_options is None else (3, 5)
    table = create_table(root, store)
    answers = race(
        writers,
        f"""
        held = table()
        wait()
        def change():
            for batch in range({batches}):
                keys = [batch % 10, (batch + number) % 10 + 10]
                held.append(rows(k=keys, writer=[number] * 2, n=[batch] * 2))
        attempt(change)
        """,
    )
    assert [answer for answer, _ in answers] == ["won"] * writers, answers
    found = table.scan().to_arrow()
    assert found.num_rows == table.scan().count_rows() == writers * batches * 2
    written = Counter(zip(*(found.column(c).to_pylist() for c in ("writer", "n")), strict=True))
    assert set(written.values()) == {2}
    assert table.partitions().num_rows == len(set(found.column("k").to_pylist()))
    check_leaves(table, store)


def test_of_racing_evolutions_one_wins(root: str, store: Store, race: Race) -> None:
    table = create_table(root, store)
    table.append(rows_of([1, 2, 3]))
    answers = race(
        3,
        """
        held = table()
        held.spec
        wait()
        terms = ["writer", "bucket(4, n)", "truncate(5, n)"]
        attempt(lambda: held.evolve(terms[number]))
        """,
    )
    outcomes = Counter(answer for answer, _ in answers)
    assert set(outcomes) <= {"won", "CommitConflict"}
    assert len(table.specs) == 1 + outcomes["won"]
    assert outcomes["won"] >= 1
    table.append(rows_of([4]))
    assert sorted(table.scan().to_arrow().column("k").to_pylist()) == [1, 2, 3, 4]


def test_of_two_evolutions_prepared_at_once_the_second_is_refused(root: str, store: Store) -> None:
    """The same race, in a fixed order."""
    table = create_table(root, store)
    other = phalanx.open(root, storage_options=store.storage_options)
    manifest = handle_of(other).state
    table.evolve("writer")
    with pytest.raises(phalanx.CommitConflict, match="another writer changed"):
        changes.evolve(manifest, "bucket(4, n)")
    with pytest.raises(phalanx.CommitConflict, match="another writer changed"):
        change_properties(manifest, manifest.properties)
    assert len(table.specs) == 2


def test_racing_schema_changes(root: str, store: Store, race: Race) -> None:
    table = create_table(root, store)
    table.append(rows_of(range(6)))
    answers = race(
        4,
        """
        held = table()
        held.schema
        wait()
        changes = [
            lambda: held.add_column(pa.field("extra", pa.string())),
            lambda: held.rename_column("n", "m"),
            lambda: held.promote_column("writer", pa.int64()),
            lambda: held.promote_column("k", pa.int64()),
        ]
        attempt(changes[number])
        """,
    )
    outcomes = [answer for answer, _ in answers]
    assert set(outcomes) <= {"won", "CommitConflict"}, answers
    assert "won" in outcomes
    schema = phalanx.open(root, storage_options=store.storage_options).schema
    assert ("extra" in schema.names) == (outcomes[0] == "won")
    assert ("m" in schema.names) == (outcomes[1] == "won")
    assert (schema.field("writer").type == pa.int64()) == (outcomes[2] == "won")
    assert (schema.field("k").type == pa.int64()) == (outcomes[3] == "won")
    assert sorted(table.scan().to_arrow().column("k").to_pylist()) == list(range(6))
    check_leaves(table, store)


CHANGES = {
    "rename": 'held.rename_column("n" if turn % 2 == 0 else "m", "m" if turn % 2 == 0 else "n")',
    "promote": 'held.promote_column("writer", [pa.int64()][turn])',
    "add": 'held.add_column(pa.field(f"extra{turn}", pa.string()))',
    "evolve": 'held.evolve(["writer", "k, writer", "n", "k"][turn % 4])',
}


@pytest.mark.parametrize("change", list(CHANGES))
def test_appends_race_with_a_change(root: str, store: Store, race: Race, change: str) -> None:
    """An append adds all its rows, or is refused and adds none."""
    table = create_table(root, store)
    table.append(rows_of([0]))
    turns = 1 if change == "promote" else 4
    answers = race(
        3,
        f"""
        held = table()
        held.spec
        wait()
        def change():
            for turn in range({turns}):
                {CHANGES[change]}
        def append():
            done = []
            for batch in range(12):
                schema = held.schema
                columns = [
                    pa.array([batch % 4 + 1] if name == "k" else [None] if name.startswith("extra")
                             else [number] if name == "writer" else [batch], kind)
                    for name, kind in zip(schema.names, schema.types)
                ]
                data = pa.table(columns, names=schema.names)
                try:
                    held.append(data)
                    done.append(batch)
                except phalanx.CommitConflict:
                    pass
                except phalanx.SchemaMismatch:
                    pass  # the schema changed between the question and the call
            say("won", json.dumps(done))
        attempt(change) if number == 0 else append()
        """,
    )
    assert answers[0][0] == "won", answers
    expected = Counter({(0, 0): 1})
    for number, (_, done) in enumerate(answers[1:], start=1):
        expected += Counter((number, batch) for batch in json.loads(done))
    fresh = phalanx.open(root, storage_options=store.storage_options)
    last = "n" if "n" in fresh.schema.names else "m"
    found = fresh.scan().to_arrow()
    assert (
        Counter(zip(*(found.column(c).to_pylist() for c in ("writer", last)), strict=True))
        == expected
    )
    assert fresh.scan().count_rows() == expected.total()
    fresh.append(
        pa.table(
            [
                pa.array([9], t) if pa.types.is_integer(t) else pa.nulls(1, t)
                for t in fresh.schema.types
            ],
            names=fresh.schema.names,
        )
    )
    assert fresh.scan().count_rows() == expected.total() + 1


def test_of_racing_creates_one_wins(root: str, store: Store, race: Race) -> None:
    answers = race(
        4,
        """
        schema = pa.schema([("k", pa.int32()), (f"mine_{number}", pa.int32())])
        wait()
        attempt(lambda: phalanx.create(root, schema, ["k"], storage_options=options))
        """,
    )
    outcomes = Counter(answer for answer, _ in answers)
    assert outcomes == {"won": 1, "PhalanxError": 3}
    assert all("a namespace exists there" in text for answer, text in answers if answer != "won")
    winner = [answer for answer, _ in answers].index("won")
    assert phalanx.open(root, storage_options=store.storage_options).schema.names == [
        "k",
        f"mine_{winner}",
    ]


def test_a_writer_whose_specs_are_outdated_removes_no_leaf(
    root: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer evolves just after the new partitions are in the manifest."""
    table = create_table(root, store)
    insert = writing.insert_rows

    def insert_and_evolve(manifest: Manifest, rows: pa.Table) -> None:
        insert(manifest, rows)
        monkeypatch.setattr(writing, "insert_rows", insert)
        phalanx.open(root, storage_options=store.storage_options).evolve("writer")

    monkeypatch.setattr(writing, "insert_rows", insert_and_evolve)
    with pytest.raises(phalanx.CommitConflict):
        table.append(rows_of([1, 2]))
    assert table.scan().count_rows() == 0
    table.append(rows_of([1, 2]))
    assert table.scan().to_arrow().column("k").to_pylist() == [1, 2]


@pytest.mark.parametrize("mode", ["weak", "strong"])
def test_a_table_that_evolves_while_its_rows_come_in(root: str, store: Store, mode: str) -> None:
    table = create_table(root, store)
    table.set_mode(mode)
    table.append(rows_of([1]))

    def batches() -> Iterator[pa.RecordBatch]:
        yield from rows_of([2]).to_batches()
        table.evolve("bucket(4, n)")
        yield from rows_of([3]).to_batches()

    with pytest.raises(phalanx.CommitConflict, match="changed its schema or its specs"):
        table.append(pa.RecordBatchReader.from_batches(table.schema, batches()))
    assert table.scan().count_rows() == table.plan().total_partitions == 1


def test_a_late_delete_does_not_undo_a_schema_change(
    root: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leaf that has the new schema keeps it."""
    table = create_table(root, store)
    table.append(rows_of([1, 2]))
    commit = leaf.apply_change

    def change_then_commit(*arguments: Any, **named: Any) -> int:
        monkeypatch.setattr(leaf, "apply_change", commit)
        phalanx.open(root, storage_options=store.storage_options).promote_column("n", pa.int64())
        return commit(*arguments, **named)

    monkeypatch.setattr(leaf, "apply_change", change_then_commit)
    with pytest.raises(phalanx.CommitConflict):
        table.delete("k = 1")
    check_leaves(table, store)
    assert table.delete("k = 1") == 1
    assert table.scan().to_arrow().schema.field("n").type == pa.int64()


def test_of_racing_overwrites_of_a_partition_one_stays(root: str, store: Store, race: Race) -> None:
    table = create_table(root, store)
    table.append(rows_of([1]))
    answers = race(
        2,
        """
        held = table()
        held.schema
        wait()
        attempt(lambda: held.overwrite_partitions(rows(k=[1, 1], writer=[number] * 2, n=[7, 8])))
        """,
    )
    assert [answer for answer, _ in answers] == ["won", "won"]
    found = table.scan().to_arrow()
    assert found.column("n").to_pylist() == [7, 8]
    assert len(set(found.column("writer").to_pylist())) == 1


def test_of_racing_overwrites_of_an_empty_partition_one_stays(
    root: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both overwrites find nothing to replace, and the second commits after the first."""
    table = create_table(root, store)
    table.append(rows_of([1, 2]))
    table.delete("k = 1")
    deletion = leaf.write_deletions

    def find_and_be_overtaken(*arguments: Any) -> Any:
        found = deletion(*arguments)
        monkeypatch.setattr(leaf, "write_deletions", deletion)
        other = phalanx.open(root, storage_options=store.storage_options)
        other.overwrite_partitions(rows_of([1, 1, 1]))
        return found

    monkeypatch.setattr(leaf, "write_deletions", find_and_be_overtaken)
    table.overwrite_partitions(rows_of([1, 1]))
    assert table.scan().to_arrow().column("k").to_pylist() == [1, 1, 2]


def rows_of(keys: Any) -> pa.Table:
    keys = list(keys)
    return pa.table(
        [
            pa.array(keys, pa.int32()),
            pa.array([0] * len(keys), pa.int32()),
            pa.array([0] * len(keys), pa.int32()),
        ],
        schema=SCHEMA,
    )
