"""Leaves with the old names of Lance's versions: accepted in weak mode, refused in strong mode."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta

import lance
import pyarrow as pa
import pytest

import phalanx
from integration.stores import Store
from phalanx.errors import PhalanxError
from tables import SCHEMA, numbers, rows_of_key


def old_table(root: str, store: Store, data: pa.Table) -> str:
    uri = f"{root}/old.lance"
    options = store.storage_options
    lance.write_dataset(data, uri, enable_v2_manifest_paths=False, storage_options=options)
    return uri


def migrate(uri: str, store: Store) -> None:
    lance.dataset(uri, storage_options=store.storage_options).migrate_manifest_paths_v2()


def test_strong_mode_waits_for_new_paths(root: str, store: Store) -> None:
    options = store.storage_options
    table = phalanx.create(root, SCHEMA, ["k"], storage_options=options)
    table.append(rows_of_key("b", [1]))
    uri = old_table(root, store, rows_of_key("a", [2]))
    table.adopt(uri)
    table.append(rows_of_key("a", [3]))
    with pytest.raises(PhalanxError, match=r"old\.lance has v1 manifest paths.*migrate_manifest"):
        table.set_mode("strong")
    again = phalanx.open(root, storage_options=options)
    assert again.mode == "weak"
    again.append(rows_of_key("a", [4]))
    again.add_column(pa.field("more", pa.int8()))
    again.drop_column("more")
    assert numbers(again) == [1, 2, 3, 4]
    pinned = lance.dataset(uri, version=1, storage_options=options).count_rows()
    migrate(uri, store)
    again.set_mode("strong")
    again.append(rows_of_key("a", [5]))
    again.delete("n = 2")
    again.rollback(2)
    assert numbers(again) == [1, 2, 3, 4, 5]
    again.vacuum()
    assert lance.dataset(uri, version=1, storage_options=options).count_rows() == pinned
    again.vacuum(timedelta(0))
    assert numbers(again) == [1, 2, 3, 4, 5]
    assert lance.dataset(uri, storage_options=options).count_rows() == 4


def test_adoption_with_other_field_ids(root: str, store: Store) -> None:
    options = store.storage_options
    table = phalanx.create(root, SCHEMA, ["k"], storage_options=options)
    uri = old_table(root, store, rows_of_key("a", [2]).select(["n", "k"]))
    with pytest.raises(PhalanxError, match=r"Cannot adopt .*old\.lance has v1 manifest paths"):
        table.adopt(uri)
    assert lance.dataset(uri, storage_options=options).version == 1
    migrate(uri, store)
    table.adopt(uri)
    assert numbers(table) == [2]


def test_an_open_client_goes_on_with_old_paths(root: str, store: Store) -> None:
    """Why Phalanx does not migrate a leaf by itself: the table does not open, or lacks the rows."""
    uri = old_table(root, store, rows_of_key("a", [1]))
    client = lance.dataset(uri, storage_options=store.storage_options)
    migrate(uri, store)
    client.insert(rows_of_key("a", [2]))
    seen = 0
    with suppress(ValueError):
        seen = lance.dataset(uri, storage_options=store.storage_options).count_rows()
    assert seen < 2
