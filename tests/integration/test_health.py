"""Health: each finding appears when it should, and its command resolves it."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import phalanx
from integration.shell import run, run_json
from integration.stores import Store
from phalanx.errors import PhalanxError
from phalanx.storage.lance import files
from phalanx.storage.lance.location import Location
from phalanx.table.maintenance import health as health_module
from phalanx.table.maintenance.health import FINDING_KINDS, Finding, Health
from tables import SCHEMA, both_modes, rows_of_key


def create_table(
    root: str, store: Store, mode: str, partition_by: Any = "k", keys: str = "ab", files: int = 1
) -> phalanx.Table:
    """Create a table with a number of files in each partition, of ten rows each."""
    options = store.storage_options
    table = phalanx.create(root, SCHEMA, partition_by, transaction=mode, storage_options=options)
    for file in range(files):
        table.append(
            pa.concat_tables([rows_of_key(k, range(file * 10, file * 10 + 10)) for k in keys])
        )
    return table


def kinds(found: Health) -> list[str]:
    return [each.kind for each in found]


def find_only(found: Health, kind: str) -> Finding:
    (finding,) = [each for each in found if each.kind == kind]
    return finding


def run_command(finding: Finding, store: Store) -> None:
    """Do what the finding says, in a shell."""
    secrets = [f"{key}={value}" for key, value in (store.storage_options or {}).items()]
    options = [part for each in secrets for part in ("--storage-option", each)]
    for command in finding.command.split(" && "):
        program, *arguments = shlex.split(command)
        assert program == "phalanx"
        done = run(*arguments, *options)
        assert done.exit_code == 0, done.stderr


def run_python(finding: Finding, table: phalanx.Table) -> None:
    exec(finding.python, {"table": table})


def record_opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the leaves that are opened from now on."""
    found: list[str] = []
    before = Location.open_leaf

    def open_leaf(self: Location, *arguments: Any) -> lance.LanceDataset:
        found.append(self.uri)
        return before(self, *arguments)

    monkeypatch.setattr(Location, "open_leaf", open_leaf)
    return found


# ── nothing ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("partition_by", ["k", ""])
@both_modes
def test_a_table_without_trouble(root: str, store: Store, mode: str, partition_by: str) -> None:
    table = create_table(root, store, mode, partition_by, files=0)
    assert (list(table.health()), str(table.health())) == ([], "healthy: nothing to do")
    table.append(rows_of_key("a", [1, 2, 3]))
    found = table.health()
    assert (len(found), found.more, found.to_dict()) == (0, 0, {"findings": [], "more_findings": 0})


@both_modes
def test_nothing_is_changed_and_leaves_are_opened_once(
    root: str, store: Store, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = create_table(root, store, mode, keys="abcd", files=5)
    table.evolve("n")
    before = store.files(root)
    table.health()
    assert store.files(root) == before
    leaves = record_opened(monkeypatch)
    monkeypatch.setattr(health_module._HealthCheck, "_find_orphans", lambda self: iter(()))
    assert kinds(table.health()) == ["compaction", "old-spec"]
    assert (
        sorted(leaves) == sorted(set(leaves)) == sorted(table.partitions()["location"].to_pylist())
    )


def test_limits_are_checked(root: str, store: Store) -> None:
    table = create_table(root, store, "weak", files=0)
    with pytest.raises(PhalanxError, match=r"tiny=3: there is no such limit.*tiny_bytes"):
        table.health(tiny=3)
    with pytest.raises(PhalanxError, match="tiny_bytes=0: expected a positive integer"):
        table.health(tiny_bytes=0)


# ── files ────────────────────────────────────────────────────────────────────────────────────


@both_modes
def test_many_small_files(root: str, store: Store, mode: str) -> None:
    table = create_table(root, store, mode, keys="abc", files=4)
    assert kinds(table.health()) == []
    for number in (100, 101):
        table.append(rows_of_key("b'c", [number]))
        table.append(rows_of_key("b", [number]))
    found = find_only(table.health(), "compaction")
    assert found.figures["partitions"] == len(found.partitions) == 1
    assert (found.figures["files"], found.partitions[0].files) == (6, 6)
    assert found.figures["bytes"] == found.partitions[0].bytes > 0
    assert found.partitions[0].key.values == ("b",)
    assert found.command == f"""phalanx rewrite {root} --where "k = 'b'\""""
    assert found.python == """table.rewrite("k = 'b'")"""
    assert "1 partition needs compaction, 6 files" in found.message
    assert "v1 k=b" in found.message
    plan = table.plan_rewrite()
    assert (plan.rewritten_files, plan.rewritten_bytes) == (6, found.figures["bytes"])
    run_command(found, store)
    assert kinds(table.health()) == []


@both_modes
def test_many_partitions_with_small_files_are_one_finding(
    root: str, store: Store, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health_module, "MAX_PARTITIONS", 2)
    table = create_table(root, store, mode, keys="abcd", files=5)
    table.append(rows_of_key("c", [1]))
    found = find_only(table.health(), "compaction")
    assert (found.figures["partitions"], found.figures["files"]) == (4, 21)
    assert [each.key.values for each in found.partitions] == [("c",), ("a",)]
    assert "and 1 more" in found.message
    assert found.command == f"phalanx rewrite {root}"
    run_python(found, table)
    assert kinds(table.health()) == []


@both_modes
def test_deleted_rows(root: str, store: Store, mode: str) -> None:
    table = create_table(root, store, mode, keys="ab")
    table.delete("k = 'a' AND n < 2")
    assert kinds(table.health()) == []
    table.delete("k = 'a' AND n < 4")
    found = find_only(table.health(), "deleted-rows")
    assert kinds(table.health()) == ["deleted-rows"]
    assert found.figures == {"partitions": 1, "files": 1, "deleted_rows": 4}
    assert found.partitions[0].to_dict()["values"] == {"k": "a"}
    run_command(found, store)
    assert kinds(table.health()) == []
    assert table.scan().count_rows() == 16


@both_modes
def test_a_partition_of_null_and_a_bucket_are_named(root: str, store: Store, mode: str) -> None:
    options = store.storage_options
    by = "truncate(2, k), bucket(4, n)"
    table = phalanx.create(root, SCHEMA, by, transaction=mode, storage_options=options)
    for _ in range(5):
        table.append(rows_of_key(None, [1]))
    table.append(rows_of_key("abc", [1, 2, 3, 4]))
    found = find_only(table.health(), "compaction")
    assert "k IS NULL AND" in found.command
    assert "murmur3" in found.command
    assert table.plan_rewrite(shlex.split(found.command)[-1]).matching_files == 5
    run_command(found, store)
    assert kinds(table.health()) == []


@both_modes
def test_an_unpartitioned_table(root: str, store: Store, mode: str) -> None:
    table = create_table(root, store, mode, "", files=5)
    found = find_only(table.health(), "compaction")
    assert (found.command, found.python) == (f"phalanx rewrite {root}", "table.rewrite()")
    run_command(found, store)
    assert kinds(table.health()) == []


# ── partitions ───────────────────────────────────────────────────────────────────────────────


@both_modes
def test_skew(root: str, store: Store, mode: str) -> None:
    table = create_table(root, store, mode, keys="abcde")
    table.append(rows_of_key("e", range(50_000)))
    assert kinds(table.health()) == []
    found = find_only(table.health(skew_bytes=1000), "skew")
    assert [each.key.values for each in found.partitions] == [("e",)]
    assert (found.spec_id, found.figures["partitions"]) == (1, 1)
    assert "1 partition is at least 10 times as large as the median" in found.message
    assert found.command.startswith(f"phalanx evolve {root} 'k, bucket(2, n)' && ")
    assert found.command.endswith(f"phalanx rewrite {root} --target-spec 2")
    assert kinds(table.health(skew_bytes=1000, skew_partitions=6)) == []
    assert kinds(table.health(skew_bytes=1000, skew_ratio=1_000_000)) == []


@both_modes
def test_tiny_partitions(root: str, store: Store, mode: str) -> None:
    table = create_table(root, store, mode, "n", keys="a", files=4)
    assert kinds(table.health()) == []
    table.append(rows_of_key("b", range(40, 50)))
    found = find_only(table.health(), "tiny-partitions")
    assert found.figures["partitions"] == 50
    assert len(found.partitions) == 20
    assert "'bucket(16, n)'" in found.message
    assert found.command.startswith(f"phalanx evolve {root} 'bucket(16, n)' && ")
    assert kinds(table.health(tiny_bytes=1)) == []
    if mode == "strong":
        run_command(found, store)
        assert "tiny-partitions" not in kinds(table.health())
        assert table.scan().count_rows() == 50


@both_modes
def test_huge_partitions(root: str, store: Store, mode: str) -> None:
    table = create_table(root, store, mode, "bucket(2, n)", keys="a", files=0)
    table.append(rows_of_key("a", range(20_000)))
    small, size = sorted(table.partitions()["bytes"].to_pylist())
    assert kinds(table.health(huge_bytes=size)) == []
    found = find_only(table.health(huge_bytes=size - 1), "huge-partitions")
    assert found.figures["bytes"] == (size if small < size else 2 * size)
    assert f"phalanx evolve {root} 'bucket(4, n)'" in found.command
    assert found.python == "table.evolve('bucket(4, n)'); table.rewrite(target_spec=2)"
    if mode == "strong":
        run_python(found, table)
        assert table.spec.id == 2
        assert "huge-partitions" not in kinds(table.health(huge_bytes=size - 1))


def test_partitions_may_be_needless(root: str, store: Store) -> None:
    table = create_table(root, store, "strong", "truncate(2, k)")
    found = find_only(table.health(tiny_partitions=1), "tiny-partitions")
    assert "Under a spec without fields they would be larger." in found.message
    assert f"phalanx evolve {root} '' && " in found.command
    run_command(found, store)
    assert (table.spec.fields, table.scan().count_rows()) == ((), 20)


def test_a_spec_that_text_cannot_say_is_left_to_its_owner(root: str, store: Store) -> None:
    by = [phalanx.expression("col0 % 3", ["n"], pa.int64(), field_id="rest"), "k"]
    table = create_table(root, store, "weak", by)
    found = find_only(table.health(huge_bytes=1), "huge-partitions")
    assert f"phalanx evolve {root} SPEC &&" in found.command
    assert "another spec" in found.message


# ── specs ────────────────────────────────────────────────────────────────────────────────────


@both_modes
def test_old_specs(root: str, store: Store, mode: str) -> None:
    table = create_table(root, store, mode, keys="ab")
    table.evolve("bucket(2, n)")
    table.evolve("k, bucket(2, n)")
    table.append(rows_of_key("a", [1]))
    found = find_only(table.health(), "old-spec")
    assert kinds(table.health()) == ["old-spec"]
    assert (found.spec_id, found.figures["partitions"], found.figures["files"]) == (1, 2, 2)
    assert found.command == f"phalanx rewrite {root} --target-spec 3"
    assert "v1 by k still holds 2 files" in found.message
    run_command(found, store)
    left = find_only(table.health(), "empty-spec")
    assert kinds(table.health()) == ["empty-spec"]
    assert (left.spec_id, left.figures) == (1, {"partitions": 2})
    assert "Spec v1 by k no longer holds files" in left.message
    run_command(left, store)
    assert table.mode == mode


@both_modes
def test_a_spec_that_was_emptied(root: str, store: Store, mode: str) -> None:
    table = create_table(root, store, mode)
    table.delete("true")
    assert kinds(table.health()) == []
    table.evolve("n")
    assert kinds(table.health()) == ["empty-spec"]


def test_findings_are_bounded(root: str, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_module, "MAX_FINDINGS", 2)
    table = create_table(root, store, "weak", files=5)
    for by in ("n", "bucket(2, n)", "bucket(3, n)"):
        table.evolve(by)
        table.append(rows_of_key("a", [1]))
    found = table.health()
    assert (kinds(found), found.more) == (["compaction", "old-spec"], 2)
    assert [each.spec_id for each in found[:2]] == [None, 1]
    assert str(found).endswith("and 2 findings more")


# ── files that nothing needs ─────────────────────────────────────────────────────────────────


@both_modes
def test_orphan_bytes(root: str, store: Store, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table = create_table(root, store, mode, files=2)
    table.overwrite(rows_of_key("a", [1]))
    assert kinds(table.health()) == []
    monkeypatch.setattr(health_module, "_VACUUM_AGE", timedelta(0))
    time.sleep(0.02 if store.storage_options is None else 1.01)
    promised = table.vacuum(timedelta(0), dry_run=True)
    found = find_only(table.health(), "orphans")
    assert found.figures == {
        "files": promised.files.num_rows,
        "bytes": promised.bytes,
        "snapshots": len(promised.snapshots),
    }
    assert found.command == f"phalanx vacuum {root}"
    assert kinds(table.health(orphan_bytes=promised.bytes + 1)) == []


def test_a_vacuum_takes_them_away(tmp_path: Path) -> None:
    table = create_table(str(tmp_path / "t"), Store(str(tmp_path)), "weak", files=2)
    table.overwrite(rows_of_key("a", [1]))
    old = time.time() - timedelta(days=8).total_seconds()
    for path in _files(tmp_path):
        os.utime(path, (old, old))
    found = find_only(table.health(), "orphans")
    assert "for 7 days" in found.message
    run_command(found, Store(str(tmp_path)))
    assert kinds(table.health()) == []


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


def test_foreign_writes_are_reported(root: str, store: Store) -> None:
    table = create_table(root, store, "strong", files=5)
    place = table.partitions()["location"][0].as_py()
    lance.write_dataset(
        rows_of_key("a", [99]), place, mode="append", storage_options=store.storage_options
    )
    found = table.health()
    assert kinds(found) == ["foreign-writes", "compaction"]
    assert found[0].command.startswith("python -c ")
    run_python(found[0], table)
    assert "foreign-writes" not in kinds(table.health())


# ── in the shell ─────────────────────────────────────────────────────────────────────────────


@both_modes
def test_describe_shows_it(tmp_path: Path, mode: str) -> None:
    uri = str(tmp_path / "t")
    table = create_table(uri, Store(str(tmp_path)), mode, files=5)
    table.evolve("n")
    found = table.health()
    assert kinds(found) == ["compaction", "old-spec"]
    assert kinds(found) == sorted(kinds(found), key=FINDING_KINDS.index)
    assert phalanx.open(uri).health() == found
    assert run_json("describe", uri, "--health")["health"] == found.to_dict()
    assert "health" not in run_json("describe", uri)
    shown = run("describe", uri, "--health").stdout
    assert shown.endswith(f"\n\n{found}\n")
    assert f"  phalanx rewrite {uri}\n" in shown
    assert str(found) not in run("describe", uri).stdout
    assert [each["kind"] for each in found.to_dict()["findings"]] == kinds(found)


def test_a_terminal_obeys_no_value(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    table = phalanx.create(uri, SCHEMA, "k")
    for number in range(5):
        table.append(rows_of_key("\x1b[31mred", [number]))
    shown = run("describe", uri, "--health").stdout
    assert "\x1b" not in shown
    assert r"k=\x1b[31mred" in shown


# ── what storage does not have ───────────────────────────────────────────────────────────────


@both_modes
@pytest.mark.parametrize("gone", ["everything", "_versions", "data"])
def test_what_is_missing_is_a_finding(root: str, store: Store, mode: str, gone: str) -> None:
    table = create_table(root, store, mode, keys="abc")
    place = table.plan("k = 'b'").partitions[0].location
    folder = files.Folder(Location.of(place, store.storage_options))
    paths = [file.path for file in folder.list_files()]
    folder.delete([path for path in paths if gone == "everything" or path.startswith(gone)])
    opened = phalanx.open(root, storage_options=store.storage_options)
    # Returning fewer rows without an error would be the worst result.
    with pytest.raises(PhalanxError, match="missing"):
        opened.scan().to_arrow()
    kind = "missing-files" if gone == "data" else "missing-partitions"
    found = find_only(opened.health(), kind)
    assert place in found.message
    assert found.figures["partitions"] == 1
    assert found.python == """table.drop_partitions("k = 'b'")"""
    assert eval(found.python, {"table": opened}) == 1
    after = kinds(opened.health())
    if mode == "strong" and gone != "data":
        assert after == ["missing-history"]
        # The leaf that a retained snapshot misses does not keep vacuum from all others.
        assert list(opened.vacuum(timedelta(days=1)).left_alone) == [place]
        # S3 dates files by whole seconds.
        time.sleep(0.02 if store.storage_options is None else 1.01)
        opened.vacuum(timedelta(0))
    assert kinds(opened.health()) == []
    opened.append(rows_of_key("b", [100]))
    assert opened.scan().count_rows() == 21


def test_health_during_a_vacuum(root: str, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The snapshot that it was about to look at is removed: it looks at the newest one."""
    table = create_table(root, store, "strong")
    other = phalanx.open(root, storage_options=store.storage_options)
    times: list[int] = []
    plan = health_module.plan_rewrite_files

    def slow(*arguments: Any) -> Any:
        times.append(len(times))
        if len(times) == 1:
            other.overwrite(rows_of_key("a", [1]))
            # S3 keeps the time of a file in whole seconds.
            time.sleep(0.02 if store.storage_options is None else 1.01)
            other.vacuum(timedelta(0))
        return plan(*arguments)

    monkeypatch.setattr(health_module, "plan_rewrite_files", slow)
    assert kinds(table.health()) == []
    assert len(times) == 2
