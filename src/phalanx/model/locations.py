"""What a manifest's `location` means: a path relative to the root, or a place of its own."""

from __future__ import annotations

import re

SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")


def resolved(root: str, location: str) -> str:
    """The path or URI of a table, from the location that a manifest at the root has of it."""
    if SCHEME.match(location) or location.startswith("/"):
        return location
    while location.startswith("../"):
        location, root = location[3:], root.rsplit("/", 1)[0]
    return f"{root}/{location}"
