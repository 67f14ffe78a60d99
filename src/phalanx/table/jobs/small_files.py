"""Small files of many tasks put together, before anybody sees them.

Tasks that have rows of many partitions write a file for each. Where nothing brought the rows of a
partition together before, the process that commits the job can do it with the files: it writes
them anew, and only the new ones are committed. The others are listed nowhere, and vacuum removes
them, just as it does if the process dies on the way.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
from lance.fragment import FragmentMetadata

from phalanx.storage.lance.failures import told
from phalanx.storage.lance.parallel import WRITE_THREADS, in_parallel
from phalanx.storage.lance.versions import is_undetachable
from phalanx.storage.leaf.leaf import ROWS_PER_FILE
from phalanx.storage.leaf.staging import copied_files
from phalanx.table.jobs.task_files import LeafFiles, TaskFiles
from phalanx.table.jobs.write_job import WriteJob

# A file with fewer rows is small: two of them still fit into one.
SMALL_ROWS = ROWS_PER_FILE // 2


def gathered(job: WriteJob, tasks: Sequence[TaskFiles]) -> list[TaskFiles]:
    """The same rows, with the small files of each leaf as few; what to commit instead.

    Rows stream from file to file: memory is bounded by a few batches for each thread.
    """
    tasks = [task for task in tasks if task.files]
    small: defaultdict[str, list[FragmentMetadata]] = defaultdict(list)
    for task in tasks:
        for files in task.files:
            small[files.location] += [each for each in files.fragments if _is_small(each)]
    wanted = {location: tuple(found) for location, found in small.items() if len(found) > 1}
    versions = {location: version for task in tasks for location, version in job.leaves(task.keys)}

    def rewritten(location: str) -> tuple[FragmentMetadata, ...] | None:
        source = job.root.child(location)
        dataset = job.opened(location, versions[location])
        try:
            return copied_files(dataset, source, wanted[location], source, dataset)
        except OSError as error:
            if not is_undetachable(error):
                raise
            return None

    with told(f"gather the files of a write to {job.root}"):
        written = in_parallel(rewritten, wanted, WRITE_THREADS)
    new = {
        location: fragments
        for location, fragments in zip(wanted, written, strict=True)
        if fragments is not None
    }
    return [_with(task, new) for task in tasks]


def _is_small(fragment: FragmentMetadata) -> bool:
    return fragment.num_rows < SMALL_ROWS


def _with(task: TaskFiles, new: dict[str, tuple[FragmentMetadata, ...]]) -> TaskFiles:
    """The task's files without those that were written anew; the first task takes the new ones."""
    replaced = [_replaced(files, new) for files in task.files]
    kept = [place for place, files in enumerate(replaced) if files.fragments]
    keys = task.keys.take(pa.array(np.array(kept, np.int64)))
    return TaskFiles(keys, tuple(replaced[place] for place in kept))


def _replaced(files: LeafFiles, new: dict[str, tuple[FragmentMetadata, ...]]) -> LeafFiles:
    if files.location not in new:
        return files
    large = tuple(each for each in files.fragments if not _is_small(each))
    mine, new[files.location] = new[files.location], ()
    return replace(files, fragments=large + mine)
