"""Invalid metadata: one clear error, never a hang or a raw exception."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.file import LanceFileWriter

import phalanx
from phalanx.errors import InvalidManifest, PhalanxError, StorageFailure
from phalanx.model.stored_json import COUNT, read_object
from phalanx.storage.commit.head import HEAD_ROW_ID, Head
from phalanx.storage.commit.history_rows import PHALANX_TYPE, build_history_rows, snapshot_row_id
from phalanx.storage.lance.failures import (
    ErrorTranslator,
    read_each,
    translate_errors,
    translate_read_errors,
)
from phalanx.storage.lance.location import Location
from phalanx.storage.manifest.changes import upsert_rows
from phalanx.storage.manifest.manifest import MANIFEST_DIRECTORY, Manifest
from phalanx.storage.search.tokenizer import read_document_lengths
from phalanx.storage.state.properties import EPOCH, FORMAT_NUMBER, FORMAT_PROPERTY, INDEXES, MODE
from phalanx.table.history.change_feed import ChangeFeed
from phalanx.table.jobs.row_job import RowJob
from phalanx.table.jobs.write_job import WriteJob
from tables import SCHEMA, contents, rows

DEEP = "[" * 100_000 + "]" * 100_000
HEAD_FACTS: dict[str, Any] = {
    "sequence": 3,
    "epoch": 0,
    "horizon": "",
    "time": "2026-01-01T00:00:00+00:00",
    "published": 3,
}


@pytest.fixture
def table(tmp_path: Path) -> phalanx.Table:
    table = phalanx.create(tmp_path / "table", SCHEMA, ["k"], transaction="strong")
    table.append(rows(("a", 1), ("b", 2)))
    table.update("n = 2", {"n": "3"})
    return table


def write_row(table: phalanx.Table, name: str, text: str | None) -> None:
    """Put a text into a row of the manifest, as another program might."""
    upsert_rows(
        Manifest.open(Location.of(table.uri)), build_history_rows({name: text}, PHALANX_TYPE)
    )  # type: ignore[dict-item]


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
    write_row(table, HEAD_ROW_ID, json.dumps({**facts, "published": facts["published"]}))
    damaged = phalanx.open(table.uri)
    for attempt in (
        lambda: damaged.append(rows(("a", 9))),
        lambda: damaged.transaction(),
        lambda: damaged.newest_snapshot,
        lambda: damaged.vacuum(),
    ):
        with pytest.raises(InvalidManifest, match=HEAD_ROW_ID):
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
    with pytest.raises(InvalidManifest, match="the newest snapshot"):
        Head.from_json(text)  # type: ignore[arg-type]


@pytest.mark.parametrize("column", ["metadata", "read_version"])
def test_a_head_without_its_columns(table: phalanx.Table, column: str) -> None:
    """A flipped bit in the schema of the manifest gives a column another name."""
    manifest = lance.dataset(f"{table.uri}/{MANIFEST_DIRECTORY}")
    manifest.alter_columns({"path": column, "name": "another"})
    calls: list[Callable[[phalanx.Table], object]] = [
        lambda each: each.append(rows(("a", 1))),
        lambda each: each.delete("n = 1"),
        lambda each: each.evolve([]),
        lambda each: each.vacuum(),
        lambda each: each.set_mode("weak"),
    ]
    for call in calls:
        with pytest.raises(InvalidManifest, match=column):
            call(phalanx.open(table.uri))


def test_a_head_far_behind_causes_no_hang(table: phalanx.Table) -> None:
    """Another writer used the first numbers: history may begin anywhere."""
    far = 10**17
    snapshot = {
        **{"id": far, "time": "2026-01-01T00:00:00+00:00", "operation": "append"},
        **{"manifest_version": Manifest.open(Location.of(table.uri)).version},
    }
    write_row(table, snapshot_row_id(far), json.dumps(snapshot))
    write_row(table, HEAD_ROW_ID, json.dumps({**HEAD_FACTS, "sequence": far, "published": 0}))
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
    name = snapshot_row_id(3)
    facts = json.loads(manifest.read_row(name).column("metadata")[0].as_py())
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


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (EPOCH, "9" * 5000),
        (EPOCH, "-1"),
        (MODE, "odd"),
        (FORMAT_PROPERTY, "one"),
        (FORMAT_PROPERTY, "9" * 5000),
    ],
)
def test_a_property(table: phalanx.Table, key: str, text: str) -> None:
    set_property(table, key, text)
    with pytest.raises(InvalidManifest, match=key):
        phalanx.open(table.uri)


def test_a_table_of_a_newer_version(table: phalanx.Table) -> None:
    """An older reader says what to do, and a table without the number is one of version 1."""
    manifest = lance.dataset(f"{table.uri}/__manifest")
    assert manifest.metadata[FORMAT_PROPERTY] == str(FORMAT_NUMBER)
    newer = str(FORMAT_NUMBER + 1)
    set_property(table, FORMAT_PROPERTY, newer)
    with pytest.raises(InvalidManifest, match=rf"phalanx\.format {newer}.*Upgrade"):
        phalanx.open(table.uri)
    with pytest.raises(InvalidManifest, match=rf"phalanx\.format {newer}.*Upgrade"):
        table.append(rows(("a", 9)))
    set_property(table, FORMAT_PROPERTY, "")
    opened = phalanx.open(table.uri)
    assert opened.append(rows(("a", 9))) == 1
    opened.set_checksums(True)
    assert lance.dataset(f"{table.uri}/__manifest").metadata[FORMAT_PROPERTY] == str(FORMAT_NUMBER)


@pytest.mark.parametrize("key", ["schema", "partition_spec_v1"])
@pytest.mark.parametrize("text", [DEEP, '{"fields":[],"fields":[]}', '{"a":NaN}', "9" * 10_000])
def test_a_schema_or_spec(table: phalanx.Table, key: str, text: str) -> None:
    set_property(table, key, text)
    with pytest.raises(PhalanxError, match=r"schema|spec"):
        phalanx.open(table.uri)


def set_property(table: phalanx.Table, key: str, text: str) -> None:
    Location.of(table.uri).subfolder(MANIFEST_DIRECTORY).open().update_metadata({key: text})


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
    with (
        pytest.raises(StorageFailure, match="read the file"),
        translate_read_errors("read the file"),
    ):
        raise error
    items = read_each(failing(error), "read the file")
    assert next(items) == 1
    with pytest.raises(StorageFailure, match="read the file"):
        next(items)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(), MemoryError()])
def test_what_passes(error: BaseException) -> None:
    for guard in (translate_errors("do it"), translate_read_errors("do it")):
        with pytest.raises(type(error)), guard:
            raise error


@pytest.mark.parametrize(
    ("line", "kind"),
    [("{}['x']", KeyError), ("[][1]", IndexError), ("exec('assert False')", AssertionError)],
)
def test_mistakes_of_ours_pass(line: str, kind: type[Exception]) -> None:
    """A failed lookup in Phalanx's own code is a bug, not damage."""
    module: dict[str, Any] = {"__name__": "phalanx.storage.somewhere"}
    exec(f"def look():\n    return {line}", module)
    with pytest.raises(kind), translate_read_errors("read the file"):
        module["look"]()


def test_an_index_without_its_parts(tmp_path: Path) -> None:
    """Phalanx checks what it looks up in a file that may be damaged."""
    with LanceFileWriter(str(tmp_path / "metadata.lance"), pa.schema([("x", pa.int64())])):
        pass
    with pytest.raises(StorageFailure, match="does not list its partitions"):
        read_document_lengths(str(tmp_path), None)


def test_what_callers_do_with_items_is_their_own() -> None:
    def use() -> None:
        for _ in read_each([1, 2], "read"):
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        use()
    with pytest.raises(ValueError, match="mine"), translate_errors("write"):
        raise ValueError("mine")


def test_a_panic_in_a_call() -> None:
    with (
        pytest.raises(StorageFailure, match="do it: index out of bounds"),
        translate_errors("do it"),
    ):
        raise panic()


@pytest.mark.parametrize(
    "held",
    [
        *(phalanx.Table, phalanx.Scan, phalanx.Transaction, ChangeFeed, WriteJob, RowJob),
        phalanx.PartitionedNamespace,
    ],
)
def test_no_call_is_unguarded(held: type) -> None:
    """The guard covers every public method and property of the objects that users get."""
    assert issubclass(held, ErrorTranslator)
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
    # Constant lookup tables, which hold no user data.
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


def test_a_drop_is_found_however_its_json_is_written(tmp_path: Path) -> None:
    table = phalanx.create(tmp_path / "t", SCHEMA, ["k"], transaction="strong")
    table.append(rows(("a", 1), ("b", 2)))
    before = table.newest_snapshot
    table.drop_partitions("k = 'a'")
    uri = f"{table.uri}/__manifest"
    changed = lance.dataset(uri).update(
        {"metadata": """'{ "operation":"drop_partitions" }'"""},
        where="object_type = 'table_version' AND read_version IS NULL",
    )
    assert changed["num_rows_updated"] == 1
    found = phalanx.open(table.uri)
    assert found.newest_snapshot is not None
    assert contents(found.at(found.newest_snapshot)) == {("b", 2): 1}
    assert before is not None
    assert contents(found.at(before)) == {("a", 1): 1, ("b", 2): 1}
    feed = found.changes(before, found.newest_snapshot).to_arrow()
    assert feed.select(["k", "_change"]).to_pylist() == [{"k": "a", "_change": "delete"}]
    found.rollback(before)
    assert contents(found) == {("a", 1): 1, ("b", 2): 1}
