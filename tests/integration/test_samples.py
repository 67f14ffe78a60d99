"""Tables that earlier versions wrote are opened, read and changed by this one."""

import json
import tarfile
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import phalanx

ARCHIVES = sorted((Path(__file__).parents[1] / "data").glob("*.tar.gz"))
TABLES = (
    *("weak", "strong", "expressions-weak", "expressions-strong"),
    *("hive", "weak-again", "adopted"),
)


@pytest.fixture(scope="module", params=ARCHIVES, ids=lambda path: path.name.split(".")[0])
def samples(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tables of one version, where each test changes another one."""
    folder = tmp_path_factory.mktemp("samples")
    with tarfile.open(request.param) as archive:
        archive.extractall(folder, filter="data")
    return folder


def read_rows(table: phalanx.Table, where: str | None = None) -> list[dict[str, Any]]:
    rows = table.scan(where).to_arrow().sort_by("id").to_pylist()
    for each in rows:
        each["day"] = each["day"].isoformat()
        each["amount"] = str(each["amount"])
    return rows


def test_there_are_samples() -> None:
    assert ARCHIVES


@pytest.mark.parametrize("name", TABLES)
def test_a_sample_reads_and_changes(samples: Path, name: str) -> None:
    said = json.loads((samples / "rows.json").read_text())[name]
    expected: list[dict[str, Any]] = said["rows"]
    table = phalanx.open(samples / name)
    assert read_rows(table) == expected
    assert read_rows(table, "country = 'DE'") == [row for row in expected if row["country"] == "DE"]
    assert read_rows(table, "id < 7") == [row for row in expected if row["id"] < 7]
    for number, ids in said["snapshots"].items():
        found = table.at(int(number)).scan(columns=["id"]).to_arrow()["id"].to_pylist()
        assert sorted(found) == ids
    assert (len(table.snapshots()) > 0) == (table.mode == "strong")
    assert table.partitions().num_rows == table.plan().total_partitions
    if said["snapshots"]:
        # The newest snapshot has the current rows, so the second rollback restores them.
        numbers = sorted(map(int, said["snapshots"]))
        for number in (numbers[len(numbers) // 2], numbers[-1]):
            table.rollback(number)
            found = table.scan(columns=["id"]).to_arrow()["id"].to_pylist()
            assert sorted(found) == said["snapshots"][str(number)]
        assert read_rows(table) == expected
    # It is changed like a table of this version.
    new = {**expected[0], "id": 100, "country": "IT"}
    typed = {**new, "day": date.fromisoformat(new["day"]), "amount": None}
    table.append(pa.Table.from_pylist([typed], table.schema))
    assert table.delete("id = 7") == 1
    after = [row for row in expected if row["id"] != 7] + [{**new, "amount": "None"}]
    assert read_rows(table) == after
    table.rewrite(rewrite_all=True)
    if name == "hive":
        assert read_rows(phalanx.open(samples / name)) == after
        return
    table.vacuum(timedelta(days=7))
    assert read_rows(phalanx.open(samples / name)) == after
    if name == "weak":
        table.set_mode("strong")
    if table.mode == "strong":
        with table.transaction() as transaction:
            transaction.delete("id = 100")
    else:
        table.delete("id = 100")
    table.add_column(pa.field("later", pa.int8()))
    assert [row["id"] for row in read_rows(phalanx.open(samples / name))] == [
        row["id"] for row in after if row["id"] != 100
    ]
