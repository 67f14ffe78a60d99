"""Every kind of change in strong mode, for tests that interrupt it at any step."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa

import phalanx

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64()), ("f", pa.float32())])


def rows(*pairs: tuple[str | None, int]) -> pa.Table:
    """Build rows from pairs of a key and a number."""
    return pa.table(
        [[k for k, _ in pairs], [n for _, n in pairs], [n / 2 for _, n in pairs]], schema=SCHEMA
    )


def _nothing(_: phalanx.Table) -> None:
    pass


def _foreign_write(table: phalanx.Table) -> None:
    for key in ("a", "b"):
        [partition] = table.plan(f"k = '{key}'").partitions
        lance.write_dataset(rows((key, 500)), partition.location, mode="append")


@dataclass(frozen=True)
class Change:
    """A change, and the preparation that it needs.

    `repeats` is true if a second call after a success applies the change again.
    """

    run: Callable[[phalanx.Table], object]
    prepare: Callable[[phalanx.Table], object] = _nothing
    repeats: bool = False
    is_atomic: bool = True
    # Stock clients see the old rows of a leaf that is listed again, until its main is published.
    lists_again: bool = False


def _transact(table: phalanx.Table) -> None:
    with table.transaction(marker="once") as txn:
        txn.append(rows(("a", 10), ("new", 10)))
        txn.delete("n = 1")
        txn.append(rows(("new", 12)))
        txn.overwrite_partitions(rows(("b", 11), (None, 11)))


CHANGES = {
    "append": Change(lambda table: table.append(rows(("a", 10), ("b", 10))), repeats=True),
    "append to new partitions": Change(
        lambda table: table.append(rows(("a", 10), ("new", 10), ("newer", 10))), repeats=True
    ),
    "overwrite": Change(lambda table: table.overwrite(rows(("b", 1), ("new", 1)), "n = 1")),
    "overwrite partitions": Change(
        lambda table: table.overwrite_partitions(rows(("a", 7), ("new", 7), (None, 7)))
    ),
    "delete": Change(lambda table: table.delete("n IN (1, 3)")),
    "transaction": Change(_transact),
    "rollback": Change(lambda table: table.rollback(2)),
    "evolve": Change(lambda table: table.evolve([phalanx.truncate("k", 1)]), is_atomic=False),
    "add a column": Change(
        lambda table: table.add_column(pa.field("more", pa.int8())), is_atomic=False
    ),
    "rename a column": Change(lambda table: table.rename_column("f", "g"), is_atomic=False),
    "drop a column": Change(lambda table: table.drop_column("f"), is_atomic=False),
    "promote a column": Change(
        lambda table: table.promote_column("f", pa.float64()), is_atomic=False
    ),
    "promote a partition column": Change(
        lambda table: table.promote_column("i", pa.int64()),
        prepare=lambda table: (
            table.add_column(pa.field("i", pa.int32())),
            table.evolve([phalanx.identity("i")]),
        ),
        is_atomic=False,
    ),
    "to weak mode": Change(lambda table: table.set_mode("weak"), is_atomic=False),
    "to strong mode": Change(
        lambda table: table.set_mode("strong"),
        prepare=lambda table: table.set_mode("weak"),
        is_atomic=False,
    ),
    "keep foreign writes": Change(
        lambda table: table.keep_foreign_writes(), prepare=_foreign_write
    ),
    "discard foreign writes": Change(
        lambda table: table.discard_foreign_writes(), prepare=_foreign_write
    ),
    "rewrite": Change(lambda table: table.rewrite(min_input_files=2)),
    "move to another spec": Change(
        lambda table: table.rewrite(target_spec=2),
        prepare=lambda table: table.evolve([phalanx.bucket("n", 2)]),
    ),
    "vacuum": Change(lambda table: table.vacuum(timedelta(0))),
    "update": Change(
        lambda table: table.update(
            "n IN (1, 3)", {"n": "n + 100", "k": "CASE WHEN k = 'a' THEN 'new' ELSE k END"}
        )
    ),
    "merge": Change(
        lambda table: table.merge(rows(("a", 1), ("c", 3), ("b", 30), ("new", 31)), "n")
    ),
    "drop partitions": Change(lambda table: table.drop_partitions("k IN ('a', 'c')")),
    "append to a dropped partition": Change(
        lambda table: table.append(rows(("a", 10), ("b", 10))),
        prepare=lambda table: table.drop_partitions("k <> 'c'"),
        repeats=True,
        lists_again=True,
    ),
    "rollback of a drop": Change(
        lambda table: table.rollback(5),
        prepare=lambda table: table.drop_partitions("k IN ('a', 'c')"),
    ),
    "index": Change(lambda table: table.create_index("n", "BTREE")),
    # Interrupted after its commit it raises an error, because files may be left.
    "erase": Change(lambda table: table.erase("n IN (1, 3)"), is_atomic=False),
    "erase a partition": Change(lambda table: table.erase("k = 'a'"), is_atomic=False),
}


# Changes that need a table of the expression draft.
DRAFT_CHANGES = {"upgrade": Change(lambda table: table.upgrade(), is_atomic=False)}


def make_template(root: Path, layout: str = "namespace") -> None:
    """Create a table with several snapshots, several files in a leaf, NULLs and deleted rows."""
    table = phalanx.create(root, SCHEMA, ["k"], transaction="strong", layout=layout)
    table.append(rows(("a", 1), ("a", 2), ("b", 1), ("b", 5), ("c", 4)))
    table.append(rows(("a", 3), (None, 3), (None, 8)))
    table.delete("n = 2")
    table.append(rows(("a", 6)))


def copy_prepared(template: Path, root: Path, change: Change) -> phalanx.Table:
    """Copy the template, and prepare the copy for the change."""
    shutil.copytree(template, root)
    table = phalanx.open(root)
    change.prepare(table)
    return table
