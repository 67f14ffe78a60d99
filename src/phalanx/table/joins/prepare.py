"""Joins of two tables: planned from their manifests, and read group by group."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeAlias

import pyarrow as pa

from phalanx.errors import PhalanxError
from phalanx.model.predicates.predicate import TRUE, Predicate
from phalanx.model.predicates.rendering import to_datafusion
from phalanx.model.specs.partition_key import PartitionKey, plain_values
from phalanx.planning.joins.keys import On, join_keys
from phalanx.planning.joins.kinds import How
from phalanx.planning.joins.leaves import Fragment, JoinedTable, JoinLeaf, SpecLeaves
from phalanx.planning.joins.plan import JoinPlan, planned
from phalanx.planning.pruning.scan_plan import LEAF_COLUMNS, located
from phalanx.storage.joining import MEMORY
from phalanx.storage.lance.failures import told
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.parallel import in_parallel
from phalanx.storage.manifest.manifest import Manifest
from phalanx.table.joins.reader import JoinReader, SideReader, join_columns
from phalanx.table.opening import open
from phalanx.table.read.inspection import bytes_of
from phalanx.table.read.scan import bound, plan_of
from phalanx.table.table import Table

Joinable: TypeAlias = Table | str | os.PathLike[str]


def plan_join(
    left: Joinable,
    right: Joinable,
    on: On,
    *,
    left_where: str | None = None,
    right_where: str | None = None,
    storage_options: dict[str, str] | None = None,
) -> JoinPlan:
    """How two tables are joined on equal columns (format: Storage Partitioned Join).

    A table is given as such, or by its URI, which `storage_options` are for. `on` is a column, a
    list of columns, or a list of (left, right) pairs. The predicates prune each side before.
    """
    mine, theirs = (_manifest(table, storage_options) for table in (left, right))
    keys = join_keys(on, mine.properties.schema, theirs.properties.schema)
    return planned(_side(mine, left_where), _side(theirs, right_where), keys)


def prepare_join(
    left: Joinable,
    right: Joinable,
    on: On,
    how: How,
    *,
    left_columns: Sequence[str] | None = None,
    right_columns: Sequence[str] | None = None,
    left_where: str | None = None,
    right_where: str | None = None,
    storage_options: dict[str, str] | None = None,
    memory: int = MEMORY,
) -> tuple[JoinPlan, JoinReader]:
    """The plan of a join of one kind, and how its tasks are run; its columns are checked first."""
    mine, theirs = (_manifest(table, storage_options) for table in (left, right))
    schemas = mine.properties.schema, theirs.properties.schema
    keys = join_keys(on, *schemas)
    columns = join_columns(keys, *schemas, how, left_columns, right_columns)
    plan = planned(_side(mine, left_where), _side(theirs, right_where), keys)
    readers = [
        SideReader(
            manifest.properties.schema,
            tuple(name for column in columns if (name := column.of(is_left)) is not None),
            tuple((key.left if is_left else key.right, key.type) for key in keys),
            manifest.root,
        )
        for manifest, is_left in ((mine, True), (theirs, False))
    ]
    return plan, JoinReader(readers[0], readers[1], columns, memory)


def _manifest(table: Joinable, storage_options: dict[str, str] | None) -> Manifest:
    """The manifest of a table, as it is now or as of the table's snapshot."""
    opened = table if isinstance(table, Table) else open(table, storage_options=storage_options)
    found = opened._refreshed()
    if isinstance(found, Manifest):
        return found
    raise PhalanxError(
        f"Cannot join {found.root}: it has the {found.layout} layout. Make it a table of the "
        "newest format with upgrade(), or load it with Spark and join DataFrames."
    )


def _side(manifest: Manifest, where: str | None) -> JoinedTable:
    """A table with the leaves that have rows, each in the version that it has now."""
    properties = manifest.properties
    with told(f"plan a join of {manifest.root}"):
        plan = plan_of(manifest, bound(where, properties.schema))
        found = []
        for number, spec in properties.specs.items():
            leaves, residuals = plan.leaves[number], plan.residuals[number]
            values = leaves.select(leaves.column_names[len(LEAF_COLUMNS) :])
            columns = [plain_values(column) for column in values.columns]
            opened = in_parallel(
                lambda leaf: _measured(manifest.root.child(leaf[0]), leaf[1]), located(leaves)
            )
            made = [
                JoinLeaf(
                    PartitionKey(number, tuple(column[place] for column in columns)),
                    location,
                    version,
                    fragments,
                    _text(residuals.predicates[residuals.places[place]]),
                    residuals.predicates[residuals.places[place]],
                )
                for place, (location, version, fragments) in enumerate(opened)
            ]
            kept = [place for place, leaf in enumerate(made) if leaf.rows]
            chosen = values.take(pa.array(kept, pa.int64()))
            found.append(SpecLeaves(spec, tuple(made[place] for place in kept), chosen))
    return JoinedTable(manifest.root.uri, properties.schema, tuple(found))


def _measured(location: Location, version: int | None) -> tuple[str, int, tuple[Fragment, ...]]:
    """Where a leaf is, the version that is read, and its fragments."""
    dataset = location.open_leaf(version)
    fragments = (each.metadata for each in dataset.get_fragments())
    return (
        location.uri,
        dataset.version,
        tuple(Fragment(each.id, each.num_rows, bytes_of(each)) for each in fragments),
    )


def _text(predicate: Predicate) -> str | None:
    return None if predicate == TRUE else to_datafusion(predicate)
