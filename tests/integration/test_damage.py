"""Metadata that nobody should have written: one clear error, never a hang or a raw exception."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lance.file import LanceFileWriter

import phalanx
from phalanx.errors import InvalidManifest, PhalanxError, StorageFailure
from phalanx.model.stored_json import COUNT, read_object
from phalanx.storage.commit.head import HEAD, Head
from phalanx.storage.commit.history_rows import PHALANX, history_rows, snapshot_id
from phalanx.storage.lance.failures import Guarded, reading, reading_each, told
from phalanx.storage.lance.location import Location
from phalanx.storage.manifest.changes import upsert
from phalanx.storage.manifest.manifest import DIRECTORY, Manifest
from phalanx.storage.search.tokenizer import lengths_in
from phalanx.storage.state.properties import EPOCH, INDEXES, MODE
from phalanx.table.history.change_feed import ChangeFeed
from phalanx.table.jobs.row_job import RowJob
from phalanx.table.jobs.write_job import WriteJob

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64())])
DEEP = "[" * 100_000 + "]" * 100_000
HEAD_FACTS: dict[str, Any] = {
    "sequence": 3,
    "epoch": 0,
    "horizon": "",
    "time": "2026-01-01T00:00:00+00:00",
    "published": 3,
}


def rows(*pairs: tuple[str, int]) -> pa.Table:
    return pa.table([[k for k, _ in pairs], [n for _, n in pairs]], schema=SCHEMA)


@pytest.fixture
def table(tmp_path: Path) -> phalanx.Table:
    table = phalanx.create(tmp_path / "table", SCHEMA, ["k"], transaction="strong")
    table.append(rows(("a", 1), ("b", 2)))
    table.update("n = 2", {"n": "3"})
    return table


def write_row(table: phalanx.Table, name: str, text: str | None) -> None:
    """Put a text into a row of the manifest, as a stranger would."""
    upsert(Manifest.open(Location.of(table.uri)), history_rows({name: text}, PHALANX))  # type: ignore[dict-item]


# ── the head ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("sequence", each) for each in (2**63 - 1, 2**63, 10**400, -1, "3", None, 3.0, True, [])),
        # It could be, but no such snapshot is listed.
        ("sequence", 10**17),
        *(("epoch", each) for each in (-1, "0", None, 0.5)),
        *(
            ("time", each)
            for each in ("", "yesterday", None, 5, "9999-12-31T23:59:59.999999+00:00")
        ),
        ("time", "2026-01-01T00:00:00"),
        *(("horizon", each) for each in ("yesterday", 5, [1])),
        *(("published", each) for each in (4, -1, "3", None)),
        ("refs", {}),
    ],
    ids=str,
)
def test_a_head_out_of_range(table: phalanx.Table, key: str, value: object) -> None:
    facts = {**HEAD_FACTS, key: value}
    write_row(table, HEAD, json.dumps({**facts, "published": facts["published"]}))
    damaged = phalanx.open(table.uri)
    for attempt in (
        lambda: damaged.append(rows(("a", 9))),
        lambda: damaged.transaction(),
        lambda: damaged.newest_snapshot,
        lambda: damaged.vacuum(),
    ):
        with pytest.raises(InvalidManifest, match=HEAD):
            attempt()
    assert sorted(damaged.scan().to_arrow().column("n").to_pylist()) == [1, 3]


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "null", "[]", "3", '"text"', DEEP, '{"a":' * 5000 + "1" + "}" * 5000),
        json.dumps(HEAD_FACTS)[:-1] + ', "sequence": 4}',
        json.dumps(HEAD_FACTS).replace("3", "NaN"),
        json.dumps(HEAD_FACTS).replace("3", "9" * 10_000),
        None,
    ],
    ids=range(12),
)
def test_a_head_that_is_no_such_object(text: str | None) -> None:
    with pytest.raises(InvalidManifest, match="where the table's history stands"):
        Head.from_json(text)  # type: ignore[arg-type]


def test_a_head_far_behind_hangs_nobody(table: phalanx.Table) -> None:
    """Another writer's numbers came first: history may begin anywhere."""
    far = 10**17
    snapshot = {
        **{"id": far, "time": "2026-01-01T00:00:00+00:00", "operation": "append"},
        **{"manifest_version": Manifest.open(Location.of(table.uri)).version},
    }
    write_row(table, snapshot_id(far), json.dumps(snapshot))
    write_row(table, HEAD, json.dumps({**HEAD_FACTS, "sequence": far, "published": 0}))
    table = phalanx.open(table.uri)
    assert table.append(rows(("a", 9))) == 1
    assert table.newest_snapshot == far + 1
    with pytest.raises(PhalanxError):
        table.changes(1).to_arrow()


# ── other rows, and properties ───────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "change",
    [
        {"id": 10**30},
        {"id": 4},
        {"time": "late"},
        {"operation": None},
        {"manifest_version": -1},
        {"rows_added": "many"},
        {"updates": "../../victim"},
    ],
    ids=str,
)
def test_a_snapshot_out_of_range(table: phalanx.Table, change: dict[str, object]) -> None:
    manifest = Manifest.open(Location.of(table.uri))
    name = snapshot_id(3)
    facts = json.loads(manifest.row(name).column("metadata")[0].as_py())
    write_row(table, name, json.dumps({**facts, **change}))
    damaged = phalanx.open(table.uri)
    for attempt in (
        lambda: damaged.snapshots(),
        lambda: damaged.at(3),
        lambda: damaged.changes(0).to_arrow(),
        lambda: damaged.vacuum(),
    ):
        with pytest.raises(InvalidManifest, match=r"__phalanx_snapshot\$3"):
            attempt()
    assert damaged.append(rows(("a", 9))) == 1


@pytest.mark.parametrize("text", ["{}", "3", DEEP, '[{"name": 1}]', '[{"name":"a","name":"b"}]'])
def test_a_list_of_indexes(table: phalanx.Table, text: str) -> None:
    set_property(table, INDEXES, text)
    with pytest.raises(InvalidManifest, match="list of indexes"):
        phalanx.open(table.uri)


@pytest.mark.parametrize(("key", "text"), [(EPOCH, "9" * 5000), (EPOCH, "-1"), (MODE, "odd")])
def test_a_property(table: phalanx.Table, key: str, text: str) -> None:
    set_property(table, key, text)
    with pytest.raises(InvalidManifest, match=key):
        phalanx.open(table.uri)


@pytest.mark.parametrize("key", ["schema", "partition_spec_v1"])
@pytest.mark.parametrize("text", [DEEP, '{"fields":[],"fields":[]}', '{"a":NaN}', "9" * 10_000])
def test_a_schema_or_spec(table: phalanx.Table, key: str, text: str) -> None:
    set_property(table, key, text)
    with pytest.raises(PhalanxError, match=r"schema|spec"):
        phalanx.open(table.uri)


def set_property(table: phalanx.Table, key: str, text: str) -> None:
    Location.of(table.uri).own(DIRECTORY).open().update_metadata({key: text})


def test_nothing_is_deep_that_is_wide() -> None:
    wide = json.dumps({"n": 1, "more": [{} for _ in range(5000)]})
    assert read_object(wide, "it", {"n": COUNT})["n"] == 1


# ── the guards ───────────────────────────────────────────────────────────────────────────────


def panic() -> BaseException:
    """A panic of native code, as Lance raises them."""
    kind = type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})
    found: BaseException = kind("index out of bounds")
    return found


def failing(error: BaseException) -> Iterator[int]:
    yield 1
    raise error


@pytest.mark.parametrize(
    "error", [panic(), pa.ArrowInvalid("bad"), OSError("bad"), KeyError("x"), IndexError("x")]
)
def test_what_reading_raises(error: BaseException) -> None:
    with pytest.raises(StorageFailure, match="read the file"), reading("read the file"):
        raise error
    items = reading_each(failing(error), "read the file")
    assert next(items) == 1
    with pytest.raises(StorageFailure, match="read the file"):
        next(items)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(), MemoryError()])
def test_what_passes(error: BaseException) -> None:
    for guard in (told("do it"), reading("do it")):
        with pytest.raises(type(error)), guard:
            raise error


@pytest.mark.parametrize(
    ("line", "kind"),
    [("{}['x']", KeyError), ("[][1]", IndexError), ("exec('assert False')", AssertionError)],
)
def test_mistakes_of_ours_pass(line: str, kind: type[Exception]) -> None:
    """A lookup that fails in a line of Phalanx is no damage, and must not be told as such."""
    module: dict[str, Any] = {"__name__": "phalanx.storage.somewhere"}
    exec(f"def look():\n    return {line}", module)
    with pytest.raises(kind), reading("read the file"):
        module["look"]()


def test_an_index_without_its_parts(tmp_path: Path) -> None:
    """What a line of Phalanx looks up in a file that may be damaged is checked."""
    with LanceFileWriter(str(tmp_path / "metadata.lance"), pa.schema([("x", pa.int64())])):
        pass
    with pytest.raises(StorageFailure, match="does not tell its parts"):
        lengths_in(str(tmp_path), None)


def test_what_callers_do_with_items_is_their_own() -> None:
    def use() -> None:
        for _ in reading_each([1, 2], "read"):
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        use()
    with pytest.raises(ValueError, match="mine"), told("write"):
        raise ValueError("mine")


def test_a_panic_in_a_call() -> None:
    with pytest.raises(StorageFailure, match="do it: index out of bounds"), told("do it"):
        raise panic()


@pytest.mark.parametrize(
    "held",
    [
        *(phalanx.Table, phalanx.Scan, phalanx.Transaction, ChangeFeed, WriteJob, RowJob),
        phalanx.PartitionedNamespace,
    ],
)
def test_no_call_is_unguarded(held: type) -> None:
    """Every public method and property of what users hold passes the guard."""
    assert issubclass(held, Guarded)
    for owner in held.__mro__:
        if not owner.__module__.startswith("phalanx."):
            continue
        for name, member in vars(owner).items():
            called = member.fget if isinstance(member, property) else member
            is_own = inspect.isfunction(called) and not name.startswith("_")
            if is_own and called.__name__ != "refuse":
                assert hasattr(called, "is_guarded"), f"{owner.__name__}.{name}"


def test_lance_is_read_in_one_place() -> None:
    """Scans go through storage/lance/scanning.py, and tables are opened by Location."""
    sources = Path(phalanx.__file__).parent
    # Tables of texts that are in no table of a user.
    allowed = {
        "storage/lance/scanning.py",
        "storage/lance/location.py",
        "storage/search/tokenizer.py",
    }
    for path in sources.rglob("*.py"):
        name = str(path.relative_to(sources))
        if name in allowed or not name.startswith(("storage/", "table/", "namespace")):
            continue
        text = path.read_text()
        calls = r"\blance\.dataset\((?!{)|dataset\.(scanner|to_table)\(|\._take_rows\("
        found = re.search(calls, text)
        assert found is None, f"{name} has {found}"
