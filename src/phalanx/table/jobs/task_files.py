"""The files that the tasks of a job have written, by task and by partition."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import pyarrow as pa
from lance.fragment import FragmentMetadata

from phalanx.model.schema.grouping import find_positions
from phalanx.storage.commit.writing import LeafWrite, RowReplacement, plan_leaf_writes
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.parallel import WRITE_THREADS, map_parallel
from phalanx.storage.leaf.leaf import LeafCreator
from phalanx.storage.leaf.staging import copy_files
from phalanx.table.write.incoming_rows import Target


@dataclass(frozen=True, slots=True)
class LeafFiles:
    """Files that a task has written to a leaf, at a location as the manifest stores it.

    `replaced` has the row position that each of their rows replaces, if any does.
    """

    location: str
    fragments: tuple[FragmentMetadata, ...]
    replaced: ReplacedPositions | None = None


@dataclass(frozen=True, slots=True)
class ReplacedPositions:
    """The row that each row of some files replaces, as in `RowReplacement`, compressed."""

    leaves: tuple[str, ...]
    packed: bytes

    @classmethod
    def of(cls, leaves: Sequence[str], old: pa.Table) -> ReplacedPositions:
        """Compress the columns `leaf` and `address`: they are sent to the driver."""
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.ipc.new_stream(sink, old.schema, options=options) as writer:
            writer.write_table(old)
        return cls(tuple(leaves), sink.getvalue().to_pybytes())

    def to_replacement(self, fragments: Sequence[FragmentMetadata]) -> RowReplacement:
        """Return the replacement for the files that hold these rows."""
        old = pa.ipc.open_stream(self.packed).read_all()
        return RowReplacement(tuple(fragments), self.leaves, old)


class ReplacedRowFinder(Protocol):
    """Finds which rows are replaced, by extra columns of the new rows."""

    @property
    def columns(self) -> pa.Schema:
        """The extra columns."""

    def find_replaced(self, ids: pa.Table) -> ReplacedPositions | None:
        """Return the positions that rows with these ids replace; None if they replace none."""


@dataclass(frozen=True, slots=True)
class TaskFiles:
    """The partitions that one task has written to, and the files of each.

    A caller sends the object to the process that commits, as it is.

    Internal: `files`.

    Attributes:
        keys: A row for each partition: the id of its spec, and its partition values.
    """

    keys: pa.Table
    files: tuple[LeafFiles, ...]

    @classmethod
    def empty(cls) -> TaskFiles:
        """Return the result of a task without rows."""
        return cls(pa.table({}), ())

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return sum(each.num_rows for files in self.files for each in files.fragments)


@dataclass(frozen=True, slots=True)
class IncomingFiles:
    """The files of all tasks, by partition."""

    root: Location
    new: LeafCreator
    keys: pa.Table
    files: tuple[tuple[LeafFiles, ...], ...]

    @classmethod
    def of(
        cls, root: Location, new: LeafCreator, tasks: Iterable[TaskFiles]
    ) -> IncomingFiles | None:
        """Collect the files of all tasks; None if no task wrote any."""
        wrote = [task for task in tasks if task.files]
        if not wrote:
            return None
        keys = wrote[0].keys
        files: list[list[LeafFiles]] = [[each] for each in wrote[0].files]
        for task in wrote[1:]:
            places = find_positions(task.keys, keys)
            fresh = np.flatnonzero(places < 0)
            places[fresh] = np.arange(len(fresh)) + keys.num_rows
            keys = pa.concat_tables([keys, task.keys.take(pa.array(fresh))])
            files.extend([] for _ in fresh)
            for place, each in zip(places.tolist(), task.files, strict=True):
                files[place].append(each)
        return cls(root, new, keys, tuple(map(tuple, files)))

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return sum(each.num_rows for each in self._fragments)

    @property
    def fragments(self) -> int:
        """The number of fragments."""
        return len(self._fragments)

    @property
    def _fragments(self) -> list[FragmentMetadata]:
        return [each for leaf in self.files for files in leaf for each in files.fragments]

    @property
    def new_locations(self) -> set[str]:
        """The locations of this job's new leaves that tasks have written to."""
        return {
            files.location
            for leaf_files in self.files
            for files in leaf_files
            if files.location == self.new.choose_directory(files.location.partition("_")[2])
        }

    def stage(self, target: Target) -> list[LeafWrite]:
        """Assign the files to their leaves; copies them if another writer created the leaf."""
        target.ensure_partitions(self.keys, self.new)
        state = target.state
        spec = state.properties.spec
        leaves = state.list_leaves()[spec.id].take(pa.array(state.find_leaf_rows(self.keys)))
        writes = list(plan_leaf_writes(state, spec.id, leaves, [None] * leaves.num_rows))

        def plan_write(place: int) -> LeafWrite:
            write = writes[place]
            found: list[FragmentMetadata] = []
            replacements: list[RowReplacement] = []
            for files in self.files[place]:
                source = self.root.leaf(files.location)
                fragments = files.fragments
                if source.uri != write.location.uri:
                    into = target.open_leaf(write.location, write.version)
                    fragments = tuple(
                        copy_files(source.open_leaf(), source, fragments, write.location, into)
                    )
                found += fragments
                if files.replaced is not None:
                    replacements.append(files.replaced.to_replacement(fragments))
            return replace(write, fragments=tuple(found), replacements=tuple(replacements))

        return map_parallel(plan_write, range(len(writes)), WRITE_THREADS)


class _NoRows:
    """No rows and no partitions: an overwrite with them only removes rows."""

    rows = 0
    keys = pa.table({})

    def stage(self, target: Target) -> list[LeafWrite]:
        """Return no writes."""
        return []


NO_ROWS = _NoRows()
