"""Upgrade tables of earlier drafts to the newest format, in place and without rewriting data.

A table of the expression draft changes its manifest. A table in the Hive-style layout first gets
the columns that only its paths hold in every leaf, and then a manifest that lists all leaves where
they are. Until the manifest exists the table is a Hive-style table. Calling it again after an
interruption completes the upgrade.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from phalanx.errors import InvalidSpec, PhalanxError
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.expression_draft import DRAFT_HASH, expression_of, has_call
from phalanx.model.specs.spec import PartitionField, PartitionSpec
from phalanx.model.transforms.expression import build_expression
from phalanx.model.transforms.hive import HiveBucket, HiveHash, HiveTruncate
from phalanx.model.transforms.truncate import Truncate
from phalanx.planning.pruning.leaf_columns import LEAF_OBJECT_ID, LEAF_VERSION
from phalanx.storage.commit.head import read_head
from phalanx.storage.commit.publishing import branches_of
from phalanx.storage.hive.root import HiveRoot, read_stored_properties
from phalanx.storage.hive.upgrade import (
    add_late_leaves,
    check_truncation,
    check_upgradable,
    prepare_leaves,
    remove_hive_properties,
    switch_layout,
)
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.retries import retry_conflicts
from phalanx.storage.manifest.changes import change_properties, drop_columns, replace_rows
from phalanx.storage.manifest.columns import PIN_COLUMNS, READ_BRANCH, READ_TAG
from phalanx.storage.manifest.columns import READ_VERSION as STORED_VERSION
from phalanx.storage.manifest.manifest import Manifest
from phalanx.storage.manifest.rows import LANCE_ROW_ADDRESS
from phalanx.storage.state.properties import EXPRESSIONS_LAYOUT, NAMESPACE_LAYOUT
from phalanx.table.transactions.strong_mode import complete_change

_LOGGER = logging.getLogger("phalanx.table")


@dataclass(frozen=True, slots=True)
class Upgrade:
    """The changes of an upgrade; for a dry run also what it would refuse.

    Attributes:
        root: The path or URI of the table.
        layout: The layout before the upgrade.
        changes: What changes, one sentence each. Empty if the table has the newest format.
        refused: What the newest format cannot express, one sentence each; only in a dry run.
        dry_run: Whether nothing was changed.
    """

    root: str
    layout: str
    changes: tuple[str, ...]
    refused: tuple[str, ...]
    dry_run: bool

    def to_dict(self) -> dict[str, Any]:
        """Return the upgrade as JSON values."""
        return {
            "root": self.root,
            "layout": self.layout,
            "changes": list(self.changes),
            "refused": list(self.refused),
            "dry_run": self.dry_run,
        }

    def __str__(self) -> str:
        if not (self.changes or self.refused):
            return f"{self.root} has the newest format."
        if self.refused:
            head = f"Would refuse to upgrade {self.root} from the layout {self.layout!r}:"
            return "\n".join([head, *(f"  {why}" for why in self.refused)])
        verb = "Would upgrade" if self.dry_run else "Upgraded"
        head = f"{verb} {self.root} from the layout {self.layout!r}:"
        return "\n".join([head, *(f"  {each}" for each in self.changes)])


def upgrade(manifest: Manifest, dry_run: bool) -> Upgrade:
    """Upgrade a table that has a manifest."""
    return _UPGRADES[manifest.properties.layout](manifest, dry_run)


def _finish_upgrade(manifest: Manifest, dry_run: bool) -> Upgrade:
    """Complete an interrupted upgrade of a table that already has the newest format."""
    if not dry_run:
        _drop_empty_columns(manifest)
    return Upgrade(manifest.root.uri, NAMESPACE_LAYOUT, (), (), dry_run)


def _upgrade_expressions(manifest: Manifest, dry_run: bool) -> Upgrade:
    refused = tuple(_list_refusals(manifest))
    if refused and not dry_run:
        raise PhalanxError(f"Cannot upgrade {manifest.root}: {refused[0]}")
    found = Upgrade(
        manifest.root.uri, EXPRESSIONS_LAYOUT, tuple(_describe_changes(manifest)), refused, dry_run
    )
    if not dry_run:
        retry_conflicts(lambda: _replace_tags_by_versions(manifest.load_latest()))
        manifest = manifest.load_latest()
        changed = dataclasses.replace(manifest.properties, layout=NAMESPACE_LAYOUT)
        manifest = change_properties(manifest, changed)
        if read_head(manifest) is not None:
            manifest = complete_change(manifest, "upgrade")
        _drop_empty_columns(manifest)
        _log_upgrade(manifest, EXPRESSIONS_LAYOUT)
    return found


_UPGRADES: dict[str, Callable[[Manifest, bool], Upgrade]] = {
    NAMESPACE_LAYOUT: _finish_upgrade,
    EXPRESSIONS_LAYOUT: _upgrade_expressions,
}


def _list_refusals(manifest: Manifest) -> Iterator[str]:
    """Yield what the newest format cannot express, or would interpret differently."""
    properties = manifest.properties
    for number, spec in sorted(properties.specs.items()):
        for field in spec.fields:
            if has_call(field, DRAFT_HASH):
                yield (
                    f"Partition field {field.field_id!r} of spec v{number} is "
                    f"{expression_of(field)}, and the newest format has no {DRAFT_HASH}: its "
                    "buckets use murmur3, so rows would belong to other partitions. Import the "
                    "table instead."
                )
    for name, branch in branches_of(manifest).items():
        yield (
            f"Table {name} is read from the branch {branch!r}, and the newest format reads main "
            "branches only. First copy its rows to main and set read_branch in its manifest row to "
            "NULL."
        )
    if properties.mode == "weak" and manifest.pinned_tables:
        yield (
            f"Table {manifest.pinned_tables[0]} is read in a version that its manifest row names, "
            "and in weak mode the newest format reads the newest version. Call set_mode('strong') "
            "first."
        )


def _describe_changes(manifest: Manifest) -> Iterator[str]:
    for number, spec in sorted(manifest.properties.specs.items()):
        for field in spec.fields:
            derived = (
                f"the expression {field.expression!r}, as it is"
                if field.transform is None
                else json.dumps(field.transform.to_json())
            )
            yield f"v{number} {field.field_id}: {expression_of(field)} becomes {derived}"
    for row in _read_tagged_rows(manifest).to_pylist():
        version = manifest.leaf_versions([row["object_id"]])[row["object_id"]]
        yield f"{row['object_id']}: the tag {row[READ_TAG]!r} becomes version {version}"


def _read_tagged_rows(manifest: Manifest) -> pa.Table:
    """Return the rows of tables that are read by a tag, with their row addresses."""
    filter = f"object_type = 'table' AND {READ_TAG} IS NOT NULL"
    if READ_TAG not in manifest.dataset.schema.names:
        filter = "false"
    return manifest.read_rows(filter, with_row_address=True)


def _replace_tags_by_versions(manifest: Manifest) -> None:
    """Replace tags in rows by the versions that they name; in the draft both are equivalent."""
    rows = _read_tagged_rows(manifest)
    if not rows.num_rows:
        return
    leaves = manifest.list_named_leaves(rows.column("object_id").to_pylist())
    indices = pc.index_in(rows.column("object_id"), leaves.column(LEAF_OBJECT_ID).combine_chunks())
    versions = leaves.column(LEAF_VERSION).take(indices)
    pins = [each.name for each in PIN_COLUMNS if each.name in rows.column_names]
    changed = rows.drop_columns([*pins, LANCE_ROW_ADDRESS]).append_column(STORED_VERSION, versions)
    replace_rows(manifest, changed, rows.column(LANCE_ROW_ADDRESS).to_numpy())


def _drop_empty_columns(manifest: Manifest) -> None:
    """Drop the columns that only the draft has, once they are empty."""

    def attempt() -> None:
        latest = manifest.load_latest()
        names = [name for name in (READ_BRANCH, READ_TAG) if name in latest.dataset.schema.names]
        if names and not latest.dataset.count_rows(
            " OR ".join(f"{name} IS NOT NULL" for name in names)
        ):
            drop_columns(latest, names)

    retry_conflicts(attempt)


@dataclass(frozen=True, slots=True)
class UpgradePlan:
    """The changes of an upgrade from the Hive-style layout, to spec fields and to leaves.

    Attributes:
        uri: The path or URI of the table.
        layout: The layout before the upgrade.
        spec: The partition spec after the upgrade.
        fields: The label of each partition field, before and after.
        added_columns: The columns to add to each leaf, because only its path holds them.
        partitions: The number of partitions.
    """

    uri: str
    layout: str
    spec: PartitionSpec
    fields: tuple[tuple[str, str], ...]
    added_columns: tuple[str, ...]
    partitions: int

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        return {
            "uri": self.uri,
            "layout": self.layout,
            "fields": [{"from": old, "to": new} for old, new in self.fields],
            "added_columns": list(self.added_columns),
            "partitions": self.partitions,
        }

    def __str__(self) -> str:
        lines = [f"upgrade of {self.uri} from the {self.layout} layout to the newest format"]
        lines += [
            f"  {old} stays" if old == new else f"  {old} becomes {new}" for old, new in self.fields
        ]
        gets = ", ".join(self.added_columns)
        lines.append(
            f"  {self.partitions:,} partitions stay where they are, and no data is rewritten"
            + (f"; each gets the columns of its path: {gets}" if gets else "")
        )
        return "\n".join(lines)


def plan_hive_upgrade(root: HiveRoot) -> UpgradePlan:
    """Plan the upgrade of a Hive-style table; raise for what the newest format cannot express."""
    hive = root.hive
    fields = [_upgrade_field(field, hive.schema) for field in hive.spec.fields]
    check_upgradable(root)
    for field in hive.spec.fields:
        if isinstance(field.derivation, HiveTruncate):
            check_truncation(root, field)
    return UpgradePlan(
        root.root.uri,
        root.layout,
        PartitionSpec(hive.spec.id, tuple(fields)),
        tuple(
            (old.label(hive.schema), new.label(hive.schema))
            for old, new in zip(hive.spec.fields, fields, strict=True)
        ),
        tuple(hive.path_columns),
        root.total_partitions,
    )


def upgrade_hive(root: HiveRoot, plan: UpgradePlan) -> Manifest:
    """Run the upgrade and return the manifest of the upgraded table."""
    try:
        switch_layout(prepare_leaves(root), plan.spec)
    except PhalanxError:
        # Another process may have upgraded it concurrently.
        if isinstance(root.load_latest(), HiveRoot):
            raise
    manifest = _clean_up_hive(root.root, root.raw_properties)
    _log_upgrade(manifest, root.layout)
    return manifest


def finish_hive_upgrade(manifest: Manifest) -> bool:
    """Complete an interrupted upgrade; return whether there was one."""
    stated = read_stored_properties(manifest.root)
    if stated:
        _clean_up_hive(manifest.root, stated)
    return bool(stated)


def _log_upgrade(manifest: Manifest, layout: str) -> None:
    _LOGGER.info("Upgraded %s from the layout %s to the newest format", manifest.root, layout)


def _clean_up_hive(root: Location, stated: Mapping[str, str]) -> Manifest:
    plain = replace(root, has_reused_paths=False, table=None)
    add_late_leaves(plain, stated)
    remove_hive_properties(plain)
    return Manifest.open(plain)


def _upgrade_field(field: PartitionField, schema: Schema) -> PartitionField:
    """Return the field that gives the same values in the newest format."""
    derivation = field.derivation
    if isinstance(derivation, HiveTruncate):
        return replace(field, derivation=Truncate(derivation.width))
    if not isinstance(derivation, HiveBucket | HiveHash):
        return field
    kind = schema.type_of(field.source_ids[0])
    try:
        expression = build_expression(derivation.sql(kind), [kind], field.result_type)
    except InvalidSpec:
        raise PhalanxError(
            f"Cannot upgrade a table that is partitioned by {field.label(schema)} of {kind}: the "
            "newest format hashes scalar values only. Create another table and append the rows."
        ) from None
    return replace(field, derivation=expression)
