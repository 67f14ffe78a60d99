"""A table in the Hive-style layout becomes one of the newest format: in place, its data as it is.

First every leaf gets the columns that its path holds, then a manifest appears that lists all
leaves where they are: until then the table is what it was, and from then on the other. The same
call again finishes one that was cut off.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from phalanx.errors import InvalidSpec, PhalanxError
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.spec import PartitionField, PartitionSpec
from phalanx.model.transforms.expression import checked
from phalanx.model.transforms.hive import HiveBucket, HiveHash, HiveTruncate
from phalanx.model.transforms.truncate import Truncate
from phalanx.storage.hive.root import HiveRoot, stored_properties
from phalanx.storage.hive.upgrade import (
    check_leaves,
    check_toward_zero,
    prepare_leaves,
    sweep,
    switch,
    tidy,
)
from phalanx.storage.lance.location import Location
from phalanx.storage.manifest.manifest import Manifest


@dataclass(frozen=True, slots=True)
class UpgradePlan:
    """What an upgrade does: to each field of the spec, and to the leaves."""

    uri: str
    layout: str
    spec: PartitionSpec
    # How people write each field, before and after.
    fields: tuple[tuple[str, str], ...]
    # The columns that each leaf gets, because only its path has them.
    added_columns: tuple[str, ...]
    partitions: int

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON has it."""
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


def plan_upgrade(root: HiveRoot) -> UpgradePlan:
    """How a table is upgraded; refuses what the newest format cannot say."""
    hive = root.hive
    fields = [_upgraded(field, hive.schema) for field in hive.spec.fields]
    check_leaves(root)
    for field in hive.spec.fields:
        if isinstance(field.derivation, HiveTruncate):
            check_toward_zero(root, field)
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


def upgrade(root: HiveRoot, plan: UpgradePlan) -> Manifest:
    """Do it; the manifest of the table as it is then."""
    try:
        switch(prepare_leaves(root), plan.spec)
    except PhalanxError:
        # Another may have upgraded it at the same time.
        if isinstance(root.latest(), HiveRoot):
            raise
    return _finished(root.root, root.stated)


def finish_upgrade(manifest: Manifest) -> bool:
    """Do what an upgrade that was cut off has left to do; whether there was one."""
    stated = stored_properties(manifest.root)
    if stated:
        _finished(manifest.root, stated)
    return bool(stated)


def _finished(root: Location, stated: Mapping[str, str]) -> Manifest:
    plain = replace(root, has_reused_paths=False, table=None)
    sweep(plain, stated)
    tidy(plain)
    return Manifest.open(plain)


def _upgraded(field: PartitionField, schema: Schema) -> PartitionField:
    """The field that gives the same values in the newest format."""
    derivation = field.derivation
    if isinstance(derivation, HiveTruncate):
        return replace(field, derivation=Truncate(derivation.width))
    if not isinstance(derivation, HiveBucket | HiveHash):
        return field
    kind = schema.type_of(field.source_ids[0])
    try:
        expression = checked(derivation.sql(kind), [kind], field.result_type)
    except InvalidSpec:
        raise PhalanxError(
            f"Cannot upgrade a table that is partitioned by {field.label(schema)} of {kind}: the "
            "newest format hashes single values only. Create another table, and append its rows."
        ) from None
    return replace(field, derivation=expression)
