"""The examples in `help(phalanx.Table)`, run as they are written."""

import doctest
import inspect
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import phalanx

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("country", pa.string()),
        ("amount", pa.float64()),
        ("note", pa.string()),
        ("vector", pa.list_(pa.float32(), 2)),
    ]
)


def rows(first: int, *countries: str) -> pa.Table:
    """Rows with ids from `first` on: the amount is ten times the id, and the vector (id, 0)."""
    ids = range(first, first + len(countries))
    return pa.table(
        {
            "id": ids,
            "country": countries,
            "amount": [10.0 * number for number in ids],
            "note": ["red shoes" if number == 3 else "a blue hat" for number in ids],
            "vector": [[float(number), 0.0] for number in ids],
        },
        SCHEMA,
    )


def examples() -> list[doctest.DocTest]:
    """The examples of the class, and of each of its methods and properties."""
    members = {"Table": phalanx.Table, **vars(phalanx.Table), "create": phalanx.create}
    members["open"] = phalanx.open
    found = (
        doctest.DocTestParser().get_doctest(inspect.getdoc(member) or "", {}, name, None, None)
        for name, member in members.items()
        if not name.startswith("_")
    )
    return [each for each in found if each.examples]


@pytest.mark.parametrize("example", examples(), ids=lambda example: example.name)
def test_an_example_does_what_it_says(example: doctest.DocTest, tmp_path: Path) -> None:
    names: dict[str, Any] = {"phalanx": phalanx, "pa": pa, "lance": lance, "schema": SCHEMA}
    names |= {"uri": tmp_path / "events", "rows": rows(4, "FR", "IT")}
    if example.name not in ("Table", "create"):
        names["events"] = phalanx.create(names["uri"], SCHEMA, ["country"], transaction="strong")
        names["events"].append(rows(1, "DE", "DE", "FR"))
    example.globs = names
    failures: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=failures.append)
    assert not failures, "".join(failures)
