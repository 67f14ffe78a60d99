"""Iceberg tables, through pyiceberg: what to read of them, what to rewrite, and the rewrite itself.

>>> lake = phalanx.iceberg.open(catalog.load_table("sales.orders"))
>>> print(lake.plan("order_id = 42"))
>>> lake.rewrite(lake.plan_rewrite("ts >= '2026-01-01'"))
"""

from __future__ import annotations

try:
    from pyiceberg.table import Table
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        "phalanx.iceberg needs pyiceberg: install phalanx-lance[iceberg]."
    ) from missing

from phalanx.errors import PhalanxError, shown
from phalanx.foreign.iceberg.deletes import IcebergDelete
from phalanx.foreign.iceberg.plan import IcebergFile, IcebergPlan
from phalanx.foreign.iceberg.rewrite import IcebergRewritten
from phalanx.foreign.iceberg.rows import IcebergUnit
from phalanx.foreign.iceberg.table import IcebergTable

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
    """The table at its current snapshot, or at one by its id, or by the name of a branch or tag.

    Files that the table lists outside of its own folder are neither read nor written, and
    properties of the table that say how its store is reached are refused, unless
    `trust_locations=True` says that whoever wrote the table is trusted.
    """
    if not isinstance(table, Table):
        raise PhalanxError(
            f"Cannot open {shown(table)}: expected a table of pyiceberg, such as "
            "catalog.load_table('sales.orders')."
        )
    return IcebergTable(table, snapshot, trust_locations=trust_locations)
