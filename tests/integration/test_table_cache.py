"""Tables that are planned for again: what is known of them is never of another state."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

import phalanx
from phalanx.model.predicates.predicate import TRUE
from phalanx.spark.runtime.options import READ, Options
from phalanx.spark.sql.table_cache import KnownTables
from phalanx.table.read.scan import plan_of

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64())])


def rows(*keys: str) -> pa.Table:
    return pa.table({"k": list(keys), "n": list(range(len(keys)))}, SCHEMA)


def partitions(known: KnownTables, path: Path, snapshot: int | None = None) -> int:
    options = Options.of({"path": str(path)}, READ, "read")
    return len(plan_of(known.listing(options, snapshot), TRUE).partitions)


@pytest.mark.parametrize("mode", ["weak", "strong"])
def test_a_table_is_read_once_until_it_changes(tmp_path: Path, mode: str) -> None:
    path, known = tmp_path / "t", KnownTables()
    table = phalanx.create(path, SCHEMA, ["k"], transaction=mode)
    table.append(rows("a", "b"))
    options = Options.of({"path": str(path)}, READ, "read")
    first = known.listing(options, None)
    assert known.listing(options, None) is first
    table.append(rows("c"))
    assert partitions(known, path) == 3


def test_a_table_made_anew_at_its_path_is_another_one(tmp_path: Path) -> None:
    path, known = tmp_path / "t", KnownTables()
    for keys in (("a", "b"), ("c",)):
        shutil.rmtree(path, ignore_errors=True)
        table = phalanx.create(path, SCHEMA, ["k"], transaction="strong")
        table.append(rows(*keys))
        assert partitions(known, path, table.newest_snapshot) == len(keys)


def test_a_table_restored_from_a_copy_has_other_snapshots_by_the_same_numbers(
    tmp_path: Path,
) -> None:
    path, copy, known = tmp_path / "t", tmp_path / "copy", KnownTables()
    table = phalanx.create(path, SCHEMA, ["k"], transaction="strong")
    table.append(rows("a"))
    shutil.copytree(path, copy)
    table.append(rows("b", "c"))
    lost = table.newest_snapshot
    assert partitions(known, path, lost) == 3
    shutil.rmtree(path)
    shutil.copytree(copy, path)
    again = phalanx.open(path)
    again.append(rows("d"))
    assert again.newest_snapshot == lost
    assert partitions(known, path, lost) == 2
