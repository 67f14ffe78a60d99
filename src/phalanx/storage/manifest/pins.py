"""Pins: the version, branch or tag that a `table` row says to read.

Format: Read Behavior, in the published text and in the draft. `read_version` alone names a version
of the main branch, and with `read_branch` a version of that branch. `read_tag` alone names a tag.
If all are NULL, readers read the newest version of the main branch.

A branch is a Lance table in a folder of the leaf. A leaf that is read from a branch is therefore
located in that folder, and code that reads or writes leaves does not handle branches. A strong
write builds on the pinned version; its commit sets the row to the new version of the same branch
and clears the tag. A weak write is refused, because readers would not see it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from phalanx.errors import InvalidManifest
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.parallel import map_parallel
from phalanx.storage.manifest.columns import PIN_COLUMNS, READ_BRANCH, READ_TAG, READ_VERSION

PIN_NAMES = tuple(field.name for field in PIN_COLUMNS)
_MAIN = "main"
# Lance stores the branches of a table in this folder.
_BRANCHES = "/tree/"


@dataclass(frozen=True, slots=True)
class PinnedTag:
    """A tag that a row pins, with the branch (None: main) and version that it resolved to."""

    location: Location
    name: str
    branch: str | None
    version: int

    @property
    def is_unchanged(self) -> bool:
        """Whether the tag still resolves to the same version."""
        return _look_up_tag(self.location, self.name) == (self.branch, self.version)


def build_pin_filter(columns: Sequence[str]) -> str:
    """Build a filter for `table` rows that have a pin, given the columns of the manifest."""
    conditions = [f"{field.name} IS NOT NULL" for field in PIN_COLUMNS if field.name in columns]
    return f"object_type = 'table' AND ({' OR '.join(conditions) or 'false'})"


def branch_of(stored: str, resolved: str) -> str | None:
    """Return the branch that a leaf is read from, given its stored and its resolved location."""
    prefix = stored + _BRANCHES
    return resolved.removeprefix(prefix) if resolved.startswith(prefix) else None


def resolve_locations(root: Location, rows: pa.Table) -> tuple[pa.Table, list[PinnedTag]]:
    """Return the rows with the location and version to open, and the tags that were resolved.

    Refuse a combination of pins that the format does not define, and a missing tag.
    """
    versions, branches, tags = (
        rows.column(field.name)
        if field.name in rows.column_names
        else pa.chunked_array([pa.nulls(rows.num_rows, field.type)])
        for field in PIN_COLUMNS
    )
    _check_combinations(rows.column("object_id"), versions, branches, tags)
    plain = rows.select([name for name in rows.column_names if name not in (READ_BRANCH, READ_TAG)])
    if READ_VERSION not in plain.column_names:
        plain = plain.append_column(READ_VERSION, versions)
    if branches.null_count == tags.null_count == rows.num_rows:
        return plain, []
    return _resolve_branches_and_tags(root, plain, branches, tags)


def _check_combinations(names: pa.ChunkedArray, *pins: pa.ChunkedArray) -> None:
    version, branch, tag = (pin.is_valid() for pin in pins)
    too_many = pc.and_(tag, pc.or_(version, branch))
    too_few = pc.and_(branch, pc.invert(version))
    index = pc.index(pc.or_(too_many, too_few), True).as_py()
    if index < 0:
        return
    pins_text = ", ".join(
        f"{field.name} = {pin[index].as_py()!r}"
        for field, pin in zip(PIN_COLUMNS, pins, strict=True)
        if pin[index].is_valid
    )
    raise InvalidManifest(
        f"The manifest row {names[index].as_py()!r} has {pins_text}: expected read_version alone, "
        "read_branch with read_version, read_tag alone, or none of them. Correct the row."
    )


def _resolve_branches_and_tags(
    root: Location, rows: pa.Table, branches: pa.ChunkedArray, tags: pa.ChunkedArray
) -> tuple[pa.Table, list[PinnedTag]]:
    locations = rows.column("location").to_pylist()
    versions = rows.column(READ_VERSION).to_pylist()
    read = branches.to_pylist()
    wanted = [
        (index, locations[index], name) for index, name in enumerate(tags.to_pylist()) if name
    ]
    found = map_parallel(lambda each: _resolve_tag(root.leaf(each[1]), each[2]), wanted)
    for (index, _, _), tag in zip(wanted, found, strict=True):
        read[index], versions[index] = tag.branch, tag.version
    located = [
        location if branch in (None, _MAIN) else f"{location}{_BRANCHES}{branch}"
        for location, branch in zip(locations, read, strict=True)
    ]
    for name, values, kind in (
        ("location", located, pa.string()),
        (READ_VERSION, versions, pa.uint64()),
    ):
        rows = rows.set_column(rows.column_names.index(name), name, pa.array(values, kind))
    return rows, found


def _resolve_tag(location: Location, name: str) -> PinnedTag:
    there = _look_up_tag(location, name)
    if there is None:
        raise InvalidManifest(
            f"The manifest reads the tag {name!r} of {location}, which has no such tag. Create the "
            "tag again, or set another read_tag or read_version in its row."
        )
    return PinnedTag(location, name, *there)


def _look_up_tag(location: Location, name: str) -> tuple[str | None, int] | None:
    found = location.open_leaf().tags.list().get(name)
    return None if found is None else (found["branch"], int(found["version"]))
