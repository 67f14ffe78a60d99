"""Planning of joins of two tables from their manifests."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import TypeAlias

import pyarrow as pa

from phalanx.arguments import JoinHow
from phalanx.errors import PhalanxError
from phalanx.model.predicates.predicate import TRUE, Predicate
from phalanx.model.predicates.rendering import to_datafusion
from phalanx.model.specs.partition_key import PartitionKey, to_python_values
from phalanx.planning.formatting import format_count
from phalanx.planning.joins.keys import JoinKey, JoinOn, resolve_join_keys
from phalanx.planning.joins.leaves import JoinedTable, JoinFragment, JoinLeaf, SpecLeaves
from phalanx.planning.joins.plan import JoinPlan, build_join_plan
from phalanx.planning.pruning.leaf_columns import LEAF_COLUMNS, list_leaf_versions
from phalanx.storage.lance.failures import translate_errors
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.parallel import map_parallel
from phalanx.storage.manifest.manifest import Manifest
from phalanx.storage.streams.hash_join import JOIN_MEMORY
from phalanx.table.handle import handle_of
from phalanx.table.joins.reader import JoinReader, SideReader, resolve_join_columns
from phalanx.table.opening import open
from phalanx.table.read.inspection import bytes_of
from phalanx.table.read.scan import bind_where, plan_scan
from phalanx.table.table import Table

_LOGGER = logging.getLogger("phalanx.table")
Joinable: TypeAlias = Table | str | os.PathLike[str]


def plan_join(
    left: Joinable,
    right: Joinable,
    on: JoinOn,
    *,
    left_where: str | None = None,
    right_where: str | None = None,
    storage_options: dict[str, str] | None = None,
) -> JoinPlan:
    """Plan the join of two tables on equal columns (format: Storage Partitioned Join).

    A table is a `Table`, or a URI, which is opened with `storage_options`. `on` is a column, a
    list of columns, or a list of (left, right) pairs. The predicates prune each side first.
    """
    left_manifest, right_manifest = (
        _load_manifest(table, storage_options) for table in (left, right)
    )
    keys = resolve_join_keys(on, left_manifest.properties.schema, right_manifest.properties.schema)
    return _build_plan(left_manifest, left_where, right_manifest, right_where, keys)


def prepare_join(
    left: Joinable,
    right: Joinable,
    on: JoinOn,
    how: JoinHow,
    *,
    left_columns: Sequence[str] | None = None,
    right_columns: Sequence[str] | None = None,
    left_where: str | None = None,
    right_where: str | None = None,
    storage_options: dict[str, str] | None = None,
    memory: int = JOIN_MEMORY,
) -> tuple[JoinPlan, JoinReader]:
    """Check the columns of a join, plan it, and return the plan with the reader of its tasks."""
    left_manifest, right_manifest = (
        _load_manifest(table, storage_options) for table in (left, right)
    )
    schemas = left_manifest.properties.schema, right_manifest.properties.schema
    keys = resolve_join_keys(on, *schemas)
    columns = resolve_join_columns(keys, *schemas, how, left_columns, right_columns)
    plan = _build_plan(left_manifest, left_where, right_manifest, right_where, keys)
    readers = [
        SideReader(
            manifest.properties.schema,
            tuple(name for column in columns if (name := column.name_on(is_left)) is not None),
            tuple((key.left if is_left else key.right, key.type) for key in keys),
            manifest.root,
        )
        for manifest, is_left in ((left_manifest, True), (right_manifest, False))
    ]
    return plan, JoinReader(readers[0], readers[1], columns, memory)


def _build_plan(
    left: Manifest,
    left_where: str | None,
    right: Manifest,
    right_where: str | None,
    keys: Sequence[JoinKey],
) -> JoinPlan:
    plan = build_join_plan(_plan_side(left, left_where), _plan_side(right, right_where), keys)
    left_count, right_count = (
        sum(len(spec.leaves) for spec in side.specs) for side in (plan.left, plan.right)
    )
    _LOGGER.debug(
        "Planned a join of %s and %s: %s with %s",
        *(left.root, right.root, format_count(left_count, "partition")),
        format_count(right_count, "partition"),
    )
    return plan


def _load_manifest(table: Joinable, storage_options: dict[str, str] | None) -> Manifest:
    """Return the manifest of a table, as it is now or as of the table's snapshot."""
    opened = table if isinstance(table, Table) else open(table, storage_options=storage_options)
    found = handle_of(opened).refresh()
    if isinstance(found, Manifest):
        return found
    raise PhalanxError(
        f"Cannot join {found.root}: it has the {found.layout} layout. Convert it to the newest "
        "format with upgrade(), or load it with Spark and join DataFrames."
    )


def _plan_side(manifest: Manifest, where: str | None) -> JoinedTable:
    """Return the leaves of a table that have rows, each at its current version."""
    properties = manifest.properties
    with translate_errors(f"plan a join of {manifest.root}"):
        plan = plan_scan(manifest, bind_where(where, properties.schema))
        found = []
        for number, spec in properties.specs.items():
            leaves, residuals = plan.leaves[number], plan.residuals[number]
            values = leaves.select(leaves.column_names[len(LEAF_COLUMNS) :])
            columns = [to_python_values(column) for column in values.columns]
            opened = map_parallel(
                lambda leaf: _measure(manifest.root.leaf(leaf[0]), leaf[1]),
                list_leaf_versions(leaves),
            )
            made = [
                JoinLeaf(
                    PartitionKey(number, tuple(column[place] for column in columns)),
                    location,
                    version,
                    fragments,
                    _render(residuals.predicates[residuals.indices[place]]),
                    residuals.predicates[residuals.indices[place]],
                )
                for place, (location, version, fragments) in enumerate(opened)
            ]
            kept = [place for place, leaf in enumerate(made) if leaf.rows]
            chosen = values.take(pa.array(kept, pa.int64()))
            found.append(SpecLeaves(spec, tuple(made[place] for place in kept), chosen))
    return JoinedTable(manifest.root.uri, properties.schema, tuple(found))


def _measure(location: Location, version: int | None) -> tuple[str, int, tuple[JoinFragment, ...]]:
    """Return the location of a leaf, the version that is read, and its fragments."""
    dataset = location.open_leaf(version)
    fragments = (each.metadata for each in dataset.get_fragments())
    return (
        location.uri,
        dataset.version,
        tuple(JoinFragment(each.id, each.num_rows, bytes_of(each)) for each in fragments),
    )


def _render(predicate: Predicate) -> str | None:
    return None if predicate == TRUE else to_datafusion(predicate)
