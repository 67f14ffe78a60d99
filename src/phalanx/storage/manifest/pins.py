"""What a table row says is to be read (Read Behavior, in the published text and in the draft).

`read_version` alone names a version of the main branch, with `read_branch` one of that branch;
`read_tag` alone names a tag. Where all are NULL it is the newest version of the main branch.

A branch is a Lance table by itself, in a folder of the leaf. So a leaf that is read from a branch
is located there, and whoever reads or writes leaves need not know of branches: a strong write goes
on top of the version that is read, where that is, and its commit has the row name the new version
of the same branch, and no tag any more. A weak write would go where nobody reads, and is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from phalanx.errors import InvalidManifest
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.parallel import in_parallel
from phalanx.storage.manifest.columns import PIN_COLUMNS, READ_BRANCH, READ_TAG, READ_VERSION

PINS = tuple(field.name for field in PIN_COLUMNS)
_MAIN = "main"
# Where Lance keeps the branches of a table.
_BRANCHES = "/tree/"


@dataclass(frozen=True, slots=True)
class Tag:
    """A tag that a row reads, and the branch (None: main) and version that it stood for."""

    location: Location
    name: str
    branch: str | None
    version: int

    @property
    def stands(self) -> bool:
        """Whether it still stands for the same."""
        return _looked_up(self.location, self.name) == (self.branch, self.version)


def is_pinned(columns: Sequence[str]) -> str:
    """The condition that a row with these columns says what is to be read."""
    said = [f"{field.name} IS NOT NULL" for field in PIN_COLUMNS if field.name in columns]
    return f"object_type = 'table' AND ({' OR '.join(said) or 'false'})"


def branch_of(stored: str, resolved: str) -> str | None:
    """The branch that a leaf is read from, by its stored and its actual location."""
    prefix = stored + _BRANCHES
    return resolved.removeprefix(prefix) if resolved.startswith(prefix) else None


def resolved(root: Location, rows: pa.Table) -> tuple[pa.Table, list[Tag]]:
    """The rows with the location and version to open; and the tags that they were found by.

    A combination that the format does not have is refused, as is a tag that is not there.
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
    return _followed(root, plain, branches, tags)


def _check_combinations(names: pa.ChunkedArray, *pins: pa.ChunkedArray) -> None:
    version, branch, tag = (pin.is_valid() for pin in pins)
    too_many = pc.and_(tag, pc.or_(version, branch))
    too_few = pc.and_(branch, pc.invert(version))
    place = pc.index(pc.or_(too_many, too_few), True).as_py()
    if place < 0:
        return
    said = ", ".join(
        f"{field.name} = {pin[place].as_py()!r}"
        for field, pin in zip(PIN_COLUMNS, pins, strict=True)
        if pin[place].is_valid
    )
    raise InvalidManifest(
        f"The manifest row {names[place].as_py()!r} has {said}: expected read_version alone, "
        "read_branch with read_version, read_tag alone, or none of them. Correct the row."
    )


def _followed(
    root: Location, rows: pa.Table, branches: pa.ChunkedArray, tags: pa.ChunkedArray
) -> tuple[pa.Table, list[Tag]]:
    locations = rows.column("location").to_pylist()
    versions = rows.column(READ_VERSION).to_pylist()
    read = branches.to_pylist()
    wanted = [
        (place, locations[place], name) for place, name in enumerate(tags.to_pylist()) if name
    ]
    found = in_parallel(lambda each: _tag(root.child(each[1]), each[2]), wanted)
    for (place, _, _), tag in zip(wanted, found, strict=True):
        read[place], versions[place] = tag.branch, tag.version
    located = [
        place if branch in (None, _MAIN) else f"{place}{_BRANCHES}{branch}"
        for place, branch in zip(locations, read, strict=True)
    ]
    for name, values, kind in (
        ("location", located, pa.string()),
        (READ_VERSION, versions, pa.uint64()),
    ):
        rows = rows.set_column(rows.column_names.index(name), name, pa.array(values, kind))
    return rows, found


def _tag(location: Location, name: str) -> Tag:
    there = _looked_up(location, name)
    if there is None:
        raise InvalidManifest(
            f"The manifest reads the tag {name!r} of {location}, which has no such tag. Create the "
            "tag again, or set another read_tag or read_version in its row."
        )
    return Tag(location, name, *there)


def _looked_up(location: Location, name: str) -> tuple[str | None, int] | None:
    found = location.open_leaf().tags.list().get(name)
    return None if found is None else (found["branch"], int(found["version"]))
