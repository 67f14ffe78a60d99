"""Writes sample tables with the installed Phalanx: python tests/data/make.py DATE

Each version that changes what is stored adds `DATE.tar.gz`, which is never written again:
`tests/integration/test_samples.py` opens, reads and changes the tables of all of them. `rows.json`
next to the tables says what each of them holds, which follows from the code below alone.
"""

from __future__ import annotations

import json
import sys
import tarfile
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

import phalanx

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("country", pa.string()),
        ("day", pa.date32()),
        ("amount", pa.decimal128(9, 2)),
        ("vector", pa.list_(pa.float32(), 2)),
    ]
)
COUNTRIES = ("US", "DE", None)
Row = dict[str, Any]


def row(number: int) -> Row:
    """Return the row with this number, from which all its values are computed."""
    return {
        "id": number,
        "country": COUNTRIES[number % 3],
        "day": date(2024 + number % 2, 1 + number % 12, 1),
        "amount": f"{number}.25",
        "vector": [float(number), 0.5],
    }


def arrow(rows: list[Row]) -> pa.Table:
    """Rows as a table appends them."""
    columns = {name: [each[name] for each in rows] for name in SCHEMA.names}
    columns["amount"] = pa.array(columns["amount"], pa.string()).cast(SCHEMA.field("amount").type)
    return pa.table(columns, SCHEMA)


def plain(rows: list[Row]) -> list[Row]:
    """Rows as `rows.json` has them, in order of their ids."""
    return [{**each, "day": each["day"].isoformat()} for each in sorted(rows, key=_id)]


def _id(each: Row) -> int:
    return int(each["id"])


def make(folder: Path) -> None:
    """Write all samples."""
    held: dict[str, dict[str, Any]] = {}
    rows = [row(number) for number in range(12)]
    for name, layout, mode in (
        ("weak", "namespace", "weak"),
        ("strong", "namespace", "strong"),
        ("expressions-weak", "expressions", "weak"),
        ("expressions-strong", "expressions", "strong"),
    ):
        by = "country, year(day)"
        table = phalanx.create(folder / name, SCHEMA, by, layout=layout, transaction=mode)
        held[name] = {
            "rows": plain(_apply_changes(table, rows, mode)),
            "snapshots": _snapshots(table),
        }
    table = phalanx.create(folder / "hive", SCHEMA, "country, day", layout="hive")
    table.append(arrow(rows))
    table.delete("id = 3")
    held["hive"] = {"rows": plain([each for each in rows if each["id"] != 3]), "snapshots": {}}
    held["weak-again"] = _weak_again(folder / "weak-again", rows)
    held["adopted"] = _create_adopted(folder / "adopted", rows)
    text = json.dumps(held, indent=1) + "\n"
    (folder / "rows.json").write_text(text)


def _apply_changes(table: phalanx.Table, rows: list[Row], mode: str) -> list[Row]:
    """Apply every kind of change; return the remaining rows."""
    table.append(arrow(rows[:6]))
    table.append(arrow(rows[6:]))
    table.delete("id IN (1, 4)")
    table.update("id = 5", {"amount": "amount + 1"})
    table.merge(arrow([{**rows[2], "country": "FR"}, row(20)]), on="id")
    table.create_index("id", "BTREE")
    if mode == "strong":
        table.drop_partitions("country = 'FR'")
    table.evolve("bucket(4, id)")
    table.append(arrow([row(21), row(22)]))
    table.add_column(pa.field("note", pa.string()))
    table.rename_column("note", "remark")
    if mode == "strong":
        with table.transaction() as transaction:
            transaction.delete("id = 21")
            transaction.append(_with_note([row(23)]))
    table.rewrite(rewrite_all=True)
    gone = {1, 4} | ({21, 2} if mode == "strong" else set())
    numbers = [*range(12), 20, 21, 22, *([23] if mode == "strong" else [])]
    left = [{**row(number), "remark": None} for number in numbers if number not in gone]
    for each in left:
        if each["id"] == 5:
            each["amount"] = "6.25"
        if each["id"] == 2:
            each["country"] = "FR"
        if each["id"] == 23:
            each["remark"] = "noted"
    return left


def _with_note(rows: list[Row]) -> pa.Table:
    return arrow(rows).append_column("remark", pa.array(["noted"] * len(rows)))


def _snapshots(table: phalanx.Table) -> dict[str, list[int]]:
    """The ids of the rows in each snapshot."""
    if table.mode == "weak":
        return {}
    return {
        str(number): sorted(table.at(number).scan(columns=["id"]).to_arrow()["id"].to_pylist())
        for number in table.snapshots()["id"].to_pylist()
    }


def _weak_again(place: Path, rows: list[Row]) -> dict[str, Any]:
    """A table that was strong once."""
    table = phalanx.create(place, SCHEMA, "country", transaction="strong")
    table.append(arrow(rows[:6]))
    table.delete("id = 0")
    table.set_mode("weak")
    table.append(arrow(rows[6:]))
    return {"rows": plain(rows[1:]), "snapshots": {}}


def _create_adopted(place: Path, rows: list[Row]) -> dict[str, Any]:
    """A table with a leaf that was a Lance table before."""
    table = phalanx.create(place, SCHEMA, "country")
    table.append(arrow([each for each in rows if each["country"] != "US"]))
    leaf = place / "plain.lance"
    lance.write_dataset(arrow([each for each in rows if each["country"] == "US"]), str(leaf))
    table.adopt(str(leaf), country="US")
    table.set_mode("strong")
    return {"rows": plain(rows), "snapshots": {}}


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


if __name__ == "__main__":
    archive = Path(__file__).with_name(f"{sys.argv[1]}.tar.gz")
    with tempfile.TemporaryDirectory() as folder, tarfile.open(archive, "x:gz") as written:
        make(Path(folder))
        written.add(folder, ".", filter=_anonymous)
