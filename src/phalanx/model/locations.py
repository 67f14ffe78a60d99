"""Where a leaf is, from the location that a manifest has of it.

A manifest is data, perhaps of a stranger. Its locations are read here and nowhere else.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from urllib.parse import unquote

from phalanx.errors import UntrustedLocation, shown

SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")
_FILE = "file://"
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_SEPARATOR = re.compile(r"[/\\]")
_UP = ".."
# What a root has of its own, beside its leaves.
_OWN = frozenset({"__manifest", "_phalanx_updates", "_lance_partitioning.json"})


@dataclass(frozen=True, slots=True)
class Place:
    """The path or URI of a leaf; `inside` is its path below the root, None where it is outside."""

    uri: str
    inside: str | None


def placed(root: str, location: object) -> Place:
    """The place that a location names, seen from a root; its spelling is the only one.

    It looks at the text alone: below a root there may be symbolic links to elsewhere. Raises
    `UntrustedLocation` for what is no place of a leaf: nothing, the root itself, what the root has
    of its own, and what Lance could take for another place than it says.
    """
    if not isinstance(location, str) or not location.strip(" /") or _CONTROL.search(location):
        raise _refused(root, location)
    if SCHEME.match(location) or location.startswith("/"):
        below = _below(root, location)
        if below is None:
            if _hidden_steps(location, SCHEME.match(location) is not None):
                raise _refused(root, location)
            return Place(location.rstrip("/"), None)
        location = below
    steps = [step for step in location.split("/") if step not in ("", ".")]
    up = 0
    while steps[up : up + 1] == [_UP]:
        up += 1
    inner = steps[up:]
    if not inner or _hidden_steps("/".join(inner), SCHEME.match(root) is not None):
        raise _refused(root, location)
    if up:
        return Place(f"{_above(root, up, location)}/{'/'.join(inner)}", None)
    if inner[0].lower() in _OWN or "__manifest" in map(str.lower, inner):
        raise _refused(root, location)
    path = "/".join(inner)
    return Place(f"{root}/{path}", path)


def resolved(root: str, location: str) -> str:
    """The path or URI of a table, from the location that a manifest at the root has of it.

    To be shown, not to be opened: nothing is refused.
    """
    try:
        return placed(root, location).uri
    except UntrustedLocation:
        return f"{root}/{location}"


def _below(root: str, location: str) -> str | None:
    """An absolute location as a path below the root; None if it is elsewhere."""
    if root.startswith("/"):
        path = location.removeprefix(_FILE)
        if not path.startswith("/") or (path != location and "%" in path):
            return None
        path = posixpath.normpath(path)
        start = root.rstrip("/") + "/"
        return path.removeprefix(start) if path.startswith(start) else None
    start = f"{root}/"
    return location.removeprefix(start) if location.startswith(start) else None


def _above(root: str, steps: int, location: str) -> str:
    """The folder so many steps above the root."""
    scheme = match[0] if (match := SCHEME.match(root)) else ""
    parts = root.removeprefix(scheme).rstrip("/").split("/")
    # A store's name, or the empty name before the first slash of a path, is no folder.
    if steps >= len(parts):
        raise _refused(root, location)
    return scheme + "/".join(parts[:-steps])


def _hidden_steps(path: str, is_uri: bool) -> bool:
    """Whether a path has steps that lead elsewhere, as they are or once a URI is decoded."""
    steps = _SEPARATOR.split(path) + _SEPARATOR.split(unquote(path)) if is_uri else path.split("/")
    return any(text.strip() in (".", _UP) for step in steps for text in (step, unquote(step)))


def _refused(root: str, location: object) -> UntrustedLocation:
    return UntrustedLocation(
        f"The manifest of {root} lists a partition at {shown(location)}: expected the path of a "
        "Lance table below the table's folder, or the full path or URI of one elsewhere. Something "
        "else than Phalanx has written it: correct the column location of that row."
    )
