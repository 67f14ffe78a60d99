"""Tables of earlier drafts, made tables of the newest format in place."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from phalanx.errors import PhalanxError
from phalanx.model.specs.expression_draft import HASH, calls, expression_of
from phalanx.planning.pruning.scan_plan import OBJECT_ID, READ_VERSION
from phalanx.storage.commit.head import head_of
from phalanx.storage.commit.publishing import branches_of
from phalanx.storage.lance.retries import until_won
from phalanx.storage.manifest.changes import change, change_properties, drop_columns
from phalanx.storage.manifest.columns import PIN_COLUMNS, READ_BRANCH, READ_TAG
from phalanx.storage.manifest.columns import READ_VERSION as STORED_VERSION
from phalanx.storage.manifest.manifest import Manifest
from phalanx.storage.manifest.rows import ADDRESS
from phalanx.storage.state.properties import EXPRESSIONS, NAMESPACE
from phalanx.table.transactions.strong_mode import complete


@dataclass(frozen=True, slots=True)
class Upgrade:
    """What an upgrade changed; or what it would change and what it refuses, if only asked."""

    root: str
    layout: str
    changes: tuple[str, ...]
    refused: tuple[str, ...]
    dry_run: bool

    def to_dict(self) -> dict[str, Any]:
        """The upgrade as JSON has it."""
        return {
            "root": self.root,
            "layout": self.layout,
            "changes": list(self.changes),
            "refused": list(self.refused),
            "dry_run": self.dry_run,
        }

    def __str__(self) -> str:
        if not (self.changes or self.refused):
            return f"{self.root} is of the newest format."
        if self.refused:
            head = f"Would refuse to upgrade {self.root} from the layout {self.layout!r}:"
            return "\n".join([head, *(f"  {why}" for why in self.refused)])
        verb = "Would upgrade" if self.dry_run else "Upgraded"
        head = f"{verb} {self.root} from the layout {self.layout!r}:"
        return "\n".join([head, *(f"  {each}" for each in self.changes)])


def upgrade(manifest: Manifest, dry_run: bool) -> Upgrade:
    """Upgrade a table of any layout."""
    return _UPGRADES[manifest.properties.layout](manifest, dry_run)


def _nothing(manifest: Manifest, dry_run: bool) -> Upgrade:
    """What is of the newest format only loses what an upgrade that was cut off has left."""
    if not dry_run:
        _drop_empty_columns(manifest)
    return Upgrade(manifest.root.uri, NAMESPACE, (), (), dry_run)


def _from_expressions(manifest: Manifest, dry_run: bool) -> Upgrade:
    refused = tuple(_refusals(manifest))
    if refused and not dry_run:
        raise PhalanxError(f"Cannot upgrade {manifest.root}: {refused[0]}")
    found = Upgrade(manifest.root.uri, EXPRESSIONS, tuple(_changes(manifest)), refused, dry_run)
    if not dry_run:
        until_won(lambda: _tags_to_versions(manifest.latest()))
        manifest = manifest.latest()
        changed = dataclasses.replace(manifest.properties, layout=NAMESPACE)
        manifest = change_properties(manifest, changed)
        if head_of(manifest) is not None:
            manifest = complete(manifest, "upgrade")
        _drop_empty_columns(manifest)
    return found


_UPGRADES: dict[str, Callable[[Manifest, bool], Upgrade]] = {
    NAMESPACE: _nothing,
    EXPRESSIONS: _from_expressions,
}


def _refusals(manifest: Manifest) -> Iterator[str]:
    """What the newest format cannot say, or would understand otherwise."""
    properties = manifest.properties
    for number, spec in sorted(properties.specs.items()):
        for field in spec.fields:
            if calls(field, HASH):
                yield (
                    f"Partition field {field.field_id!r} of spec v{number} is "
                    f"{expression_of(field)}, and the newest format has no {HASH}: its buckets go "
                    "by murmur3, so that rows would be in other partitions. Import the table "
                    "instead."
                )
    for name, branch in branches_of(manifest).items():
        yield (
            f"Table {name} is read from the branch {branch!r}, and the newest format reads main "
            "branches only. Bring its rows there, and set read_branch in its manifest row to NULL "
            "first."
        )
    if properties.mode == "weak" and manifest.pinned:
        yield (
            f"Table {manifest.pinned[0]} is read in a version that its manifest row names, and in "
            "weak mode the newest format reads the newest version. Call set_mode('strong') first."
        )


def _changes(manifest: Manifest) -> Iterator[str]:
    for number, spec in sorted(manifest.properties.specs.items()):
        for field in spec.fields:
            derived = (
                f"the expression {field.expression!r}, as it is"
                if field.transform is None
                else json.dumps(field.transform.to_json())
            )
            yield f"v{number} {field.field_id}: {expression_of(field)} becomes {derived}"
    for row in _tagged(manifest).to_pylist():
        version = manifest.versions([row["object_id"]])[row["object_id"]]
        yield f"{row['object_id']}: the tag {row[READ_TAG]!r} becomes version {version}"


def _tagged(manifest: Manifest) -> pa.Table:
    """The rows of tables that are read by a tag, with their addresses."""
    said = f"object_type = 'table' AND {READ_TAG} IS NOT NULL"
    if READ_TAG not in manifest.dataset.schema.names:
        said = "false"
    return manifest.table(said, with_row_address=True)


def _tags_to_versions(manifest: Manifest) -> None:
    """Have rows name the versions that their tags stand for: the draft means the same by it."""
    rows = _tagged(manifest)
    if not rows.num_rows:
        return
    leaves = manifest.leaves_named(rows.column("object_id").to_pylist())
    places = pc.index_in(rows.column("object_id"), leaves.column(OBJECT_ID).combine_chunks())
    versions = leaves.column(READ_VERSION).take(places)
    pins = [each.name for each in PIN_COLUMNS if each.name in rows.column_names]
    changed = rows.drop_columns([*pins, ADDRESS]).append_column(STORED_VERSION, versions)
    change(manifest, changed, rows.column(ADDRESS).to_numpy())


def _drop_empty_columns(manifest: Manifest) -> None:
    """Remove the columns that only the draft has, which say nothing any more."""

    def attempt() -> None:
        latest = manifest.latest()
        names = [name for name in (READ_BRANCH, READ_TAG) if name in latest.dataset.schema.names]
        if names and not latest.dataset.count_rows(
            " OR ".join(f"{name} IS NOT NULL" for name in names)
        ):
            drop_columns(latest, names)

    until_won(attempt)
