"""Iceberg tables, by way of pyiceberg: plans of scans and rewrites, and the rewrites.

>>> lake = phalanx.iceberg.open(catalog.load_table("sales.orders"))
>>> print(lake.plan("order_id = 42"))
>>> lake.rewrite(lake.plan_rewrite("ts >= '2026-01-01'"))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from phalanx.foreign.iceberg.deletes import IcebergDelete
from phalanx.foreign.iceberg.plan import IcebergFile, IcebergPlan
from phalanx.foreign.iceberg.rewrite import IcebergRewritten
from phalanx.foreign.iceberg.rows import IcebergUnit
from phalanx.foreign.iceberg.table import IcebergTable, open_iceberg_table

if TYPE_CHECKING:
    from pyiceberg.table import Table

__all__ = [
    "IcebergDelete",
    "IcebergFile",
    "IcebergPlan",
    "IcebergRewritten",
    "IcebergTable",
    "IcebergUnit",
    "open",
]


def open(
    table: Table, snapshot: int | str | None = None, *, trust_locations: bool = False
) -> IcebergTable:
    """Open an Iceberg table at a snapshot.

    Args:
        table: A table of pyiceberg.
        snapshot: The id, or the name of a branch or tag; None: the current snapshot.
        trust_locations: Trust the writer of the table: also read and write files outside of its
            folder, and use its properties that configure the store. By default both are refused.

    Returns:
        The table: `specs`, `plan(where)`, `plan_rewrite(where)` and `rewrite(plan)`.

    Raises:
        InvalidCatalog: The table has no such snapshot, or its metadata are damaged.
        UntrustedLocation: The table names files outside of its folder.
    """
    return open_iceberg_table(table, snapshot, trust_locations=trust_locations)
