"""Deletion and writes stay inside the table, whatever its manifest and its folder contain."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import phalanx
from phalanx.model.locations import resolve_location
from phalanx.storage.cleanup import table_folders
from phalanx.storage.lance.location import Location
from phalanx.storage.state.naming import leaf_directory
from phalanx.table.maintenance import vacuum as vacuuming
from tables import SCHEMA, rows

NOTHING = timedelta(0)


def read_rows(table: phalanx.Table) -> list[tuple[str, int]]:
    found = table.scan().to_arrow()
    return sorted(zip(found["k"].to_pylist(), found["n"].to_pylist(), strict=True))


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, links followed."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture(autouse=True)
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vacuuming, "LONGEST_WEAK_WRITE", NOTHING)


@pytest.fixture(params=["weak", "strong"])
def table(tmp_path: Path, request: pytest.FixtureRequest) -> phalanx.Table:
    made = phalanx.create(tmp_path / "table", SCHEMA, ["k"], transaction=request.param)
    made.append(rows(("a", 1), ("b", 2)))
    return made


@pytest.fixture
def outside_leaf(tmp_path: Path) -> Iterator[Path]:
    """A Lance table with an old version, which a vacuum would shrink."""
    where = tmp_path / "victim" / "leaf"
    lance.write_dataset(rows(("c", 7)), where)
    lance.write_dataset(rows(("c", 8)), where, mode="overwrite")
    before = contents(where)
    yield where
    assert contents(where) == before


def relocate(table: phalanx.Table, location: str | None) -> phalanx.Table:
    """Give the partition of 'a' another place in the manifest, as an attacker would."""
    manifest = lance.dataset(f"{table.uri}/__manifest")
    found = manifest.to_table(filter="object_type = 'table' AND partition_field_k = 'a'")
    place = found.column_names.index("location")
    manifest.merge_insert("object_id").when_matched_update_all().execute(
        found.set_column(place, "location", pa.array([location], pa.string()))
    )
    return phalanx.open(table.uri)


def old_versions(table: phalanx.Table) -> phalanx.Table:
    """Leave files for a vacuum to remove."""
    table.append(rows(("b", 3)))
    table.delete("k = 'b' AND n = 3")
    return table


def check_untouched(table: phalanx.Table, why: str) -> None:
    """Check that a vacuum does not touch a leaf, and says why in a result or an error."""
    try:
        said = str(table.vacuum(NOTHING).left_alone)
    except phalanx.UntrustedLocation as error:
        said = str(error)
    assert why in said


# ── what a manifest says ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "location",
    [
        "",
        " ",
        ".",
        "./",
        "/",
        "__manifest",
        "./__manifest",
        "__MANIFEST",
        "other/__manifest",
        "_phalanx_updates",
        "a/..",
        "a/../../victim/leaf",
        "%2e%2e/victim/leaf",
        "a/%2E%2e/%2e%2e/victim",
        ".. /victim",
        "leaf\0",
        "leaf\n",
        "../../../../../../../../../../../../..",
        None,
    ],
)
def test_places_that_no_leaf_can_have(table: phalanx.Table, location: str | None) -> None:
    before = contents(Path(table.uri))
    with pytest.raises(phalanx.PhalanxError, match="lists a partition at"):
        resolve_location(table.uri, location)
    crafted = relocate(table, location)
    steps: list[Callable[[], object]] = [
        lambda: crafted.scan().to_arrow(),
        lambda: crafted.append(rows(("a", 9))),
        lambda: crafted.vacuum(NOTHING),
        lambda: phalanx.open(table.uri, trust_locations=True).scan().to_arrow(),
    ]
    for step in steps:
        with pytest.raises(phalanx.PhalanxError):
            step()
    leaves = {name for name in before if "$dataset/" in name}
    assert leaves <= set(contents(Path(table.uri)))


@pytest.mark.parametrize("how", ["up", "absolute", "uri", "linked", "linked inside", "linked deep"])
def test_a_leaf_outside_is_not_touched(table: phalanx.Table, outside_leaf: Path, how: str) -> None:
    root = Path(table.uri)
    location = {
        "up": "../victim/leaf",
        "absolute": str(outside_leaf),
        "uri": f"file://{outside_leaf}",
        "linked": "leaf",
        "linked inside": "folder/leaf",
        "linked deep": "shell",
    }[how]
    if how == "linked":
        (root / "leaf").symlink_to(outside_leaf)
    if how == "linked inside":
        (root / "folder").symlink_to(outside_leaf.parent)
    if how == "linked deep":
        (root / "shell").mkdir()
        for name in os.listdir(outside_leaf):
            (root / "shell" / name).symlink_to(outside_leaf / name)
    version = lance.dataset(str(outside_leaf)).version
    if table.mode == "strong":
        _pin(table, version)
    crafted = old_versions(relocate(table, location))
    if how != "linked deep":
        with pytest.raises(phalanx.UntrustedLocation, match=r"outside.*adopt\(.*trust_locations"):
            crafted.scan("k = 'a'").to_arrow()
    trusting = phalanx.open(table.uri, trust_locations=True)
    assert sorted(n for _, n in read_rows(trusting)) == [2, 8]
    for write in (lambda: trusting.append(rows(("a", 9))), lambda: trusting.delete("k = 'a'")):
        with pytest.raises(phalanx.PhalanxError, match=r"Cannot write to .*outside|not written"):
            write()
    for each in (crafted, trusting):
        check_untouched(each, "outside")
    assert sorted(n for _, n in read_rows(trusting)) == [2, 8]


def _pin(table: phalanx.Table, version: int) -> None:
    manifest = lance.dataset(f"{table.uri}/__manifest")
    found = manifest.to_table(filter="object_type = 'table' AND partition_field_k = 'a'")
    place = found.column_names.index("read_version")
    manifest.merge_insert("object_id").when_matched_update_all().execute(
        found.set_column(place, "read_version", pa.array([version], pa.uint64()))
    )


def test_another_tables_leaf_with_a_copied_id(table: phalanx.Table, tmp_path: Path) -> None:
    """A crafted manifest says that it is the victim: the record also names the root."""
    victim = phalanx.create(tmp_path / "other", SCHEMA, ["k"])
    victim.append(rows(("a", 5)))
    victim.append(rows(("a", 6)))
    leaf = victim.plan().partitions[0].location
    salt = lance.dataset(f"{victim.uri}/__manifest").metadata["phalanx.salt"]
    if table.mode == "strong":
        _pin(table, lance.dataset(leaf).version)
    relocate(table, leaf)
    lance.dataset(f"{table.uri}/__manifest").update_metadata({"phalanx.salt": salt})
    before = contents(Path(victim.uri))
    crafted = phalanx.open(table.uri, trust_locations=True)
    assert sorted(n for _, n in read_rows(crafted)) == [2, 5, 6]
    with pytest.raises(phalanx.PhalanxError, match="belongs to the table at"):
        crafted.append(rows(("a", 9)))
    check_untouched(crafted, "belongs to the table at")
    with pytest.raises(phalanx.UntrustedLocation):
        phalanx.open(table.uri).scan().to_arrow()
    assert contents(Path(victim.uri)) == before


def test_a_table_inside_of_another_is_not_touched(table: phalanx.Table) -> None:
    inner = phalanx.create(f"{table.uri}/inner", SCHEMA, ["k"], transaction=table.mode)
    inner.append(rows(("a", 5)))
    inner.append(rows(("a", 6)))
    leaf = Path(inner.plan().partitions[0].location)
    # Even where its folder has the name of a leaf, and one of its leaves that of an orphan.
    named = Path(table.uri) / leaf_directory("v1$0123456789abcdef$dataset")
    shutil.copytree(inner.uri, named)
    before, copied = contents(Path(inner.uri)), contents(named)
    old_versions(table)
    assert table.vacuum(NOTHING).files.num_rows
    assert contents(Path(inner.uri)) == before
    assert contents(named) == copied
    # Listed by the outer one, its leaf still is the inner one's.
    if table.mode == "strong":
        _pin(table, lance.dataset(str(leaf)).version)
    crafted = relocate(table, f"inner/{leaf.name}")
    with pytest.raises(phalanx.PhalanxError, match="belongs to the table at"):
        crafted.append(rows(("a", 9)))
    check_untouched(crafted, "belongs to the table at")
    assert contents(Path(inner.uri)) == before
    table_folders.remove_table(Location.of(table.uri))
    assert contents(Path(inner.uri)) == before
    assert read_rows(phalanx.open(inner.uri)) == [("a", 5), ("a", 6)]


# ── symbolic links ───────────────────────────────────────────────────────────────────────────


def test_vacuum_follows_no_link(table: phalanx.Table, outside_leaf: Path) -> None:
    root = Path(table.uri)
    leaf = Path(table.plan().partitions[0].location)
    orphan = leaf_directory("v1$0123456789abcdef$dataset")
    (root / orphan).symlink_to(outside_leaf)
    (root / "_phalanx_updates").symlink_to(outside_leaf / "data")
    (leaf / "_indices").symlink_to(outside_leaf)
    half = root / leaf_directory("v1$fedcba9876543210$dataset")
    (half / "data").mkdir(parents=True)
    (half / "_versions").symlink_to(outside_leaf / "_versions")
    old_versions(table)
    table.vacuum(NOTHING)
    assert (half / "_versions").is_symlink()


def test_a_linked_manifest_is_not_written(table: phalanx.Table, tmp_path: Path) -> None:
    crafted = tmp_path / "crafted"
    crafted.mkdir()
    (crafted / "__manifest").symlink_to(Path(table.uri) / "__manifest")
    old_versions(table)
    before = contents(Path(table.uri))
    opened = phalanx.open(crafted)
    for change in (
        lambda: opened.vacuum(NOTHING),
        lambda: opened.append(rows(("z", 1))),
        lambda: opened.evolve("n"),
        lambda: opened.set_mode("weak" if table.mode == "strong" else "strong"),
    ):
        with contextlib.suppress(phalanx.PhalanxError):
            change()
        assert contents(Path(table.uri)) == before


def test_a_link_to_a_table_is_the_table(table: phalanx.Table, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    linked.symlink_to(table.uri)
    opened = old_versions(phalanx.open(linked))
    opened.append(rows(("c", 3)))
    assert opened.vacuum(NOTHING).files.num_rows
    assert read_rows(opened) == read_rows(phalanx.open(table.uri)) == [("a", 1), ("b", 2), ("c", 3)]
    table_folders.remove_table(Location.of(linked))
    assert not linked.exists()
    assert read_rows(phalanx.open(table.uri)) == [("a", 1), ("b", 2), ("c", 3)]


def test_dropping_a_table_follows_no_link(
    table: phalanx.Table, outside_leaf: Path, tmp_path: Path
) -> None:
    root = Path(table.uri)
    (root / "file").symlink_to(next((outside_leaf / "data").iterdir()))
    (root / "folder").symlink_to(outside_leaf)
    (root / "deep").mkdir()
    (root / "deep" / "folder").symlink_to(outside_leaf)
    table_folders.remove_table(Location.of(table.uri))
    assert not root.exists()
    left = tmp_path / ".phalanx-staged-1"
    left.symlink_to(outside_leaf)
    table_folders.remove_abandoned(Location.of(tmp_path), (".phalanx-staged-",), timedelta(days=-1))


# ── tables that move ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("how", ["moved", "copied"])
def test_a_table_that_moves_as_a_whole(table: phalanx.Table, tmp_path: Path, how: str) -> None:
    before = contents(Path(table.uri))
    target = tmp_path / "elsewhere" / "table"
    if how == "moved":
        target.parent.mkdir()
        shutil.move(table.uri, target)
    else:
        shutil.copytree(table.uri, target)
    opened = phalanx.open(target)
    opened.append(rows(("a", 3), ("z", 4)))
    opened.delete("n = 2")
    assert opened.vacuum(NOTHING).left_alone == {}
    assert read_rows(opened) == [("a", 1), ("a", 3), ("z", 4)]
    if how == "copied":
        assert contents(Path(table.uri)) == before


def test_an_adopted_leaf_after_a_move(table: phalanx.Table, tmp_path: Path) -> None:
    """The leaf belongs to the table's old place until the moved table adopts it."""
    mode, leaf = table.mode, tmp_path / "adopted"
    lance.write_dataset(rows(("x", 7)), leaf)
    table.set_mode("weak")
    table.adopt(leaf)
    table.set_mode(mode)
    table.append(rows(("x", 8)))
    table.delete("n = 7")
    assert table.vacuum(NOTHING).left_alone == {}
    moved = tmp_path / "moved"
    shutil.copytree(table.uri, moved)
    before = contents(leaf)
    opened = phalanx.open(moved)
    with pytest.raises(phalanx.UntrustedLocation, match="belongs to the table at"):
        opened.scan().to_arrow()
    assert [n for _, n in read_rows(phalanx.open(moved, trust_locations=True))] == [1, 2, 8]
    assert contents(leaf) == before
    opened.adopt(leaf)
    opened.append(rows(("x", 9)))
    assert [n for _, n in read_rows(phalanx.open(moved))] == [1, 2, 8, 9]
    assert opened.vacuum(NOTHING).left_alone == {}
    with pytest.raises(phalanx.PhalanxError):
        phalanx.open(table.uri).scan().to_arrow()
    with pytest.raises(phalanx.PhalanxError, match="nothing to do"):
        opened.adopt(leaf)


def test_leaves_without_a_record_are_the_tables(table: phalanx.Table) -> None:
    """Older versions wrote none."""
    for each in table.plan().partitions:
        lance.dataset(each.location).update_metadata({"phalanx.namespace": None})
    if table.mode == "strong":
        table.keep_foreign_writes()
    old_versions(table)
    assert table.vacuum(NOTHING).left_alone == {}
    assert read_rows(table) == [("a", 1), ("b", 2)]


def test_new_leaves_have_a_record(table: phalanx.Table) -> None:
    for each in table.plan().partitions:
        dataset = lance.dataset(each.location, version=each.version)
        for one in (dataset, lance.dataset(each.location), lance.dataset(each.location, version=2)):
            assert table.uri in one.metadata["phalanx.namespace"]


@pytest.mark.parametrize("place", ["s3://other/leaf", "abfss://leaf@evil.example/a", "gs://b/leaf"])
def test_another_store_is_not_asked(table: phalanx.Table, place: str) -> None:
    """The owner of that server would learn the credentials that open the table."""
    asked: list[object] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    asked.append(server.accept()[1])

        listening = threading.Thread(target=accept, daemon=True)
        listening.start()
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
        options = {
            **{"aws_endpoint": endpoint, "azure_endpoint": endpoint, "google_base_url": endpoint},
            **{"aws_access_key_id": "k", "aws_secret_access_key": "s", "allow_http": "true"},
        }
        crafted = relocate(table, place)
        opened = phalanx.open(crafted.uri, storage_options=options)
        with pytest.raises(phalanx.UntrustedLocation, match=r"in another store.*trust_locations"):
            opened.scan().to_arrow()
        with pytest.raises(phalanx.PhalanxError, match="in another store"):
            opened.append(rows(("a", 3)))
        server.shutdown(socket.SHUT_RDWR)
    listening.join(5)
    assert asked == []
