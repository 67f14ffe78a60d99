"""An erasure that is cut off anywhere leaves the old rows or the new; called again it completes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import phalanx
from faults.programs.fault_injection import counted, failing_at
from integration.test_erase import LEFT, MARKER, SCHEMA, WHERE, held, holders, rows
from phalanx.storage.lance.fault_points import Step

SOAK = os.environ.get("PHALANX_PROFILE") == "soak"
ROWS = [*LEFT, ("a", MARKER, 1), ("a", MARKER, 7), ("b", MARKER, 3)]


def prepare(root: Path, kind: str) -> phalanx.Table:
    """Rows that match: live ones, deleted ones, in an index, in an adopted leaf, a partition."""
    table = phalanx.create(root / "table", SCHEMA, ["k"] if kind != "values" else ["k", "name"])
    adopted = root / "adopted"
    if kind == "strong":
        lance.write_dataset(rows(("b", MARKER, 3)), adopted)
        table.adopt(adopted)
    table.append(rows(("a", MARKER, 1), ("a", "bob", 2), ("c", "eve", 4)))
    if kind != "weak":
        table.set_mode("strong")
    if kind != "strong":
        table.append(rows(("b", MARKER, 3)))
    table.append(rows(("a", MARKER, 7), ("a", MARKER, 8), ("a", "dan", 5)))
    table.delete("n = 8")
    if kind == "strong":
        table.create_index("name", "BTREE")
        table.drop_partitions("k = 'b'")
    return table


@pytest.mark.parametrize("kind", ["weak", "strong", "values"])
def test_an_erasure_that_is_cut_off(tmp_path: Path, kind: str) -> None:
    before = sorted(ROWS if kind != "strong" else [row for row in ROWS if row[0] != "b"])
    whole = prepare(tmp_path / "whole", kind)
    assert held(whole) == before
    with counted() as steps:
        whole.erase(WHERE)
    assert held(whole) == LEFT
    assert holders(tmp_path / "whole") == []
    assert {Step.HORIZON_MOVED, Step.VERSIONS_DELETED, Step.FILES_DELETED} <= set(steps)
    for number, (step, times) in enumerate(steps.items()):
        for nth in sorted({1, times}) if SOAK else [(1, times)[number % 2]]:
            root = tmp_path / f"{step.name}{nth}"
            table = prepare(root, kind)
            mode = table.mode
            with failing_at(step, nth, KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
                table.erase(WHERE)
            again = phalanx.open(table.uri)
            assert held(again) in (before, LEFT), (step, nth)
            again.erase(WHERE)
            assert holders(root) == [], (step, nth)
            assert held(again) == LEFT, (step, nth)
            assert again.mode == mode, (step, nth)
            again.append(rows(("b", "new", 6)))
            assert held(phalanx.open(table.uri)) == sorted([*LEFT, ("b", "new", 6)])
            assert again.erase(WHERE).removed.num_rows == 0
            shutil.rmtree(root)


def test_what_a_dead_writer_left(tmp_path: Path) -> None:
    """Its files hold rows that no version ever listed."""
    for step in (Step.FILES_WRITTEN, Step.VERSION_STAGED, Step.COMMITTING):
        table = prepare(tmp_path / step.name, "strong")
        table.erase(WHERE)
        with failing_at(step, 1, KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
            table.append(rows(("a", MARKER, 9), ("z", MARKER, 9)))
        assert holders(table.uri)
        assert table.erase(WHERE).rows == 0
        assert holders(table.uri) == []
        assert held(table) == LEFT
        assert isinstance(table.scan().to_arrow(), pa.Table)
