"""What the tasks of an import do, and what is checked of it before anything is committed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from phalanx.errors import PhalanxError
from phalanx.model.schema.storable_types import as_stored
from phalanx.planning.import_plan import ImportUnit
from phalanx.planning.splits import FEWEST_BYTES, OPENING_BYTES, packed, split_size
from phalanx.storage.lance.failures import told
from phalanx.table.imports.chunks import few_tasks
from phalanx.table.jobs.task_files import TaskFiles
from phalanx.table.jobs.write_job import WriteJob

# ── on the executors ─────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class UnitsWritten:
    """What a task has done: the rows that each unit gave, and the files they are in."""

    rows: tuple[tuple[str, int], ...]
    files: TaskFiles


@dataclass(frozen=True, slots=True)
class ImportTask:
    """Some units, whose rows are written to their partitions."""

    group: int
    bytes: int
    job: WriteJob
    stored: pa.Schema
    units: tuple[ImportUnit, ...]

    def run(self) -> UnitsWritten:
        """The new files, which nobody sees yet."""
        counts: Counter[str] = Counter()

        def batches() -> Iterator[pa.RecordBatch]:
            for unit in self.units:
                for batch in unit.batches():
                    counts[unit.id] += batch.num_rows
                    yield self._stored(batch)

        with told(f"import into {self.job.root}"):
            files = self.job.write(pa.RecordBatchReader.from_batches(self.stored, batches()))
        return UnitsWritten(tuple((unit.id, counts[unit.id]) for unit in self.units), files)

    def _stored(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays = [as_stored(batch.column(field.name), field.type) for field in self.stored]
        return pa.RecordBatch.from_arrays(arrays, schema=self.stored)


# ── on the driver ────────────────────────────────────────────────────────────────────────────


def import_tasks(
    job: WriteJob, stored: pa.Schema, units: Sequence[ImportUnit], cores: int, is_spread: bool
) -> list[ImportTask]:
    """The units in tasks. Each writes a file for every partition it has rows of, so they are few.

    As many as keep all cores busy; or, if they are spread, tasks of the usual size.
    """
    sizes = [unit.bytes + OPENING_BYTES for unit in units]
    total = sum(sizes)
    if is_spread:
        most = split_size(total, None)
    else:
        # Units are not alike: a task may take half of one more.
        each = total // few_tasks(cores, total) + max(sizes, default=0) // 2
        most = max(each, FEWEST_BYTES)
    parts = packed(units, lambda unit: unit.bytes, most)
    return [
        ImportTask(number, sum(unit.bytes for unit in some), job, stored, some)
        for number, some in enumerate(parts)
    ]


def checked_files(source: str, units: Sequence[ImportUnit], done: Sequence[UnitsWritten]) -> None:
    """Refuse to commit what has other rows than the source says it has."""
    came = {name: rows for task in done for name, rows in task.rows}
    for unit in units:
        if came.get(unit.id) != unit.rows:
            raise PhalanxError(
                f"Cannot import {unit.id} of {source}: it gave {came.get(unit.id, 0):,} rows, but "
                f"{unit.rows:,} are expected of it. Something changed the source meanwhile, or it "
                "is broken; nothing of this chunk was committed."
            )
    written = sum(task.files.rows for task in done)
    if written != sum(unit.rows for unit in units):
        raise PhalanxError(
            f"Cannot import {source}: {written:,} rows were written of "
            f"{sum(unit.rows for unit in units):,} that were read. Nothing of this chunk was "
            "committed; run it again."
        )
