"""Leaves of the expression draft whose manifest rows say what is read of them."""

from __future__ import annotations

from phalanx.errors import PhalanxError
from phalanx.storage.manifest import Manifest
from phalanx.storage.pins import is_pinned


def pinned_tables(manifest: Manifest) -> list[str]:
    """The object ids of tables of which their rows say what is read."""
    found = manifest.dataset.to_table(
        columns=["object_id"], filter=is_pinned(manifest.dataset.schema.names)
    )
    return sorted(found.column("object_id").to_pylist())


def check_unpinned(manifest: Manifest) -> None:
    """Refuse to change rows in weak mode where readers are bound to other versions.

    What a weak writer commits goes to the main branch; a row that names a version, as the
    expression draft allows in every mode, would hide it.
    """
    properties = manifest.properties
    if not properties.is_drafted or properties.mode != "weak":
        return
    if names := pinned_tables(manifest):
        raise PhalanxError(
            f"Cannot change rows of {manifest.root} in weak mode: the manifest row {names[0]!r} "
            "says which version is read, so that nobody would see the change. Call "
            "set_mode('strong'), or set read_version, read_branch and read_tag there to NULL."
        )
