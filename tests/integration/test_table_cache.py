"""Repeated plans of a table: what is cached never belongs to another state."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import phalanx
from phalanx.model.predicates.predicate import TRUE
from phalanx.spark.runtime.options import READ_OPTIONS, Options
from phalanx.spark.sql.table_cache import TableCache
from phalanx.table.read.scan import plan_scan
from tables import SCHEMA, rows


def partitions(known: TableCache, path: Path, snapshot: int | None = None) -> int:
    options = Options.of({"path": str(path)}, READ_OPTIONS, "read")
    return len(plan_scan(known.get_state(options, snapshot), TRUE).partitions)


@pytest.mark.parametrize("mode", ["weak", "strong"])
def test_a_table_is_read_once_until_it_changes(tmp_path: Path, mode: str) -> None:
    path, known = tmp_path / "t", TableCache()
    table = phalanx.create(path, SCHEMA, ["k"], transaction=mode)
    table.append(rows(("a", 0), ("b", 1)))
    options = Options.of({"path": str(path)}, READ_OPTIONS, "read")
    first = known.get_state(options, None)
    assert known.get_state(options, None) is first
    table.append(rows(("c", 0)))
    assert partitions(known, path) == 3


def test_a_table_recreated_at_its_path_is_another_one(tmp_path: Path) -> None:
    path, known = tmp_path / "t", TableCache()
    for keys in (("a", "b"), ("c",)):
        shutil.rmtree(path, ignore_errors=True)
        table = phalanx.create(path, SCHEMA, ["k"], transaction="strong")
        table.append(rows(*((key, n) for n, key in enumerate(keys))))
        assert partitions(known, path, table.newest_snapshot) == len(keys)


def test_a_table_restored_from_a_copy_has_other_snapshots_by_the_same_numbers(
    tmp_path: Path,
) -> None:
    path, copy, known = tmp_path / "t", tmp_path / "copy", TableCache()
    table = phalanx.create(path, SCHEMA, ["k"], transaction="strong")
    table.append(rows(("a", 0)))
    shutil.copytree(path, copy)
    table.append(rows(("b", 0), ("c", 1)))
    lost = table.newest_snapshot
    assert partitions(known, path, lost) == 3
    shutil.rmtree(path)
    shutil.copytree(copy, path)
    again = phalanx.open(path)
    again.append(rows(("d", 0)))
    assert again.newest_snapshot == lost
    assert partitions(known, path, lost) == 2
