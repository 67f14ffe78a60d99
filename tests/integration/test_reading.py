"""Which files a scan opens, which filters it gives to Lance, and what a plan shows."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import phalanx
from phalanx import bucket, day, month, truncate, year

SCHEMA = pa.schema([("id", pa.int64()), ("p", pa.string()), ("note", pa.string())])


@pytest.fixture
def table(tmp_path: Path) -> phalanx.Table:
    made = phalanx.create(tmp_path / "events", SCHEMA, "p")
    rows = [{"id": n, "p": "abc"[n % 3], "note": str(n)} for n in range(30)]
    made.append(pa.Table.from_pylist(rows, SCHEMA))
    return made


def leaf_of(table: phalanx.Table, value: str) -> Path:
    (partition,) = table.plan(f"p = '{value}'").partitions
    return Path(partition.location)


def test_a_scan_opens_only_the_planned_leaves(table: phalanx.Table) -> None:
    for value in "bc":
        shutil.rmtree(leaf_of(table, value))
    assert table.scan("p = 'a' AND id > 3").to_arrow().num_rows == 8
    assert sum(batch.num_rows for batch in table.scan("p = 'a'").to_batches()) == 10
    assert table.scan("p = 'a'").count_rows() == 10
    assert table.delete("p = 'a' AND id = 3") == 1
    with pytest.raises(phalanx.PhalanxError):
        table.scan().to_arrow()


def test_rows_are_counted_from_metadata_where_all_match(table: phalanx.Table) -> None:
    table.delete("id = 0")
    for file in (leaf_of(table, "a") / "data").iterdir():
        file.unlink()
    assert table.scan("p = 'a'").count_rows() == 9
    assert table.scan("p = 'a' OR id > 100").count_rows() == 9
    with pytest.raises(phalanx.StorageFailure):
        table.scan("p = 'a' AND id > 3").count_rows()


def test_lance_filters_and_projects(table: phalanx.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    real = lance.LanceDataset.scanner

    def scanner(self: lance.LanceDataset, *arguments: Any, **options: Any) -> Any:
        if "__manifest" not in self.uri:
            asked.append(options)
        return real(self, *arguments, **options)

    monkeypatch.setattr(lance.LanceDataset, "scanner", scanner)
    found = table.scan("p = 'a' AND id > 20", columns=["note"]).to_arrow()
    assert found.to_pydict() == {"note": ["21", "24", "27"]}
    (options,) = asked
    assert options["columns"] == ["note"]
    assert options["filter"].startswith("`id` >")
    assert "`p`" not in options["filter"]


def test_a_plan_shows_what_it_reads_and_why(table: phalanx.Table) -> None:
    table.evolve("bucket(4, id)")
    plan = table.plan("p = 'a' AND id > 3")
    shown = str(plan)
    assert re.search(r"reads 1 of 3 partitions, \d+ bytes of [\d.]+ kB", shown)
    assert "spec v1 by p: reads 1 partition\n" in shown
    assert "prunes by partition_field_p = 'a'" in shown
    assert "is left to the scan: no partition field comes from id" in shown
    assert "spec v2 by bucket(4, id): reads 0 partitions" in shown
    assert f"manifest filter: {plan.pruning.manifest_filter}" in shown
    facts = plan.to_dict()
    assert (facts["scanned_partitions"], facts["total_partitions"]) == (1, 3)
    assert 0 < facts["scanned_bytes"] < facts["total_bytes"]
    assert [spec["scanned_partitions"] for spec in facts["specs"]] == [1, 0]


def test_five_levels(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("name", pa.string())])
    levels = [year("day"), month("day"), day("day"), bucket("id", 4), truncate("name", 2)]
    made = phalanx.create(tmp_path / "t", schema, levels)
    days = pa.array([19_000 + n % 3 for n in range(40)], pa.int32()).cast(pa.date32())
    names = ["Ada", None, "Ad", "Ünal"] * 10
    data = pa.table([list(range(40)), days, names], schema=schema)
    made.append(data)
    made.append(data)
    assert made.scan().count_rows() == 80
    keys = [tuple(row.values())[:6] for row in made.partitions().to_pylist()]
    assert len(keys) == len(set(keys))
    assert made.plan("day = '2022-01-09' AND id = 1 AND name IS NULL").scanned_partitions == 1
    assert made.scan("day = '2022-01-09' AND id = 1 AND name IS NULL").count_rows() == 2
    made.evolve([levels[0], "name"])
    made.append(data)
    assert made.scan("name = 'Ada'").count_rows() == 30
    made.evolve([])
    assert made.overwrite(data) == made.scan().count_rows() == 40


@pytest.mark.parametrize(
    "value", ["x" * 10_000, "a$b/c=d%e", "🗡️🗡️", "", "..", "null", "it's \"`\n", "\x00"]
)
def test_any_text_is_a_partition_value(value: str, tmp_path: Path) -> None:
    made = phalanx.create(tmp_path / "t", SCHEMA, ["p"])
    rows = [{"id": 1, "p": value, "note": ""}, {"id": 2, "p": None, "note": ""}]
    for _ in range(2):
        made.append(pa.Table.from_pylist(rows, SCHEMA))
    quoted = value.replace("'", "''")
    assert made.scan(f"p = '{quoted}'").to_arrow()["p"].to_pylist() == [value, value]
    assert made.plan(f"p = '{quoted}'").scanned_partitions == 1
    assert made.scan("p IS NULL").to_arrow()["id"].to_pylist() == [2, 2]
    assert made.partition(p=value).count_rows() == 2
    assert made.partitions().num_rows == 2
