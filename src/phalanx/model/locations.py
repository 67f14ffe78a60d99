"""Resolution of the locations of leaves that a manifest lists.

A manifest is untrusted input. Only this module interprets its locations.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from urllib.parse import unquote

from phalanx.errors import UntrustedLocation, format_value

SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")
_FILE = "file://"
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_SEPARATOR = re.compile(r"[/\\]")
_UP = ".."
# Entries of a root that are not leaves.
_OWN = frozenset({"__manifest", "_phalanx_updates", "_lance_partitioning.json"})


@dataclass(frozen=True, slots=True)
class LeafPath:
    """The path or URI of a leaf, and its path relative to the root (None if outside)."""

    uri: str
    relative_path: str | None


def resolve_location(root: str, location: object) -> LeafPath:
    """Resolve a location against a root to one canonical spelling.

    Only the text is examined: symbolic links below the root may lead elsewhere. Raise
    `UntrustedLocation` for what cannot be a leaf: an empty location, the root itself, the root's
    own entries, and a path that Lance could resolve differently than it reads.
    """
    if not isinstance(location, str) or not location.strip(" /") or _CONTROL.search(location):
        raise _location_error(root, location)
    if SCHEME.match(location) or location.startswith("/"):
        below = _path_below(root, location)
        if below is None:
            if _has_hidden_steps(location, SCHEME.match(location) is not None):
                raise _location_error(root, location)
            return LeafPath(location.rstrip("/"), None)
        location = below
    steps = [step for step in location.split("/") if step not in ("", ".")]
    up = 0
    while steps[up : up + 1] == [_UP]:
        up += 1
    inner = steps[up:]
    if not inner or _has_hidden_steps("/".join(inner), SCHEME.match(root) is not None):
        raise _location_error(root, location)
    if up:
        return LeafPath(f"{_folder_above(root, up, location)}/{'/'.join(inner)}", None)
    if inner[0].lower() in _OWN or "__manifest" in map(str.lower, inner):
        raise _location_error(root, location)
    path = "/".join(inner)
    return LeafPath(f"{root}/{path}", path)


def display_location(root: str, location: str) -> str:
    """Return the path or URI of a location for display only: nothing is refused."""
    try:
        return resolve_location(root, location).uri
    except UntrustedLocation:
        return f"{root}/{location}"


def _path_below(root: str, location: str) -> str | None:
    """Return an absolute location as a path below the root; None if it is elsewhere."""
    if root.startswith("/"):
        path = location.removeprefix(_FILE)
        if not path.startswith("/") or (path != location and "%" in path):
            return None
        path = posixpath.normpath(path)
        start = root.rstrip("/") + "/"
        return path.removeprefix(start) if path.startswith(start) else None
    start = f"{root}/"
    return location.removeprefix(start) if location.startswith(start) else None


def _folder_above(root: str, steps: int, location: str) -> str:
    """Return the folder `steps` levels above the root."""
    scheme = match[0] if (match := SCHEME.match(root)) else ""
    parts = root.removeprefix(scheme).rstrip("/").split("/")
    # The bucket's name, or the empty name before the first slash, is not a folder.
    if steps >= len(parts):
        raise _location_error(root, location)
    return scheme + "/".join(parts[:-steps])


def _has_hidden_steps(path: str, is_uri: bool) -> bool:
    """Return whether a path has `.` or `..` in it, as written or after URI decoding."""
    steps = _SEPARATOR.split(path) + _SEPARATOR.split(unquote(path)) if is_uri else path.split("/")
    return any(text.strip() in (".", _UP) for step in steps for text in (step, unquote(step)))


def _location_error(root: str, location: object) -> UntrustedLocation:
    return UntrustedLocation(
        f"The manifest of {root} lists a partition at {format_value(location)}: expected the path "
        "of a Lance table below the table's folder, or the full path or URI of one elsewhere. "
        "Phalanx did not write it: correct the column location of that row."
    )
