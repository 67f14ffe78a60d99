"""Work that is split into tasks, and the runner that executes it.

The table layer does not know Spark. A caller hands in a session, and the factory registered with
`register_runner` turns it into a `Runner`. `phalanx/__init__.py` registers the one for Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import pyarrow as pa


class Work(Protocol):
    """Tasks, and the rows that each of them returns."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows."""

    @property
    def tasks(self) -> Sequence[Any]:
        """The tasks; each must be picklable."""

    def select_columns(self, names: Sequence[str]) -> Work:
        """Return the same work, reading no columns but these."""

    def without_tasks(self) -> Work:
        """Return the same work without its tasks, as it is sent along with a single task."""

    def batches(self, task: Any) -> Iterator[pa.RecordBatch]:
        """Return the rows of one task."""


class Runner(Protocol):
    """Runs the tasks of some work, usually on other machines."""

    def collect(self, work: Work, report: Callable[[int], None]) -> list[Any]:
        """Run all tasks and return their rows.

        Calls `report` with the number of finished tasks from time to time, and once at the end.
        Each row maps column names to values by subscription.
        """


# Makes the runner for a session that a user hands in.
RunnerFactory = Callable[[Any], Runner]

_factory: RunnerFactory | None = None


def register_runner(factory: RunnerFactory) -> None:
    """Set how sessions become runners."""
    global _factory
    _factory = factory


def runner_for(session: Any) -> Runner:
    """Return the runner for a session."""
    assert _factory is not None, "phalanx/__init__.py registers it"
    return _factory(session)
