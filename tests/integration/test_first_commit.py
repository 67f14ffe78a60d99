"""The first commit of a strong namespace: there is no head yet that could be the fence."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import phalanx
from integration.stores import Store
from phalanx.storage import head
from phalanx.storage.manifest import Manifest
from phalanx.table import strong

ROWS = pa.table({"country": ["NL", "FR"], "n": [1, 2]})


@pytest.mark.parametrize("partitions", ["none", "some"])
def test_of_two_first_commits_one_is_refused(
    root: str, store: Store, monkeypatch: pytest.MonkeyPatch, partitions: str
) -> None:
    real = head.commit

    def overtaken(manifest: Manifest, *arguments: Any, **options: Any) -> int:
        monkeypatch.setattr(head, "commit", real)
        # Another process finds the namespace unfinished, and completes it first.
        strong.complete(Manifest.open(manifest.root))
        return real(manifest, *arguments, **options)

    if partitions == "none":
        monkeypatch.setattr(head, "commit", overtaken)
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
        monkeypatch.setattr(head, "commit", overtaken)
        table.set_mode("strong")
    heads = Manifest.open(table._refreshed().root).rows_of([head.HEAD])
    assert heads.num_rows == 1
    table.append(ROWS)
    assert table.snapshots().column("id").to_pylist() == [1, 2]
    assert table.scan().count_rows() == (2 if partitions == "none" else 4)
