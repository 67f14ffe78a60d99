"""The tasks of an import, and the checks before their commit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from phalanx.errors import PhalanxError
from phalanx.model.schema.storable_types import cast_to_storable
from phalanx.planning.import_plan import ImportUnit
from phalanx.planning.splits import (
    FILE_OPEN_COST_BYTES,
    MIN_TASK_BYTES,
    choose_task_bytes,
    pack_in_tasks,
)
from phalanx.storage.lance.failures import translate_errors
from phalanx.table.imports.chunks import choose_task_count
from phalanx.table.jobs.task_files import TaskFiles
from phalanx.table.jobs.write_job import WriteJob

# ── on the executors ─────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class ImportTaskResult:
    """The result of a task: the row count of each unit, and the files written."""

    rows: tuple[tuple[str, int], ...]
    files: TaskFiles


@dataclass(frozen=True, slots=True)
class ImportTask:
    """A task that writes the rows of some units to their partitions."""

    group: int
    bytes: int
    job: WriteJob
    stored: pa.Schema
    units: tuple[ImportUnit, ...]

    def run(self) -> ImportTaskResult:
        """Write the rows into files that are not visible yet."""
        counts: Counter[str] = Counter()

        def batches() -> Iterator[pa.RecordBatch]:
            for unit in self.units:
                for batch in unit.batches():
                    counts[unit.id] += batch.num_rows
                    yield self._convert(batch)

        with translate_errors(f"import into {self.job.root}"):
            files = self.job.write(pa.RecordBatchReader.from_batches(self.stored, batches()))
        return ImportTaskResult(tuple((unit.id, counts[unit.id]) for unit in self.units), files)

    def _convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays = [cast_to_storable(batch.column(field.name), field.type) for field in self.stored]
        return pa.RecordBatch.from_arrays(arrays, schema=self.stored)


# ── on the driver ────────────────────────────────────────────────────────────────────────────


def plan_import_tasks(
    job: WriteJob, stored: pa.Schema, units: Sequence[ImportUnit], cores: int, is_spread: bool
) -> list[ImportTask]:
    """Pack the units into tasks that keep all cores busy.

    Uses few tasks, because each writes a file for every partition. With `is_spread`, the tasks
    have the default size.
    """
    sizes = [unit.bytes + FILE_OPEN_COST_BYTES for unit in units]
    total = sum(sizes)
    if is_spread:
        most = choose_task_bytes(total, None)
    else:
        # Units differ in size: allow a task half a unit more.
        each = total // choose_task_count(cores, total) + max(sizes, default=0) // 2
        most = max(each, MIN_TASK_BYTES)
    parts = pack_in_tasks(units, lambda unit: unit.bytes, most)
    return [
        ImportTask(number, sum(unit.bytes for unit in some), job, stored, some)
        for number, some in enumerate(parts)
    ]


def check_written(
    source: str, units: Sequence[ImportUnit], done: Sequence[ImportTaskResult]
) -> None:
    """Refuse to commit if the row counts differ from those of the source."""
    rows_read = {name: rows for task in done for name, rows in task.rows}
    for unit in units:
        if rows_read.get(unit.id) != unit.rows:
            raise PhalanxError(
                f"Cannot import {unit.id} of {source}: read {rows_read.get(unit.id, 0):,} rows, "
                f"but expected {unit.rows:,}. The source changed meanwhile, or it is corrupt; "
                "nothing of this chunk was committed."
            )
    written = sum(task.files.rows for task in done)
    if written != sum(unit.rows for unit in units):
        raise PhalanxError(
            f"Cannot import {source}: wrote {written:,} of the "
            f"{sum(unit.rows for unit in units):,} rows that were read. Nothing of this chunk was "
            "committed; run it again."
        )
