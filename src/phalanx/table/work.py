"""Work for many tasks: what each does is a value, which a Spark session hands to its executors."""

from __future__ import annotations

import base64
import pickle
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

_WORK = "work"


class Work(Protocol):
    """Tasks, and the rows that each of them gives."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows."""

    @property
    def tasks(self) -> Sequence[Any]:
        """What the tasks do; each must be picklable."""

    def without_tasks(self) -> Work:
        """The same work, as one task sees it."""

    def batches(self, task: Any) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""


def options_of(work: Work) -> dict[str, str]:
    """The options by which `format("phalanx")` is told what to do."""
    packed = zlib.compress(pickle.dumps(work), 1)
    return {_WORK: base64.b85encode(packed).decode()}


def work_of(options: Mapping[str, str]) -> Work | None:
    """What `options_of` in the same session has told; None if a table is read."""
    told = options.get(_WORK)
    if told is None:
        return None
    work: Work = pickle.loads(zlib.decompress(base64.b85decode(told)))
    return work


def on_spark(spark: Any, work: Work) -> Any:
    """The rows of all tasks, as a DataFrame of the session."""
    return spark.read.format("phalanx").options(**options_of(work)).load()
