"""Weak compactions that die while the table changes to strong mode, and foreign compactions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import pytest
from lance.optimize import Compaction

import phalanx
from tables import SCHEMA, numbers, rows_of_key


def create_indexed(root: Path) -> phalanx.Table:
    """Create a weak table with one indexed leaf of four files."""
    table = phalanx.create(root, SCHEMA, ["k"])
    for number in range(4):
        table.append(rows_of_key("a", range(5 * number, 5 * number + 5)))
    table.create_index("n", "BTREE", min_rows=1)
    return table


def leaf_numbers(table: phalanx.Table) -> list[int]:
    """Return what a stock client reads on the main branch of the only leaf."""
    [partition] = table.plan().partitions
    return sorted(lance.dataset(partition.location).to_table()["n"].to_pylist())


def kinds_of_findings(table: phalanx.Table) -> set[str]:
    return {each.kind for each in table.health()}


@pytest.mark.parametrize("repair", ["append", "vacuum", "weak", "publish"])
def test_a_weak_compaction_that_dies_during_a_change_of_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repair: str
) -> None:
    """The compaction commits without a mark, after the first snapshot of strong mode."""
    table = create_indexed(tmp_path / "t")
    commit = Compaction.commit

    def commit_late(*arguments: Any) -> None:
        phalanx.open(table.uri).set_mode("strong")
        commit(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(Compaction, "commit", commit_late)
    with pytest.raises(KeyboardInterrupt):
        table.rewrite(rewrite_all=True)
    monkeypatch.undo()
    other = phalanx.open(table.uri)
    assert other.mode == "strong"
    assert "foreign-writes" not in kinds_of_findings(other)
    expected = list(range(20))
    match repair:
        case "append":
            other.append(rows_of_key("a", range(20, 25)))
            expected = list(range(25))
        case "vacuum":
            other.vacuum()
        case "weak":
            other.set_mode("weak")
        case "publish":
            other.update("n = 3", {"n": "n + 100"})
            expected = sorted({*range(20), 103} - {3})
    assert numbers(phalanx.open(table.uri)) == expected
    assert leaf_numbers(table) == expected
    assert other.scan("n = 7").count_rows() == 1


def test_compactions_by_others_stop_no_writer(tmp_path: Path) -> None:
    table = create_indexed(tmp_path / "t")
    table.set_mode("strong")
    [partition] = table.plan().partitions
    lance.dataset(partition.location).optimize.compact_files()
    table.append(rows_of_key("a", [20]))
    assert numbers(table) == leaf_numbers(table) == list(range(21))
    # A requested compaction is kept.
    lance.dataset(partition.location).optimize.compact_files()
    assert table.keep_foreign_writes() == [partition.location]
    assert numbers(table) == leaf_numbers(table) == list(range(21))


@pytest.mark.parametrize("first", ["rows", "compaction"])
def test_rows_of_others_during_a_compaction_are_not_lost(tmp_path: Path, first: str) -> None:
    table = create_indexed(tmp_path / "t")
    table.set_mode("strong")
    [partition] = table.plan().partitions
    if first == "compaction":
        lance.dataset(partition.location).optimize.compact_files()
    lance.write_dataset(rows_of_key("a", [100]), partition.location, mode="append")
    if first == "rows":
        lance.dataset(partition.location).optimize.compact_files()
    with pytest.raises(phalanx.ForeignWrite):
        table.append(rows_of_key("a", [20]))
    assert "foreign-writes" in kinds_of_findings(table)
    assert leaf_numbers(table) == [*range(20), 100]
    table.keep_foreign_writes()
    assert numbers(table) == leaf_numbers(table) == [*range(20), 100]
