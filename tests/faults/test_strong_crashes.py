"""A writer in strong mode that dies at any moment: all of it is there, or nothing."""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import phalanx
from faults.crashing import Death, dying_at
from phalanx.storage.location import session
from phalanx.storage.publishing import publish

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64())])
Contents = tuple[tuple[str, ...], Counter[tuple[Any, ...]]]
# Leaves are changed side by side, so that later moments are much alike.
EVERY = 1 if os.environ.get("PHALANX_PROFILE") == "soak" else 3


def rows(*pairs: tuple[str | None, int]) -> pa.Table:
    return pa.table([[k for k, _ in pairs], [n for _, n in pairs]], schema=SCHEMA)


def contents(table: phalanx.Table) -> Contents:
    found = table.scan().to_arrow()
    return tuple(found.column_names), Counter(tuple(row.values()) for row in found.to_pylist())


def on_main(table: phalanx.Table) -> Counter[tuple[Any, ...]]:
    return Counter(
        tuple(row.values())
        for partition in table.plan().partitions
        for row in lance.dataset(partition.location).to_table().to_pylist()
    )


def transact(table: phalanx.Table) -> None:
    with table.transaction(marker="once") as txn:
        txn.append(rows(("a", 10), ("new", 10)))
        txn.delete("n = 1")
        txn.overwrite_partitions(rows(("b", 11), (None, 11)))


CHANGES: dict[str, Callable[[phalanx.Table], Any]] = {
    "append": lambda table: table.append(rows(("a", 10), ("new", 10), (None, 10))),
    "overwrite": lambda table: table.overwrite(rows(("b", 1), ("new", 1)), "n = 1"),
    "transaction": transact,
    "rollback": lambda table: table.rollback(2),
    "rename": lambda table: table.rename_column("n", "m"),
    "promote": lambda table: table.promote_column("f", pa.float64()),
    "evolve": lambda table: table.evolve([phalanx.truncate("k", 1)]),
    "weak": lambda table: table.set_mode("weak"),
}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("template") / "table"
    table = phalanx.create(root, SCHEMA, ["k"], transaction="strong")
    table.append(rows(("a", 1), ("a", 2), ("b", 1)))
    table.append(rows(("a", 3), (None, 3)))
    table.add_column(pa.field("f", pa.float32()))
    table.drop_column("f")
    return root


def prepared(template: Path, root: Path, name: str) -> Path:
    shutil.copytree(template, root)
    if name == "promote":
        phalanx.open(root).add_column(pa.field("f", pa.float32()))
    return root


@pytest.mark.parametrize("name", list(CHANGES))
def test_a_change_dies_at_any_moment(template: Path, tmp_path: Path, name: str) -> None:
    change = CHANGES[name]
    whole = phalanx.open(prepared(template, tmp_path / "whole", name))
    old = contents(whole)
    change(whole)
    new, mode = contents(whole), whole.mode
    moment = 0
    while True:
        root = prepared(template, tmp_path / f"copy{moment}", name)
        with dying_at(moment) as doom:
            try:
                change(phalanx.open(root))
            except Death:
                pass
            else:
                break
        assert doom.dead
        table = phalanx.open(root)
        found = contents(table)
        assert found in (old, new), moment
        check_the_next_writer(root, tmp_path / "next")
        if EVERY == 1 or moment % 2:
            check_vacuum(root, tmp_path / "vacuumed")
        try:
            change(table)
        except phalanx.PhalanxError:
            # The name is gone: the change was made before.
            assert (name, found) == ("rename", new)
        if name != "append":
            assert contents(phalanx.open(root)) == new, moment
        assert table.mode == mode
        assert on_main(table) == contents(table)[1], moment
        shutil.rmtree(root)
        moment += 1 if moment < 8 else EVERY
    assert moment >= 4


def check_the_next_writer(root: Path, copy: Path) -> None:
    """Another writer goes on as if nothing had been, and main follows."""
    shutil.copytree(root, copy)
    table = phalanx.open(copy)
    before = contents(table)
    more = table.scan(limit=1).to_arrow()
    table.append(more)
    after = contents(table)
    assert after[1] - before[1] == Counter(tuple(row.values()) for row in more.to_pylist())
    if table.mode == "strong":
        publish(table._manifest.latest())
        assert table.snapshots()["id"].to_pylist() == list(range(1, table.snapshots().num_rows + 1))
    assert on_main(table) == after[1]
    shutil.rmtree(copy)


def check_vacuum(root: Path, copy: Path) -> None:
    """What the dead writer left goes, and no file that anybody needs."""
    shutil.copytree(root, copy)
    table = phalanx.open(copy)
    before = contents(table)
    # A change of the mode that was under way is completed.
    table.append(table.scan(limit=0).to_arrow())
    if table.mode == "strong":
        # The first one completes what was cut off: what that replaces was the newest until then.
        for _ in range(2):
            time.sleep(0.02)
            table.vacuum(timedelta(0))
            session.cache_clear()
            assert contents(phalanx.open(copy)) == before
        assert table.snapshots().num_rows == 1
        assert files_of(copy) == listed_by(table)
    table = phalanx.open(copy)
    assert contents(table) == before
    assert on_main(table) == before[1]
    shutil.rmtree(copy)


def files_of(root: Path) -> set[str]:
    """The files of rows, and of deleted rows, wherever a table could have them."""
    return {
        str(path.relative_to(root))
        for kind in ("data", "_deletions")
        for path in root.glob(f"*_v*/{kind}/*")
    }


def listed_by(table: phalanx.Table) -> set[str]:
    found = set()
    for partition in table.plan().partitions:
        name = Path(partition.location).name
        for fragment in lance.dataset(
            partition.location, version=partition.version
        ).get_fragments():
            found |= {f"{name}/data/{file.path}" for file in fragment.data_files()}
            if (deleted := fragment.deletion_file()) is not None:
                found.add(f"{name}/{deleted}")
    return found
