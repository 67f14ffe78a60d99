"""Verification: a sound table has no findings, and each kind of damage has its own."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import phalanx
from integration.shell import run
from integration.stores import Store
from phalanx.storage.lance.checksums import CHECKSUM_FOLDER, checksummed_path

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64()), ("t", pa.string())])
LAYOUTS: list[dict[str, Any]] = [
    {"transaction": "strong"},
    {"transaction": "weak"},
    {"transaction": "strong", "checksums": True},
    {"transaction": "weak", "checksums": True},
    {"layout": "expressions", "transaction": "strong", "checksums": True},
    {"layout": "hive"},
]


def rows(*pairs: tuple[str, int]) -> pa.Table:
    columns = [[k for k, _ in pairs], [n for _, n in pairs], [f"word {n}" for _, n in pairs]]
    return pa.table(columns, schema=SCHEMA)


def create_table(uri: Path, **options: Any) -> phalanx.Table:
    table = phalanx.create(uri, SCHEMA, ["k"], **options)
    table.append(rows(*((k, n) for n in range(20) for k in "ab")))
    table.append(rows(("a", 100), ("c", 100)))
    table.delete("n IN (3, 4)")
    return table


def kinds(table: phalanx.Table, deep: bool = False) -> set[str]:
    return {each.kind for each in phalanx.open(table.uri).verify(deep)}


def one(root: str, pattern: str) -> Path:
    return sorted(Path(root).glob(pattern))[0]


def flip(path: Path, place: int = -20) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 16
    path.write_bytes(data)


@pytest.mark.parametrize("options", LAYOUTS, ids=str)
def test_all_is_well(tmp_path: Path, options: dict[str, Any]) -> None:
    table = create_table(tmp_path / "t", **options)
    for deep in (False, True):
        found = table.verify(deep)
        assert found == []
        assert not found
        assert found.files > 0
        assert (found.rows is None) is not deep
        # Each verified file has its checksum, if the table has checksums.
        assert found.checksums == (found.files if options.get("checksums") else 0)
    assert "all is well" in str(found)


def test_in_a_store(store: Store) -> None:
    """Verification lists, hashes and reads files on the store that the tests use."""
    table = phalanx.create(
        store.fresh(),
        SCHEMA,
        ["k"],
        transaction="strong",
        checksums=True,
        storage_options=store.storage_options,
    )
    table.append(rows(("a", 1), ("a", 2), ("b", 1)))
    table.update("n = 2", {"n": "3"})
    found = table.verify(deep=True)
    assert found == []
    assert found.checksums == found.files
    gone = [
        path
        for path in table.vacuum(timedelta(0)).files["path"].to_pylist()
        if CHECKSUM_FOLDER in path
    ]
    assert gone
    assert table.verify() == []


def every_change(table: phalanx.Table, tmp_path: Path) -> None:
    """Everything that writes files."""
    table.update("n = 7", {"n": "1007"})
    table.update("n = 8", {"k": "'moved'"})
    table.merge(rows(("a", 9), ("new", 500)), "n")
    table.overwrite(rows(("b", 1)), "k = 'b' AND n < 5")
    table.overwrite_partitions(rows(("c", 1), ("c", 2)))
    table.create_index("n", "BTREE")
    table.create_index("t", "INVERTED")
    table.add_column(pa.field("more", pa.int32()))
    table.promote_column("more", pa.int64())
    table.rewrite(rewrite_all=True)
    if table.mode == "weak":
        other = tmp_path / "other"
        adopted = rows(("adopted", 1)).append_column("more", pa.nulls(1, pa.int64()))
        lance.write_dataset(adopted, other)
        table.adopt(other)
    job = table.begin_write()
    reader = rows(("a", 77), ("job", 1)).append_column("more", pa.nulls(2, pa.int64()))
    job.commit([job.write(reader.to_reader())])
    table.evolve(["k", phalanx.bucket("n", 2)])
    table.rewrite(target_spec=2)
    if table.mode == "strong":
        table.drop_partitions("k = 'new'")
        table.rollback(3)
        leaf = table.partitions().to_pylist()[0]
        dataset = lance.dataset(leaf["location"])
        dataset.insert(dataset.to_table(limit=1))
        table.keep_foreign_writes()


@pytest.mark.parametrize("mode", ["strong", "weak"])
def test_checksums_stay_complete(tmp_path: Path, mode: str) -> None:
    table = create_table(tmp_path / "t", transaction=mode, checksums=True)
    every_change(table, tmp_path)
    found = table.verify(deep=True)
    assert found == []
    # A version of a main branch may have none: Lance makes it of one that was committed.
    assert found.checksums >= found.files - found.versions
    assert table.set_checksums() == 0


@pytest.mark.parametrize("mode", ["strong", "weak"])
def test_checksums_of_a_table_that_is_there(tmp_path: Path, mode: str) -> None:
    table = create_table(tmp_path / "t", transaction=mode)
    assert not list(Path(table.uri).rglob(CHECKSUM_FOLDER))
    assert table.set_checksums(True) > 0
    table.append(rows(("a", 1)))
    found = table.verify()
    assert found == []
    assert found.checksums == found.files
    table.set_checksums(False)
    table.append(rows(("a", 2)))
    assert table.verify() == []
    table.set_checksums(True)
    one(table.uri, f"*dataset/{CHECKSUM_FOLDER}/data/*").unlink()
    assert kinds(table) == {"no-checksum"}
    assert table.set_checksums(True) == 1
    assert table.verify() == []


def test_vacuum_removes_checksums_with_their_files(tmp_path: Path) -> None:
    table = create_table(tmp_path / "t", transaction="strong", checksums=True)
    table.rewrite(rewrite_all=True)
    table.drop_partitions("k = 'c'")
    removed = table.vacuum(timedelta(0)).files.column("path").to_pylist()
    assert any(f"/{CHECKSUM_FOLDER}/data/" in path for path in removed)
    for folder in Path(table.uri).rglob(CHECKSUM_FOLDER):
        for checksum in folder.rglob("*.json"):
            path = checksummed_path(str(checksum.relative_to(folder.parent)))
            assert path is not None
            assert (folder.parent / path).exists()
    assert table.verify(deep=True) == []
    assert sorted(table.scan("k = 'a' AND n > 18").to_arrow()["n"].to_pylist()) == [19, 100]


def test_the_hive_layout_has_no_checksums(tmp_path: Path) -> None:
    with pytest.raises(phalanx.PhalanxError, match="hive layout has none"):
        phalanx.create(tmp_path / "t", SCHEMA, ["k"], layout="hive", checksums=True)
    table = create_table(tmp_path / "t", layout="hive")
    with pytest.raises(phalanx.PhalanxError, match=r"hive layout has none.*upgrade\(\)"):
        table.set_checksums()
    said = str(table.verify())
    assert re.search(r"Not checked: the rows.*\n.*\d files without a checksum.*hive", said)
    assert "Not checked" not in str(table.verify(deep=True))


# ── damage ───────────────────────────────────────────────────────────────────────────────────


Harm = Callable[[str], None]
HARMS: dict[str, tuple[Harm, set[str]]] = {
    "data gone": (lambda uri: one(uri, "*dataset/data/*").unlink(), {"missing-file"}),
    "data cut": (lambda uri: cut(one(uri, "*dataset/data/*")), {"wrong-size"}),
    "footer": (lambda uri: flip(one(uri, "*dataset/data/*"), -5), {"unreadable"}),
    "deletions gone": (lambda uri: one(uri, "*dataset/_deletions/*").unlink(), {"missing-file"}),
    "deletions cut": (lambda uri: cut(one(uri, "*dataset/_deletions/*")), {"unreadable"}),
    "version gone": (lambda uri: one(uri, "*dataset/_versions/d*").unlink(), {"missing-file"}),
    "version cut": (lambda uri: cut(one(uri, "*dataset/_versions/d*")), {"unreadable"}),
    "index gone": (lambda uri: one(uri, "*dataset/_indices/*/page_data*").unlink(), {"index"}),
    "updates gone": (lambda uri: one(uri, "_phalanx_updates/*").unlink(), {"updates"}),
    "updates cut": (lambda uri: cut(one(uri, "_phalanx_updates/*")), {"updates"}),
    "manifest's data cut": (lambda uri: cut(one(uri, "__manifest/_deletions/*")), {"unreadable"}),
    "newest manifest gone": (
        lambda uri: one(uri, "__manifest/_versions/1*").unlink(),
        {"missing-file"},
    ),
}


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])


@pytest.mark.parametrize("harm", HARMS)
def test_damage_has_findings(tmp_path: Path, harm: str) -> None:
    table = create_table(tmp_path / "t", transaction="strong")
    table.create_index("n", "BTREE")
    table.update("n = 7", {"n": "1007"})
    assert table.verify() == []
    change, expected = HARMS[harm]
    change(table.uri)
    try:
        found = kinds(table)
    except phalanx.PhalanxError:
        # The manifest cannot be read: there is no table that could be verified.
        assert "manifest" in harm
        return
    assert expected <= found


def test_a_flip_that_only_a_checksum_detects(tmp_path: Path) -> None:
    for checked in (False, True):
        table = create_table(tmp_path / str(checked), transaction="strong", checksums=checked)
        path = one(table.uri, "*dataset/data/*")
        at = path.read_bytes().index(b"word 1")
        flip(path, at)
        read = phalanx.open(table.uri).scan().to_arrow()
        assert read.num_rows == 38
        assert kinds(table, deep=True) == ({"wrong-checksum"} if checked else set())
        [finding] = phalanx.open(table.uri).verify() if checked else [None]
        if finding is not None:
            assert finding.path == f"data/{path.name}"
            assert path.name in str(finding)


def test_deletions_over_which_lance_aborts(tmp_path: Path) -> None:
    """Verification reports the file without opening it in Lance, with and without checksums."""
    for checked in (False, True):
        table = create_table(tmp_path / str(checked), transaction="strong", checksums=checked)
        path = one(table.uri, "*dataset/_deletions/*.arrow")
        data = bytearray(path.read_bytes())
        data[5437 // 8] ^= 1 << (5437 % 8)
        path.write_bytes(data)
        assert kinds(table, deep=True) == {"wrong-checksum" if checked else "unreadable"}


def test_rows_in_the_wrong_partition(tmp_path: Path) -> None:
    table = create_table(tmp_path / "t", transaction="weak")
    leaf = next(each for each in table.partitions().to_pylist() if each["k"] == "a")
    dataset = lance.dataset(leaf["location"])
    dataset.insert(rows(("b", 1)).cast(dataset.schema))
    assert table.verify() == []
    [finding] = table.verify(deep=True)
    assert finding.kind == "wrong-partition"
    assert "'b'" in finding.message


def test_old_snapshots_count(tmp_path: Path) -> None:
    """A file that only an older snapshot reads is verified until vacuum removes it."""
    table = create_table(tmp_path / "t", transaction="strong")
    files = {path.name for path in Path(table.uri).glob("*dataset/data/*")}
    table.overwrite(rows(("a", 1)))
    assert table.verify() == []
    for path in Path(table.uri).glob("*dataset/data/*"):
        if path.name in files:
            path.unlink()
    assert kinds(table) == {"missing-file"}
    assert table.scan().to_arrow()["n"].to_pylist() == [1]
    table.vacuum(timedelta(0))
    assert table.verify() == []


# ── the shell ────────────────────────────────────────────────────────────────────────────────


def test_the_shell(tmp_path: Path) -> None:
    table = create_table(tmp_path / "t", transaction="strong", checksums=True)
    fine = run("verify", table.uri, "--deep")
    assert fine.exit_code == 0
    assert "all is well" in fine.stdout
    flip(one(table.uri, "*dataset/data/*"))
    bad = run("verify", table.uri, "--output", "json")
    assert bad.exit_code == 1
    said = json.loads(bad.stdout)
    assert [each["kind"] for each in said["findings"]] == ["wrong-checksum"]
    # Damage that the manifest's own checksums detect is reported before Lance opens it.
    flip(one(table.uri, "__manifest/data/*"))
    bad = run("verify", table.uri, "--output", "json")
    assert bad.exit_code == 1
    assert {each["kind"] for each in json.loads(bad.stdout)["findings"]} == {"wrong-checksum"}
    missing = run("verify", str(tmp_path / "nothing"))
    assert missing.exit_code == 1
    assert "no partitioned namespace" in missing.stderr
