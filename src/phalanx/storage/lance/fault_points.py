"""The named steps of a commit: after each of them a writer may die, and the table is whole.

Nothing happens at a step unless an observer is set, which tests do: they end the writer there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum, auto


class Step(Enum):
    """What has just become durable, or is about to be."""

    # Nobody sees these yet.
    MANIFEST_CREATED = auto()
    LEAF_CREATED = auto()
    FILES_WRITTEN = auto()
    DELETIONS_WRITTEN = auto()
    VERSION_STAGED = auto()
    UPDATES_WRITTEN = auto()
    # The one commit: before it nothing is visible, after it everything.
    COMMITTING = auto()
    MANIFEST_WRITTEN = auto()
    COMMITTED = auto()
    # Main branches follow.
    MAIN_RESTORED = auto()
    PUBLISHED = auto()
    # Properties change before the leaves and the head do.
    COLUMNS_CHANGED = auto()
    PROPERTIES_CHANGED = auto()
    LEAF_ALIGNED = auto()
    STRONG_ROWS_REMOVED = auto()
    FOREIGN_WRITE_DISCARDED = auto()
    # Vacuum.
    HORIZON_MOVED = auto()
    VERSIONS_DELETED = auto()
    FILES_DELETED = auto()


Observer = Callable[[Step], None]
_observer: Observer | None = None


def reach(step: Step) -> None:
    """Tell whoever watches that this step is reached."""
    if _observer is not None:
        _observer(step)


@contextmanager
def observed(observer: Observer) -> Iterator[None]:
    """Call the observer at every step in this process, in whichever thread it is reached."""
    global _observer
    before, _observer = _observer, observer
    try:
        yield
    finally:
        _observer = before
