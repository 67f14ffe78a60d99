"""Leaves whose manifest rows say what is read of them."""

from __future__ import annotations

from phalanx.errors import PhalanxError
from phalanx.storage.manifest.manifest import Manifest


def check_unpinned(manifest: Manifest) -> None:
    """Refuse to change leaves in weak mode where readers are bound to other versions.

    What a weak writer commits goes to the main branch; a row that names a version, a branch or a
    tag, as the format allows in every mode, would hide it.
    """
    if manifest.properties.mode == "weak" and manifest.pinned:
        raise PhalanxError(
            f"Cannot change rows of {manifest.root} in weak mode: the manifest row "
            f"{manifest.pinned[0]!r} says which version is read, so that nobody would see the "
            "change. Call set_mode('strong'), or set read_version, read_branch and read_tag there "
            "to NULL."
        )
