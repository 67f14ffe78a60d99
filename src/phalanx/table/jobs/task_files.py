"""Files that the tasks of a job have written: what each tells, and all of them by partition."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import pyarrow as pa
from lance.fragment import FragmentMetadata

from phalanx.model.schema.grouping import positions
from phalanx.storage.commit.writing import LeafWrite, Replacement, leaf_writes
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.parallel import WRITE_THREADS, in_parallel
from phalanx.storage.leaf.staging import copied_files
from phalanx.storage.new_leaves import NewLeaves
from phalanx.table.write.incoming_rows import Target


@dataclass(frozen=True, slots=True)
class LeafFiles:
    """Files that a task has written: where, and of which leaf, as the manifest names it.

    `stands_for` tells which row of which leaf each of their rows replaces, if any does.
    """

    location: str
    fragments: tuple[FragmentMetadata, ...]
    stands_for: StandsFor | None = None


@dataclass(frozen=True, slots=True)
class StandsFor:
    """For each row of some files the one that it replaces, as a `Replacement` has it."""

    leaves: tuple[str, ...]
    packed: bytes

    @classmethod
    def of(cls, leaves: Sequence[str], old: pa.Table) -> StandsFor:
        """The columns `leaf` and `address`, in few bytes: they travel to the driver."""
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.ipc.new_stream(sink, old.schema, options=options) as writer:
            writer.write_table(old)
        return cls(tuple(leaves), sink.getvalue().to_pybytes())

    def replacement(self, fragments: Sequence[FragmentMetadata]) -> Replacement:
        """What the files that hold these rows replace."""
        old = pa.ipc.open_stream(self.packed).read_all()
        return Replacement(tuple(fragments), self.leaves, old)


class ReplacedRows(Protocol):
    """Tells which rows others replace, by columns that stand beside theirs."""

    @property
    def columns(self) -> pa.Schema:
        """The columns that tell it."""

    def stands_for(self, told: pa.Table) -> StandsFor | None:
        """What rows with these columns beside them replace; None if none of them does."""


@dataclass(frozen=True, slots=True)
class TaskFiles:
    """What one task has written: partitions, and the files of each."""

    keys: pa.Table
    files: tuple[LeafFiles, ...]

    @classmethod
    def none(cls) -> TaskFiles:
        """What a task without rows has written."""
        return cls(pa.table({}), ())

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return sum(each.num_rows for files in self.files for each in files.fragments)


@dataclass(frozen=True, slots=True)
class ArrivedFiles:
    """The files of all tasks, by partition."""

    root: Location
    new: NewLeaves
    keys: pa.Table
    files: tuple[tuple[LeafFiles, ...], ...]

    @classmethod
    def of(cls, root: Location, new: NewLeaves, tasks: Iterable[TaskFiles]) -> ArrivedFiles | None:
        """The files of the tasks that wrote any; None if none did."""
        wrote = [task for task in tasks if task.files]
        if not wrote:
            return None
        keys = wrote[0].keys
        files: list[list[LeafFiles]] = [[each] for each in wrote[0].files]
        for task in wrote[1:]:
            places = positions(task.keys, keys)
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
        """How many fragments there are."""
        return len(self._fragments)

    @property
    def _fragments(self) -> list[FragmentMetadata]:
        return [each for leaf in self.files for files in leaf for each in files.fragments]

    @property
    def new_locations(self) -> set[str]:
        """Where tasks have written: the leaves that they made are among these."""
        return {
            files.location
            for leaf_files in self.files
            for files in leaf_files
            if files.location == self.new.directory(files.location.partition("_")[2])
        }

    def arrive(self, target: Target) -> list[LeafWrite]:
        """The files, each in its leaf; those of a leaf that another writer made are copied."""
        target.ensure_partitions(self.keys, self.new)
        manifest = target.manifest
        spec = manifest.properties.spec
        leaves = manifest.leaves()[spec.id].take(pa.array(manifest.places(self.keys)))
        writes = list(leaf_writes(manifest, spec.id, leaves, [None] * leaves.num_rows))

        def arrived(place: int) -> LeafWrite:
            write = writes[place]
            found: list[FragmentMetadata] = []
            replacements: list[Replacement] = []
            for files in self.files[place]:
                source = self.root.child(files.location)
                fragments = files.fragments
                if source.uri != write.location.uri:
                    into = target.open_leaf(write.location, write.version)
                    fragments = tuple(
                        copied_files(source.open_leaf(), source, fragments, write.location, into)
                    )
                found += fragments
                if files.stands_for is not None:
                    replacements.append(files.stands_for.replacement(fragments))
            return replace(write, fragments=tuple(found), replacements=tuple(replacements))

        return in_parallel(arrived, range(len(writes)), WRITE_THREADS)


class _Nothing:
    """No rows, of no partition: an overwrite by them only removes."""

    rows = 0
    keys = pa.table({})

    def arrive(self, target: Target) -> list[LeafWrite]:
        """None."""
        return []


NOTHING = _Nothing()
