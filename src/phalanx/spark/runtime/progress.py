"""How far a long job is, on stderr: a line that changes on a terminal, else one for each part."""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import dataclass, field
from types import TracebackType

from pyspark.sql import SparkSession

_SECONDS = 0.5


@dataclass(slots=True)
class Progress:
    """What is done of a number of parts; tasks of Spark tell how far the present one is."""

    spark: SparkSession
    parts: int
    files: int
    size: int
    is_shown: bool = True
    _began: float = field(default_factory=time.monotonic)
    _done: tuple[int, int, int, int] = (0, 0, 0, 0)
    _over: threading.Event = field(default_factory=threading.Event)
    _watching: threading.Thread | None = None

    @property
    def seconds(self) -> float:
        """How long it has taken so far."""
        return time.monotonic() - self._began

    def __enter__(self) -> Progress:
        if self.is_shown and self.parts and sys.stderr.isatty():
            self._watching = threading.Thread(target=self._watch, daemon=True)
            self._watching.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        if self._watching is not None:
            self._watching.join()
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def finished(self, files: int, size: int, rows: int) -> None:
        """Another part is done."""
        parts, old_files, old_size, old_rows = self._done
        self._done = (parts + 1, old_files + files, old_size + size, old_rows + rows)
        if self.is_shown and self._watching is None:
            print(f"phalanx: {self.line()}", file=sys.stderr)

    def line(self) -> str:
        """How far it is, in one line."""
        parts, files, size, rows = self._done
        said = [f"{parts:,} of {self.parts:,} chunks"]
        if self.files:
            said.append(f"{files:,} of {self.files:,} files")
            said.append(f"{size / 1e6:,.1f} of {self.size / 1e6:,.1f} MB")
        said += [f"{rows:,} rows", f"{self.seconds:,.0f} s"]
        return ", ".join(said)

    def _watch(self) -> None:
        while not self._over.wait(_SECONDS):
            print(f"\r\x1b[K{self.line()}{_tasks(self.spark)}", end="", file=sys.stderr, flush=True)


def _tasks(spark: SparkSession) -> str:
    """How many tasks of the stages that run now are done; nothing where Spark does not tell."""
    try:
        tracker = spark.sparkContext.statusTracker()
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    except Exception:
        return ""
    running = [stage for stage in stages if stage is not None]
    total = sum(stage.numTasks for stage in running)
    done = sum(stage.numCompletedTasks for stage in running)
    return f", {done:,} of {total:,} tasks" if total else ""
