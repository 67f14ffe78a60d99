"""Writers in weak mode that die beside a change of the mode: whoever comes next repairs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.optimize import Compaction

import phalanx

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64())])


def rows(first: int, count: int = 5) -> pa.Table:
    numbers = range(first, first + count)
    return pa.table({"k": ["a"] * count, "n": list(numbers)}, schema=SCHEMA)


def held(table: phalanx.Table) -> list[int]:
    return sorted(table.scan().to_arrow()["n"].to_pylist())


def indexed(root: Path) -> phalanx.Table:
    table = phalanx.create(root, SCHEMA, ["k"])
    for number in range(4):
        table.append(rows(5 * number))
    table.create_index("n", "BTREE", min_rows=1)
    return table


@pytest.mark.parametrize("repair", ["append", "vacuum", "weak"])
def test_a_compaction_of_an_indexed_leaf_that_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repair: str
) -> None:
    """Its commit carries no mark, and comes after the first snapshot of strong mode."""
    table = indexed(tmp_path / "t")
    commit = Compaction.commit

    def late(*given: Any) -> None:
        phalanx.open(table.uri).set_mode("strong")
        commit(*given)
        raise KeyboardInterrupt

    monkeypatch.setattr(Compaction, "commit", late)
    with pytest.raises(KeyboardInterrupt):
        table.rewrite(rewrite_all=True)
    monkeypatch.undo()
    other = phalanx.open(table.uri)
    assert other.mode == "strong"
    assert "foreign-writes" not in {each.kind for each in other.health()}
    expected = list(range(20))
    if repair == "append":
        other.append(rows(20))
        expected = list(range(25))
    elif repair == "weak":
        other.set_mode("weak")
    else:
        other.vacuum()
    assert held(phalanx.open(table.uri)) == expected
    [leaf] = {each.location for each in phalanx.open(table.uri).plan().partitions}
    assert sorted(lance.dataset(leaf).to_table()["n"].to_pylist()) == expected
    assert other.scan("n = 7").count_rows() == 1


def test_a_strangers_rows_below_a_compaction_are_not_lost(tmp_path: Path) -> None:
    table = indexed(tmp_path / "t")
    table.set_mode("strong")
    [leaf] = {each.location for each in table.plan().partitions}
    lance.write_dataset(rows(100), leaf, mode="append")
    lance.dataset(leaf).optimize.compact_files()
    with pytest.raises(phalanx.ForeignWrite):
        table.append(rows(20))
    assert sorted(lance.dataset(leaf).to_table()["n"].to_pylist())[-1] == 104
