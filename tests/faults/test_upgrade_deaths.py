"""An upgrade killed at any step leaves a table in one layout, and a second upgrade finishes."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import lance_namespace as catalog
import pyarrow as pa
import pytest
from lance_namespace import CreateNamespaceRequest

import phalanx
from faults.programs.upgrade_driver import kill_upgrade_at
from phalanx.storage.hive.files import PROPERTIES_FILE
from properties.table_model import as_multiset

SCHEMA = pa.schema([("day", pa.date32()), ("id", pa.string()), ("n", pa.int64())])


def rows(count: int) -> pa.Table:
    return pa.Table.from_pylist(
        [{"day": date(2025, 1, 1) if n % 2 else None, "id": f"{n}", "n": n} for n in range(count)],
        SCHEMA,
    )


@pytest.mark.parametrize(
    ("partition_by", "has_manifest", "partitions"),
    # Leaves without columns in their paths need no preparation.
    [("day", False, 2), ("bucket(2, id)", True, 2)],
)
def test_an_upgrade_dies_at_every_step(
    tmp_path: Path, partition_by: str, has_manifest: bool, partitions: int
) -> None:
    layouts = []
    for step in range(100):
        root = tmp_path / f"{step}"
        if has_manifest:
            namespace = catalog.connect("dir", {"root": str(root)})
            namespace.create_namespace(CreateNamespaceRequest(id=["other"]))
        table = phalanx.create(root, SCHEMA, partition_by, layout="hive")
        table.append(rows(8))
        died = kill_upgrade_at(step, str(root))
        found = phalanx.open(root)
        layouts.append(found.layout)
        assert as_multiset(found.scan().to_arrow()) == as_multiset(rows(8)), step
        # Writers use the layout that they find.
        assert found.append(rows(4)) == 4
        expected = as_multiset(pa.concat_tables([rows(8), rows(4)]))
        if found.layout == "hive":
            found.upgrade()
        else:
            assert "has the newest format" in str(found.upgrade())
        again = phalanx.open(root)
        assert again.layout == "namespace"
        assert as_multiset(again.scan().to_arrow()) == expected, step
        assert again.plan().total_partitions == partitions
        assert not (root / PROPERTIES_FILE).exists()
        if not died:
            break
    else:
        raise AssertionError("the upgrade never finished")
    # Early deaths leave the old layout, later ones the new layout.
    assert layouts == sorted(layouts)
    assert layouts.count("hive") > 2
    assert layouts.count("namespace") > 1
