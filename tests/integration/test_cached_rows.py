"""The rows of a small manifest in memory are those that a fresh scan of the manifest reads."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import phalanx
from phalanx.storage.manifest import cached_rows
from phalanx.storage.manifest.manifest import HEAD_ROW_ID, Manifest
from phalanx.table.handle import handle_of
from tables import SCHEMA, numbers, rows


def read_manifest_rows(table: phalanx.Table) -> list[dict[str, Any]]:
    """Read the manifest by Lance alone."""
    dataset = lance.dataset(f"{table.uri}/__manifest")
    return sorted(
        dataset.scanner(with_row_address=True).to_table().to_pylist(),
        key=lambda row: str(row["object_id"]),
    )


def newest_manifest(table: phalanx.Table) -> Manifest:
    state = handle_of(table).refresh()
    assert isinstance(state, Manifest)
    return state


def by_id(found: pa.Table) -> list[dict[str, Any]]:
    return sorted(found.to_pylist(), key=lambda row: str(row["object_id"]))


def check(table: phalanx.Table) -> None:
    """Compare every way to select rows with plain Python over what Lance reads."""
    manifest, stored = newest_manifest(table), read_manifest_rows(table)
    assert by_id(manifest.select_rows(with_row_address=True)) == stored
    for kind in {row["object_type"] for row in stored}:
        wanted = [row for row in stored if row["object_type"] == kind]
        assert by_id(manifest.select_rows(kind, with_row_address=True)) == wanted
    ids = [row["object_id"] for row in stored[::2]]
    wanted = [row for row in stored if row["object_id"] in ids]
    assert by_id(manifest.select_rows(ids=[*ids, "none"], with_row_address=True)) == wanted
    for prefix in ("v1$", "__phalanx_snapshot$", "%", "_"):
        wanted = [row for row in stored if row["object_id"].startswith(prefix)]
        assert by_id(manifest.select_rows(prefix=prefix, with_row_address=True)) == wanted
    head = [row for row in stored if row["object_id"] == HEAD_ROW_ID]
    assert by_id(manifest.read_row(HEAD_ROW_ID)) == head


@pytest.mark.parametrize("limit", [4096, 12, 0])
@pytest.mark.parametrize("mode", ["weak", "strong"])
def test_they_follow_every_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, limit: int
) -> None:
    """Two handles take turns, so that each also meets commits of another writer."""
    monkeypatch.setattr(cached_rows, "MAX_CACHED_ROWS", limit)
    one = phalanx.create(tmp_path / "t", SCHEMA, ["k"], transaction=mode)
    two = phalanx.open(one.uri)
    expected: list[int] = []
    for number in range(12):
        table = (one, two)[number % 3 == 1]
        table.append(rows((f"k{number % 5}", number), ("a", 100 + number)))
        expected += [number, 100 + number]
        check(table)
    for step, table in enumerate((one, two, one, two, one, one)):
        match step:
            case 0:
                table.delete("n = 3")
                expected.remove(3)
            case 1:
                table.drop_partitions("k = 'k4'")
                expected = [n for n in expected if n not in (4, 9)]
            case 2:
                table.evolve("truncate(2, k)")
                table.append(rows(("new", 50)))
                expected.append(50)
            case 3:
                table.rewrite(rewrite_all=True)
            case 4:
                table.vacuum(timedelta(0) if mode == "strong" else timedelta(hours=1))
            case 5:
                table.set_mode("weak" if mode == "strong" else "strong")
                table.append(rows(("k4", 60)))
                expected.append(60)
        check(one)
        check(two)
        assert numbers(one) == numbers(two) == sorted(expected)


def test_a_commit_is_not_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = phalanx.create(tmp_path / "t", SCHEMA, ["k"], transaction="strong")
    for number in range(3):
        table.append(rows(("a", number)))
    scanned: list[str] = []
    scan = cached_rows.scan_table

    def observe(dataset: lance.LanceDataset, **options: Any) -> pa.Table:
        scanned.append(dataset.uri)
        return scan(dataset, **options)

    monkeypatch.setattr(cached_rows, "scan_table", observe)
    table.append(rows(("a", 9)))
    assert numbers(table) == [0, 1, 2, 9]
    assert table.newest_snapshot == 5
    assert scanned == []
    phalanx.open(table.uri).append(rows(("a", 10)))
    scanned.clear()
    assert numbers(table) == [0, 1, 2, 9, 10]
    assert len(scanned) == 1, "only what the other writer added"
