"""The main paths on an object store, through the protocol of S3."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta

import lance
import pyarrow as pa
import pytest

import phalanx
import tables
from integration.stores import Store

SCHEMA = pa.schema([("id", pa.int32()), ("country", pa.string()), ("price", pa.float32())])


def rows(ids: range, country: str | None = "US") -> pa.Table:
    count = len(ids)
    return pa.table(
        [pa.array(ids, pa.int32()), [country] * count, pa.array([0.5] * count, pa.float32())],
        schema=SCHEMA,
    )


@pytest.fixture
def table(s3: Store) -> phalanx.Table:
    return phalanx.create(s3.fresh(), SCHEMA, ["country"], storage_options=s3.storage_options)


def ids(table: phalanx.Table, where: str | None = None) -> list[int]:
    found: list[int] = sorted(table.scan(where, ["id"]).to_arrow()["id"].to_pylist())
    return found


def test_rows_come_and_go(table: phalanx.Table, s3: Store) -> None:
    table.append(rows(range(4)))
    table.append(rows(range(4, 6), "a/b=c $%😀"))
    table.append(rows(range(6, 8), None))
    fresh = phalanx.open(table.uri + "/", storage_options=s3.storage_options)
    assert ids(fresh) == list(range(8))
    assert ids(fresh, "country = 'US' AND id > 1") == [2, 3]
    plan = fresh.plan("country = 'US'")
    assert (len(plan.partitions), plan.total_partitions) == (1, 3)
    assert plan.partitions[0].location.startswith(table.uri)
    assert "reads 1 of 3 partitions" in str(plan)
    assert fresh.partitions()["rows"].to_pylist() == [4, 2, 2]
    assert fresh.partition(country=None).count_rows() == 2
    assert fresh.delete("id IN (0, 7)") == 2
    fresh.overwrite_partitions(rows(range(20, 22)))
    assert ids(fresh) == [4, 5, 6, 20, 21]
    fresh.overwrite(rows(range(30, 31), "FR"), "country = 'FR' OR country IS NULL")
    assert ids(table) == [4, 5, 20, 21, 30]


@pytest.mark.parametrize("prefixed", [True, False])
def test_options_come_from_the_environment_too(
    s3: Store, monkeypatch: pytest.MonkeyPatch, prefixed: bool
) -> None:
    """Phalanx's own listing and publishing take what Lance takes, such as plain HTTP."""
    assert s3.storage_options is not None
    names = {name.lower().removeprefix("aws_"): text for name, text in s3.storage_options.items()}
    options = None
    if prefixed:
        for name, text in names.items():
            monkeypatch.setenv(f"AWS_{name.upper()}", text)
    else:
        options = {f"aws_{name}": text for name, text in names.items()}
    table = phalanx.create(
        s3.fresh(), SCHEMA, ["country"], transaction="strong", storage_options=options
    )
    table.append(rows(range(4)))
    table.append(rows(range(4, 6)))
    main = lance.dataset(table.plan().partitions[0].location, storage_options=options)
    assert main.count_rows() == table.scan().count_rows() == 6
    table.vacuum(timedelta(0))
    assert ids(table) == list(range(6))


def test_changes_are_reported(table: phalanx.Table, s3: Store) -> None:
    table.set_mode("strong")
    table.append(rows(range(4)))
    table.update("id < 2", {"id": "id + 10", "country": "'FR'"})
    fresh = phalanx.open(table.uri, storage_options=s3.storage_options)
    found = fresh.changes(2).to_arrow().sort_by([("_update", "ascending"), ("id", "ascending")])
    assert found["id"].to_pylist() == [0, 10, 1, 11]
    assert found["_change"].to_pylist() == ["update_before", "update_after"] * 2
    fresh.append(rows(range(20, 21)))
    time.sleep(1.1)
    removed = fresh.vacuum(timedelta(0))
    assert "updates" in removed.files["kind"].to_pylist()


def test_specs_and_schema_change(table: phalanx.Table, s3: Store) -> None:
    table.append(rows(range(4)))
    table.evolve("bucket(2, id)")
    table.append(rows(range(4, 8), "FR"))
    table.add_column(pa.field("new", pa.string()))
    table.rename_column("price", "cost")
    table.promote_column("id", pa.int64())
    table.promote_column("cost", pa.float64())
    fresh = phalanx.open(table.uri, storage_options=s3.storage_options)
    assert fresh.schema.names == ["id", "country", "cost", "new"]
    assert ids(fresh, "cost = 0.5 AND new IS NULL") == list(range(8))
    table.drop_column("new")
    assert fresh.scan().to_arrow().schema.names == ["id", "country", "cost"]
    fresh.overwrite_partitions(fresh.scan("id = 1").to_arrow())
    assert 1 in ids(fresh)


def test_what_is_not_there(s3: Store, table: phalanx.Table) -> None:
    with pytest.raises(phalanx.NotPartitioned):
        phalanx.open(s3.fresh(), storage_options=s3.storage_options)
    with pytest.raises(phalanx.PhalanxError, match="a namespace exists there"):
        phalanx.create(table.uri, SCHEMA, [], storage_options=s3.storage_options)


def at_the_same_time(*changes: Callable[[], object]) -> list[BaseException | None]:
    barrier = threading.Barrier(len(changes))
    outcomes: list[BaseException | None] = [None] * len(changes)

    def run(place: int) -> None:
        barrier.wait()
        try:
            changes[place]()
        except BaseException as error:
            outcomes[place] = error

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(changes))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def test_writers_at_the_same_time(table: phalanx.Table, s3: Store) -> None:
    writers = [phalanx.open(table.uri, storage_options=s3.storage_options) for _ in range(3)]

    def appends(number: int) -> None:
        for turn in range(3):
            first = number * 100 + turn * 10
            writers[number].append(rows(range(first, first + 2), f"new{turn}"))

    assert at_the_same_time(*(lambda n=n: appends(n) for n in range(3))) == [None] * 3
    assert len(ids(table)) == 18
    assert table.partitions()["rows"].to_pylist() == [6, 6, 6]
    listed = {place.rsplit("/", 1)[1] for place in table.partitions()["location"].to_pylist()}
    assert s3.folders(table.uri) == {*listed, "__manifest"}


def test_changes_at_the_same_time(table: phalanx.Table, s3: Store) -> None:
    one, two = (phalanx.open(table.uri, storage_options=s3.storage_options) for _ in range(2))
    outcomes = at_the_same_time(lambda: one.evolve("id"), lambda: two.evolve("bucket(4, id)"))
    won = outcomes.count(None)
    assert won >= 1
    assert all(isinstance(error, phalanx.CommitConflict) for error in outcomes if error)
    assert len(table.specs) == 1 + won


def test_creates_at_the_same_time(s3: Store) -> None:
    root = s3.fresh()

    def create() -> None:
        phalanx.create(root, SCHEMA, ["country"], storage_options=s3.storage_options)

    outcomes = at_the_same_time(create, create, create)
    assert outcomes.count(None) == 1
    assert all("a namespace exists there" in str(error) for error in outcomes if error)


def test_branches_and_tags_that_rows_name(s3: Store) -> None:
    """The expression draft: read, written, and upgraded when only a tag is left."""
    options, uri = s3.storage_options, s3.fresh()
    table = phalanx.create(
        uri,
        tables.SCHEMA,
        ["k"],
        transaction="strong",
        layout="expressions",
        storage_options=options,
    )

    def name(key: str, **values: object) -> None:
        manifest = lance.dataset(f"{uri}/__manifest", storage_options=options)
        where = f"object_type = 'table' AND partition_field_k = '{key}'"
        [row] = manifest.to_table(filter=where).to_pylist()
        changed = {**row, "read_version": None, "read_branch": None, "read_tag": None, **values}
        merge = manifest.merge_insert("object_id").when_matched_update_all()
        merge.execute(pa.Table.from_pylist([changed], manifest.schema))

    def read_numbers() -> list[int]:
        return tables.numbers(phalanx.open(uri, storage_options=options))

    table.append(tables.rows(("a", 1), ("b", 2)))
    a, b = (
        lance.dataset(each.location, storage_options=options) for each in table.plan().partitions
    )
    a.tags.create("release", a.version)
    table.append(tables.rows(("a", 3)))
    name("a", read_tag="release")
    b.create_branch("work", b.version)
    branch = b.checkout_version(("work", None))
    work = lance.write_dataset(
        tables.rows(("b", 4)), branch, mode="append", storage_options=options
    )
    name("b", read_branch="work", read_version=work.version)
    assert read_numbers() == [1, 2, 4]
    table.append(tables.rows(("b", 5)))
    assert read_numbers() == [1, 2, 4, 5]
    with pytest.raises(phalanx.PhalanxError, match="read from the branch 'work'"):
        table.upgrade()
    name("b", read_version=b.version)
    table.upgrade()
    assert (table.layout, read_numbers()) == ("namespace", [1, 2])
