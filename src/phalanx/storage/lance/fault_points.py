"""Named points in a commit: a writer may die at any of them, and the table stays intact.

They have no effect unless an observer is set. Tests set one to end the writer at a point.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum, auto


class FaultPoint(Enum):
    """What has just become durable, or is about to."""

    # Not visible to readers yet.
    MANIFEST_CREATED = auto()
    LEAF_CREATED = auto()
    FILES_WRITTEN = auto()
    DELETIONS_WRITTEN = auto()
    VERSION_STAGED = auto()
    UPDATES_WRITTEN = auto()
    # The manifest commit: nothing is visible before it, everything after it.
    COMMITTING = auto()
    MANIFEST_WRITTEN = auto()
    COMMITTED = auto()
    # Publishing to the main branches.
    RESTORE_STAGED = auto()
    MAIN_RESTORED = auto()
    PUBLISHED = auto()
    # Schema changes: properties change before the leaves and the head.
    COLUMNS_CHANGED = auto()
    PROPERTIES_CHANGED = auto()
    LEAF_ALIGNED = auto()
    STRONG_ROWS_REMOVED = auto()
    FOREIGN_WRITE_DISCARDED = auto()
    # Vacuum.
    HORIZON_MOVED = auto()
    VERSIONS_DELETED = auto()
    FILES_DELETED = auto()


Observer = Callable[[FaultPoint], None]
_observer: Observer | None = None


def fault_point(point: FaultPoint) -> None:
    """Call the observer, if one is set, with the point that was reached."""
    if _observer is not None:
        _observer(point)


@contextmanager
def observe_fault_points(observer: Observer) -> Iterator[None]:
    """Call the observer at every fault point in this process, in any thread."""
    global _observer
    before, _observer = _observer, observer
    try:
        yield
    finally:
        _observer = before
