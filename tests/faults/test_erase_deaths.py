"""An erasure interrupted at any step leaves the old rows or the new. A second call completes."""

from __future__ import annotations

import shutil
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import phalanx
from faults.programs.fault_injection import count_steps, fail_at
from integration.test_erase import LEFT, MARKER, SCHEMA, WHERE, holders, read_rows, rows
from phalanx.storage.lance.fault_points import FaultPoint
from tables import SOAK

ROWS = [*LEFT, ("a", MARKER, 1), ("a", MARKER, 7), ("b", MARKER, 3)]


def prepare(root: Path, kind: str) -> phalanx.Table:
    """Create matching rows: live, deleted, indexed, in an adopted leaf, or as a partition."""
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
def test_an_interrupted_erasure(tmp_path: Path, kind: str) -> None:
    before = sorted(ROWS if kind != "strong" else [row for row in ROWS if row[0] != "b"])
    whole = prepare(tmp_path / "whole", kind)
    assert read_rows(whole) == before
    with count_steps() as steps:
        whole.erase(WHERE)
    assert read_rows(whole) == LEFT
    assert holders(tmp_path / "whole") == []
    assert {FaultPoint.HORIZON_MOVED, FaultPoint.VERSIONS_DELETED, FaultPoint.FILES_DELETED} <= set(
        steps
    )
    for number, (step, times) in enumerate(steps.items()):
        for nth in sorted({1, times}) if SOAK else [(1, times)[number % 2]]:
            root = tmp_path / f"{step.name}{nth}"
            table = prepare(root, kind)
            mode = table.mode
            with fail_at(step, nth, KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
                table.erase(WHERE)
            again = phalanx.open(table.uri)
            assert read_rows(again) in (before, LEFT), (step, nth)
            again.erase(WHERE)
            assert holders(root) == [], (step, nth)
            assert read_rows(again) == LEFT, (step, nth)
            assert again.mode == mode, (step, nth)
            again.append(rows(("b", "new", 6)))
            assert read_rows(phalanx.open(table.uri)) == sorted([*LEFT, ("b", "new", 6)])
            assert again.erase(WHERE).removed.num_rows == 0
            shutil.rmtree(root)


def test_what_a_dead_writer_left(tmp_path: Path) -> None:
    """The files of a dead writer hold rows that no version ever listed."""
    for step in (FaultPoint.FILES_WRITTEN, FaultPoint.VERSION_STAGED, FaultPoint.COMMITTING):
        table = prepare(tmp_path / step.name, "strong")
        table.erase(WHERE)
        with fail_at(step, 1, KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
            table.append(rows(("a", MARKER, 9), ("z", MARKER, 9)))
        assert holders(table.uri)
        assert table.erase(WHERE).rows == 0
        assert holders(table.uri) == []
        assert read_rows(table) == LEFT
        assert isinstance(table.scan().to_arrow(), pa.Table)
