"""Progress of a long job on stderr: one updated line on a terminal, else a line for each part."""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import dataclass, field
from types import TracebackType

from pyspark.sql import SparkSession

from phalanx.spark.runtime.notices import notify

_SECONDS = 0.5


@dataclass(slots=True)
class SparkProgress:
    """The progress of a job in parts; Spark's tasks show that of the running part."""

    spark: SparkSession
    parts: int
    files: int
    size: int
    is_shown: bool = True
    _start: float = field(default_factory=time.monotonic)
    _done: tuple[int, int, int, int] = (0, 0, 0, 0)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    @property
    def seconds(self) -> float:
        """The seconds since the start."""
        return time.monotonic() - self._start

    def __enter__(self) -> SparkProgress:
        if self.is_shown and self.parts and sys.stderr.isatty():
            self._thread = threading.Thread(target=self._watch, daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def finish_part(self, files: int, size: int, rows: int) -> None:
        """Record that a part is done."""
        parts, old_files, old_size, old_rows = self._done
        self._done = (parts + 1, old_files + files, old_size + size, old_rows + rows)
        if self.is_shown and self._thread is None:
            notify(self.line())

    def line(self) -> str:
        """Return the progress as one line."""
        parts, files, size, rows = self._done
        shown = [f"{parts:,} of {self.parts:,} chunks"]
        if self.files:
            shown.append(f"{files:,} of {self.files:,} files")
            shown.append(f"{size / 1e6:,.1f} of {self.size / 1e6:,.1f} MB")
        shown += [f"{rows:,} rows", f"{self.seconds:,.0f} s"]
        return ", ".join(shown)

    def _watch(self) -> None:
        while not self._stop.wait(_SECONDS):
            print(
                f"\r\x1b[K{self.line()}{_task_counts(self.spark)}",
                end="",
                file=sys.stderr,
                flush=True,
            )


def _task_counts(spark: SparkSession) -> str:
    """Format how many tasks of the running stages are done; empty if Spark does not say."""
    try:
        tracker = spark.sparkContext.statusTracker()
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    except Exception:
        return ""
    running = [stage for stage in stages if stage is not None]
    total = sum(stage.numTasks for stage in running)
    done = sum(stage.numCompletedTasks for stage in running)
    return f", {done:,} of {total:,} tasks" if total else ""
