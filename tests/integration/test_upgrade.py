"""Tables of the expression draft in use, and upgraded in place to the newest format."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import phalanx
from integration.expression_rows import leaf, pin, pins, read_pairs
from integration.shell import assert_fails, run, run_json
from phalanx.errors import InvalidSpec, PhalanxError
from tables import SCHEMA as PAIRS
from tables import rows as pairs

SCHEMA = pa.schema(
    [
        ("id", pa.int32()),
        ("name", pa.string()),
        ("ts", pa.timestamp("us", "UTC")),
        ("x", pa.float32()),
    ]
)
PREDICATES = [
    "id = 3",
    "id IN (3, 17) AND name = 'n0'",
    "id > 20",
    "id IS NULL",
    "ts >= '2025-03-01' AND ts < '2025-05-01'",
    "name LIKE 'n1%'",
    "x < 3",
    "true",
]
MEANING_THE_SAME = [
    phalanx.year("ts"),
    phalanx.month("ts"),
    phalanx.truncate("name", 2),
    phalanx.truncate("id", 10),
    phalanx.expression("upper(col0)", ["name"], pa.string(), field_id="loud"),
]


def rows(first: int = 0, count: int = 40) -> pa.Table:
    numbers = range(first, first + count)
    start = dt.datetime(2025, 1, 1, tzinfo=dt.UTC)
    return pa.table(
        {
            "id": [None if n % 13 == 12 else n for n in numbers],
            "name": [None if n % 11 == 10 else f"n{n % 3}" for n in numbers],
            "ts": [start + dt.timedelta(days=7 * n) for n in numbers],
            "x": [n / 2 for n in numbers],
        },
        schema=SCHEMA,
    )


def contents(table: phalanx.Table) -> list[str]:
    return sorted(map(repr, table.scan().to_arrow().to_pylist()))


def planned(table: phalanx.Table) -> list[Any]:
    plans = [table.plan(where) for where in PREDICATES]
    return [(plan.partitions, plan.pruning.manifest_filter) for plan in plans]


@pytest.fixture(params=["weak", "strong"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def draft_table(tmp_path: Path, mode: str) -> phalanx.Table:
    """A draft table with two specs that both formats can express, and deleted rows."""
    table = phalanx.create(
        tmp_path / "t", SCHEMA, MEANING_THE_SAME[:3], transaction=mode, layout="expressions"
    )
    table.append(rows())
    table.evolve(MEANING_THE_SAME[3:])
    table.append(rows(40))
    table.delete("id = 7")
    return table


# ── in use ───────────────────────────────────────────────────────────────────────────────────


def test_every_operation_on_hashed_partitions(tmp_path: Path, mode: str) -> None:
    uri = tmp_path / "t"
    hashed = [phalanx.bucket("id", 4), phalanx.multi_bucket(["id", "name"], 3)]
    table = phalanx.create(uri, SCHEMA, hashed, transaction=mode, layout="expressions")
    table.append(rows())
    table = phalanx.open(uri)
    assert (table.layout, table.mode) == ("expressions", mode)
    spec = table.evolve("bucket(8, id), year(ts)")
    assert [field.field_id for field in spec.fields] == ["id_bucket_8", "ts_year"]
    table.append(rows(40))
    table = phalanx.open(uri)
    assert sorted(table.specs) == [1, 2]
    assert contents(table) == sorted(map(repr, [*rows().to_pylist(), *rows(40).to_pylist()]))
    for where in PREDICATES:
        expected = pa.concat_tables([rows(), rows(40)])
        found = table.scan(where).to_arrow()
        brute = [row for row in expected.to_pylist() if _holds(where, row)]
        assert sorted(map(repr, found.to_pylist())) == sorted(map(repr, brute)), where
    plan = table.plan("id = 3 AND name = 'n0' AND ts = '2025-01-22'")
    assert plan.scanned_partitions <= 2 < plan.total_partitions
    assert table.plan("id = 3").fail_open == ()
    assert table.delete("id = 3") == 1
    table.overwrite_partitions(rows(40, 1))
    there = pa.concat_tables([rows(), rows(40)]).to_pylist()
    touched = _bucket(40), there[40]["ts"].year
    kept = [
        row for row in there if row["id"] != 3 and (_bucket(row["id"]), row["ts"].year) != touched
    ]
    assert 10 < len(kept) < 78
    assert contents(table) == sorted(map(repr, [*kept, there[40]]))
    five = int(there[5] in kept)
    table.promote_column("id", pa.int64())
    table.rename_column("name", "called")
    table.add_column(pa.field("more", pa.string()))
    before = table.plan("id = 5").partitions
    assert len({each.key for each in before}) == len(before)
    assert table.scan("id = 5 AND called = 'n2'").count_rows() == five
    table.set_mode("strong")
    table.rewrite(target_spec=2)
    stored = table.partitions().to_pylist()
    assert sum(row["rows"] for row in stored if row["spec_id"] == 1) == 0
    assert table.scan("id = 5 AND called = 'n2'").count_rows() == five
    assert table.scan().count_rows() == len(kept) + 1


def _bucket(number: int | None) -> int | None:
    """By hand, of 8."""
    if number is None:
        return None
    digest = hashlib.md5(str(number).encode()).digest()
    return abs(int.from_bytes(digest[:8], "big", signed=True)) % 8


def _holds(where: str, row: dict[str, Any]) -> bool:
    id, name, ts, x = row.values()
    first, last = (dt.datetime(2025, month, 1, tzinfo=dt.UTC) for month in (3, 5))
    by_hand = {
        "id = 3": id == 3,
        "id IN (3, 17) AND name = 'n0'": id in (3, 17) and name == "n0",
        "id > 20": id is not None and id > 20,
        "id IS NULL": id is None,
        "ts >= '2025-03-01' AND ts < '2025-05-01'": first <= ts < last,
        "name LIKE 'n1%'": name is not None and name.startswith("n1"),
        "x < 3": x < 3,
        "true": True,
    }
    return bool(by_hand[where])


def test_a_dropped_source_counts_as_null(tmp_path: Path) -> None:
    """Rule 4: the hash uses the columns that are left, and is NULL if there are none."""
    table = phalanx.create(
        tmp_path / "t", SCHEMA, [phalanx.multi_bucket(["id", "name"], 16)], layout="expressions"
    )
    table.append(rows(0, 5))
    table.evolve(["ts"])
    table.drop_column("name")
    assert table.scan("id = 3").count_rows() == 1
    table.drop_column("id")
    assert table.scan("x = 1.5").count_rows() == 1
    values = table.specs[1].compute_partition_values(
        table.scan().to_arrow(), phalanx.model.schema.schema.Schema.of(table.schema)
    )
    assert values.column(0).null_count == 5


def test_unknown_layouts_and_hashes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PhalanxError, match=r"layout='arrays': expected 'namespace'.*'expressions'"):
        phalanx.create(tmp_path / "t", SCHEMA, ["id"], layout="arrays")
    murmur = phalanx.expression("abs(murmur3(col0)) % 4", ["id"], pa.int32(), field_id="m")
    with pytest.raises(InvalidSpec, match="hashes by md5_int"):
        phalanx.create(tmp_path / "t", SCHEMA, [murmur], layout="expressions")
    assert not (tmp_path / "t").exists()
    table = phalanx.create(tmp_path / "t", SCHEMA, ["id"], layout="expressions")
    with pytest.raises(InvalidSpec, match="hashes by md5_int"):
        table.evolve([murmur])


# ── upgraded ─────────────────────────────────────────────────────────────────────────────────


def test_an_upgrade_keeps_every_row_and_every_plan(draft_table: phalanx.Table, mode: str) -> None:
    everything, plans = contents(draft_table), planned(draft_table)
    versions = [each.version for each in draft_table.plan().partitions]
    files = {
        path for path in Path(draft_table.uri).rglob("data/*") if "__manifest" not in str(path)
    }
    asked = draft_table.upgrade(dry_run=True)
    assert (asked.dry_run, asked.refused, draft_table.layout) == (True, (), "expressions")
    done = draft_table.upgrade()
    assert (done.changes, done.dry_run) == (asked.changes, False)
    assert 'v1 ts_year: date_part(\'year\', col0) becomes {"type": "year"}' in done.changes
    assert any("loud" in each and "as it is" in each for each in done.changes)
    for table in (draft_table, phalanx.open(draft_table.uri)):
        assert (table.layout, table.mode) == ("namespace", mode)
        assert contents(table) == everything
        assert planned(table) == plans
        assert [each.version for each in table.plan().partitions] == versions
    manifest = lance.dataset(f"{draft_table.uri}/__manifest")
    stored = json.loads(manifest.metadata["partition_spec_v1"])
    assert [each["transform"]["type"] for each in stored["fields"]] == ["year", "month", "truncate"]
    assert not {"read_branch", "read_tag"} & set(manifest.schema.names)
    assert files == {
        path for path in Path(draft_table.uri).rglob("data/*") if "__manifest" not in str(path)
    }
    if mode == "strong":
        assert draft_table.snapshots()["operation"].to_pylist()[-1] == "upgrade"
        assert contents(draft_table.at(2)) == sorted(map(repr, rows().to_pylist()))
    again = draft_table.upgrade()
    assert (again.changes, again.refused, again.layout) == ((), (), "namespace")
    draft_table.evolve([phalanx.bucket("id", 4)])
    draft_table.append(rows(80))
    assert draft_table.scan().count_rows() == 119


def test_a_writer_during_an_upgrade_gets_an_error(tmp_path: Path) -> None:
    table = phalanx.create(tmp_path / "t", PAIRS, ["k"], transaction="strong", layout="expressions")
    table.append(pairs(("a", 1)))
    other = phalanx.open(table.uri)
    txn = other.transaction()
    txn.append(pairs(("a", 2)))
    table.upgrade()
    with pytest.raises(phalanx.CommitConflict, match="changed its schema, its specs or its mode"):
        txn.__exit__(None, None, None)
    other.append(pairs(("a", 3)))
    assert read_pairs(phalanx.open(table.uri)) == [("a", 1), ("a", 3)]


def test_tags_become_versions(tmp_path: Path) -> None:
    table = phalanx.create(tmp_path / "t", PAIRS, ["k"], transaction="strong", layout="expressions")
    table.append(pairs(("a", 1), ("b", 1)))
    older = leaf(table, "a").version
    leaf(table, "a").tags.create("release", older)
    table.append(pairs(("a", 2)))
    pin(table, "a", read_tag="release")
    before = pins(table, "b")[0]
    done = table.upgrade()
    assert done.changes[-1].endswith(f"the tag 'release' becomes version {older}")
    assert read_pairs(phalanx.open(table.uri)) == [("a", 1), ("b", 1)]
    listed = {row["k"]: row["read_version"] for row in table.partitions().to_pylist()}
    assert listed == {"a": older, "b": before}
    table.append(pairs(("a", 3)))
    assert read_pairs(phalanx.open(table.uri)) == [("a", 1), ("a", 3), ("b", 1)]


@pytest.mark.parametrize(
    ("term", "field"),
    [
        (phalanx.bucket("id", 4), "id_bucket"),
        (phalanx.multi_bucket(["id", "name"], 4), "id_name_multi_bucket"),
        (phalanx.expression("md5_int(col0) % 7", ["id"], pa.int64(), field_id="own"), "own"),
    ],
)
def test_hashes_are_refused_by_name(tmp_path: Path, mode: str, term: Any, field: str) -> None:
    table = phalanx.create(tmp_path / "t", SCHEMA, ["name"], transaction=mode, layout="expressions")
    table.evolve([term])
    table.append(rows(0, 5))
    before = lance.dataset(f"{table.uri}/__manifest").version
    [why] = table.upgrade(dry_run=True).refused
    assert f"{field!r} of spec v2" in why
    assert "Import the table instead" in why
    with pytest.raises(PhalanxError, match=f"Cannot upgrade .*'{field}' of spec v2"):
        table.upgrade()
    assert lance.dataset(f"{table.uri}/__manifest").version == before
    assert (table.layout, table.scan().count_rows()) == ("expressions", 5)


# ── the shell ────────────────────────────────────────────────────────────────────────────────


def test_the_shell_creates_describes_and_upgrades(tmp_path: Path) -> None:
    uri, file = str(tmp_path / "t"), str(tmp_path / "rows.lance")
    lance.write_dataset(rows(), file)
    made = ("create", uri, "--like", file, "--partition-by", "year(ts)", "--layout", "expressions")
    assert run(*made).exit_code == 0
    assert run("append", uri, file).exit_code == 0
    assert run_json("describe", uri)["layout"] == "expressions"
    assert "layout      expressions" in run("describe", uri).stdout
    asked = run_json("upgrade", uri, "--dry-run")
    assert asked == {
        "root": uri,
        "layout": "expressions",
        "changes": ['v1 ts_year: date_part(\'year\', col0) becomes {"type": "year"}'],
        "refused": [],
        "dry_run": True,
    }
    assert "Would upgrade" in run("upgrade", uri, "--dry-run").stdout
    shown = run("upgrade", uri)
    assert (shown.exit_code, "Upgraded" in shown.stdout) == (0, True)
    assert run_json("describe", uri)["layout"] == "namespace"
    assert "has the newest format" in run("upgrade", uri).stdout


def test_the_shell_shows_what_is_refused(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    phalanx.create(uri, SCHEMA, [phalanx.bucket("id", 4)], layout="expressions")
    assert "Would refuse to upgrade" in run("upgrade", uri, "--dry-run").stdout
    assert_fails(run("upgrade", uri), 1, "id_bucket", "Import the table instead")
    assert run("create", uri, "--layout", "none").exit_code == 2
