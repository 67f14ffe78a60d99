"""The examples in `help(phalanx.Table)`, run as they are written."""

import doctest
import inspect
import re
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


# ── the text ─────────────────────────────────────────────────────────────────────────────────

SECTIONS = re.compile(r"^(Args|Returns|Raises|Example):$", re.MULTILINE)


def list_methods() -> list[str]:
    members = vars(phalanx.Table).items()
    return [name for name, each in members if inspect.isfunction(each) and name[0] != "_"]


@pytest.mark.parametrize("name", list_methods())
def test_a_method_tells_what_it_returns_and_raises(name: str) -> None:
    method = getattr(phalanx.Table, name)
    wanted = {"Returns", "Raises", "Example"}
    if inspect.signature(method).return_annotation == "None":
        wanted.remove("Returns")
    found = SECTIONS.findall(inspect.getdoc(method) or "")
    assert wanted <= set(found)
    order = ["Args", "Returns", "Raises", "Example"]
    assert found == [each for each in order if each in found]


@pytest.mark.parametrize("name", list_methods())
def test_a_method_that_the_hive_layout_lacks_says_so(name: str) -> None:
    text = inspect.getdoc(getattr(phalanx.Table, name)) or ""
    assert ("hive layout" in text.partition("Raises:\n")[2]) == (name in NOT_IN_HIVE)


NOT_IN_HIVE = {
    *("adopt", "set_mode", "markers", "health", "set_checksums"),
    *("evolve", "add_column", "drop_column", "rename_column", "promote_column"),
    *("create_index", "optimize_indexes", "drop_index", "vacuum", "erase"),
    # With `target_spec` only.
    *("plan_rewrite", "rewrite"),
}


def test_the_hive_layout_is_refused_where_the_help_says_so(tmp_path: Path) -> None:
    table = phalanx.create(tmp_path / "hive", SCHEMA, "country", layout="hive")
    table.append(rows(1, "DE"))
    calls: dict[str, tuple[Any, ...]] = {
        "adopt": (tmp_path,),
        "set_mode": ("strong",),
        "evolve": ("id",),
        "add_column": (pa.field("source", pa.string()),),
        "drop_column": ("note",),
        "rename_column": ("note", "text"),
        "promote_column": ("id", pa.int64()),
        "create_index": ("id", "BTREE"),
        "drop_index": ("id_btree",),
        "erase": ("id = 1",),
    }
    for name in NOT_IN_HIVE:
        options = {"target_spec": 1} if name.endswith("rewrite") else {}
        with pytest.raises(phalanx.PhalanxError, match="hive layout"):
            getattr(table, name)(*calls.get(name, ()), **options)


# ── the same methods, grouped ────────────────────────────────────────────────────────────────

GROUPS = {"inspect": phalanx.TableInspection, "maintenance": phalanx.TableMaintenance}


@pytest.mark.parametrize("group", GROUPS)
def test_grouped_methods_are_those_of_the_table(group: str) -> None:
    """They are methods of the class, so that help() shows them, and take the same arguments."""
    methods = [name for name in vars(GROUPS[group]) if not name.startswith("_")]
    assert len(methods) > 8
    for name in methods:
        grouped, own = getattr(GROUPS[group], name), getattr(phalanx.Table, name)
        assert inspect.signature(grouped) == inspect.signature(own)
        assert f"See `Table.{name}`." in (inspect.getdoc(grouped) or "")


class Recorder:
    """Stands for a table, and returns the arguments of each call."""

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **options: (name, arguments, options)


@pytest.mark.parametrize("group", GROUPS)
def test_grouped_methods_pass_every_argument_on(group: str) -> None:
    methods = [name for name in vars(GROUPS[group]) if not name.startswith("_")]
    for name in methods:
        signature = inspect.signature(getattr(phalanx.Table, name))
        given: dict[str, Any] = {each: object() for each in list(signature.parameters)[1:]}
        for each in signature.parameters.values():
            if each.kind is each.VAR_KEYWORD:
                given["some_option"] = given.pop(each.name)
        called, arguments, options = getattr(GROUPS[group](Recorder()), name)(**given)
        assert called == name
        bound = signature.bind(None, *arguments, **options).arguments
        bound |= bound.pop("limits", {}) | bound.pop("options", {})
        assert {key: bound[key] for key in given} == given
