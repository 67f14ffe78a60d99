"""Races for the first commit of a strong table, which has no head row to replace yet."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

import phalanx
from integration.stores import Store
from phalanx.errors import PhalanxError
from phalanx.storage.cleanup import table_folders
from phalanx.storage.commit import head
from phalanx.storage.lance.fault_points import FaultPoint, observe_fault_points
from phalanx.storage.lance.location import Location
from phalanx.storage.manifest.manifest import FIRST_VERSION, Manifest
from phalanx.table.handle import handle_of
from phalanx.table.opening import NewTable
from phalanx.table.transactions import strong_mode as strong

ROWS = pa.table({"country": ["NL", "FR"], "n": [1, 2]})


@pytest.mark.parametrize("partitions", ["none", "some"])
def test_of_two_first_commits_one_is_refused(
    root: str, store: Store, monkeypatch: pytest.MonkeyPatch, partitions: str
) -> None:
    real = head.commit

    def commit_late(manifest: Manifest, *arguments: Any, **options: Any) -> int:
        monkeypatch.setattr(head, "commit", real)
        # Another process finds the namespace unfinished, and completes it first.
        strong.complete_change(Manifest.open(manifest.root))
        return real(manifest, *arguments, **options)

    if partitions == "none":
        monkeypatch.setattr(head, "commit", commit_late)
        table = phalanx.create(
            root,
            ROWS.schema,
            "country",
            transaction="strong",
            storage_options=store.storage_options,
        )
    else:
        table = phalanx.create(root, ROWS.schema, "country", storage_options=store.storage_options)
        table.append(ROWS)
        monkeypatch.setattr(head, "commit", commit_late)
        table.set_mode("strong")
    heads = Manifest.open(handle_of(table).refresh().root).read_rows_by_id([head.HEAD_ROW_ID])
    assert heads.num_rows == 1
    table.append(ROWS)
    assert table.snapshots().column("id").to_pylist() == [1, 2]
    assert table.scan().count_rows() == (2 if partitions == "none" else 4)


class Died(BaseException):
    """The end of a writer."""


@pytest.mark.parametrize("mode", ["weak", "strong"])
def test_a_table_is_there_with_its_first_rows_or_not_at_all(store: Store, mode: str) -> None:
    """Wherever the writer dies, its files block no other writer, and vacuum removes them."""
    options, folder = store.storage_options, store.fresh()
    root = f"{folder}/t"
    new = NewTable.of(Location.of(root, options), ROWS.schema, "country", mode)
    steps = 0
    while True:
        count = itertools.count()

        def die(step: FaultPoint, count: Iterator[int] = count, last: int = steps) -> None:
            if next(count) == last:
                raise Died(step)

        job = new.begin()
        try:
            with observe_fault_points(die):
                job.commit([job.write(ROWS.to_reader())])
        except Died as died:
            steps += 1
            if died.args == (FaultPoint.MANIFEST_CREATED,):
                break
            assert not new.exists
            assert table_folders.list_folder(Location.of(folder, options)) in (
                None,
                table_folders.FolderListing((), ()),
            )
            continue
        raise AssertionError("the manifest was never put in its place")
    assert steps > 3
    # It died after the last step: the change is complete.
    table = phalanx.open(root, storage_options=options)
    assert sorted(table.scan().to_arrow()["n"].to_pylist()) == [1, 2]
    assert not table.verify(deep=True)
    if mode == "strong":
        assert table.snapshots()["operation"].to_pylist() == ["create"]
        assert table.at(1).scan().count_rows() == 2
        if store.storage_options is None:
            table.vacuum(timedelta(0))
            assert len(store.folders(root)) == 3
            assert table.scan().count_rows() == 2
    with pytest.raises(PhalanxError, match="a namespace exists there"):
        job.commit([])
    assert table.scan().count_rows() == 2


def test_two_jobs_that_make_the_same_table(root: str, store: Store) -> None:
    options = store.storage_options
    jobs = [
        NewTable.of(Location.of(root, options), ROWS.schema, "country", mode).begin()
        for mode in ("weak", "strong")
    ]
    files = [job.write(ROWS.to_reader()) for job in jobs]
    jobs[0].commit([files[0]])
    with pytest.raises(PhalanxError, match="a namespace exists there"):
        jobs[1].commit([files[1]])
    assert phalanx.open(root, storage_options=options).scan().count_rows() == 2


def test_a_new_manifest_has_one_number(root: str, store: Store) -> None:
    """Two writers that create a manifest in one place use one number, so the store refuses one."""
    options = store.storage_options
    for mode, rows in itertools.product(("weak", "strong"), (0, 1, 2)):
        place = Location.of(store.fresh(), options)
        job = NewTable.of(place, ROWS.schema, "country", mode).begin()
        job.commit([job.write(ROWS.slice(0, rows).to_reader())])
        assert Manifest.open(place).version == FIRST_VERSION
    made = phalanx.create(root, ROWS.schema, "country", storage_options=options)
    assert Manifest.open(Location.of(made.uri, options)).version == FIRST_VERSION
