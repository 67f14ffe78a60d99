"""Combining the small files of many tasks before the commit.

A task with rows of many partitions writes a file for each. If the rows were not shuffled by
partition before, the process that commits the job can combine the files: it rewrites them, and
commits only the new ones. The others are orphans, which vacuum removes, as it does if the process
dies in between.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
from lance.fragment import FragmentMetadata

from phalanx.storage.lance.failures import translate_errors
from phalanx.storage.lance.parallel import WRITE_THREADS, map_parallel
from phalanx.storage.lance.versions import is_v1_paths_error
from phalanx.storage.leaf.leaf import ROWS_PER_FILE
from phalanx.storage.leaf.staging import copy_files
from phalanx.table.jobs.task_files import LeafFiles, TaskFiles
from phalanx.table.jobs.write_job import WriteJob

# A file with fewer rows is small: two of them fit into one.
SMALL_ROWS = ROWS_PER_FILE // 2


def combine_small_files(job: WriteJob, tasks: Sequence[TaskFiles]) -> list[TaskFiles]:
    """Combine the small files of each leaf, and return the files to commit instead.

    Rows stream from file to file: memory is bounded by a few batches for each thread.
    """
    tasks = [task for task in tasks if task.files]
    small: defaultdict[str, list[FragmentMetadata]] = defaultdict(list)
    for task in tasks:
        for files in task.files:
            small[files.location] += [each for each in files.fragments if _is_small(each)]
    wanted = {location: tuple(found) for location, found in small.items() if len(found) > 1}
    versions = {
        location: version for task in tasks for location, version in job.locate_leaves(task.keys)
    }

    def rewrite(location: str) -> tuple[FragmentMetadata, ...] | None:
        source = job.root.leaf(location)
        dataset = job.open_leaf(location, versions[location])
        try:
            return copy_files(dataset, source, wanted[location], source, dataset)
        except OSError as error:
            if not is_v1_paths_error(error):
                raise
            return None

    with translate_errors(f"combine the files of a write to {job.root}"):
        written = map_parallel(rewrite, wanted, WRITE_THREADS)
    new = {
        location: fragments
        for location, fragments in zip(wanted, written, strict=True)
        if fragments is not None
    }
    return [_replace_files(task, new) for task in tasks]


def _is_small(fragment: FragmentMetadata) -> bool:
    return fragment.num_rows < SMALL_ROWS


def _replace_files(task: TaskFiles, new: dict[str, tuple[FragmentMetadata, ...]]) -> TaskFiles:
    """Replace the small files of a task; the first task of a leaf takes the combined files."""
    replaced = [_replace_fragments(files, new) for files in task.files]
    kept = [place for place, files in enumerate(replaced) if files.fragments]
    keys = task.keys.take(pa.array(np.array(kept, np.int64)))
    return TaskFiles(keys, tuple(replaced[place] for place in kept))


def _replace_fragments(files: LeafFiles, new: dict[str, tuple[FragmentMetadata, ...]]) -> LeafFiles:
    if files.location not in new:
        return files
    large = tuple(each for each in files.fragments if not _is_small(each))
    combined, new[files.location] = new[files.location], ()
    return replace(files, fragments=large + combined)
