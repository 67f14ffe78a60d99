"""The plan of a rewrite: which files to rewrite together, which are left out, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, repeat
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from phalanx.model.specs.partition_key import PartitionKey, to_json_value, to_python_values
from phalanx.planning.formatting import format_bytes, format_count
from phalanx.planning.rewrites.entries import (
    FILE_BYTES,
    FILE_DELETES,
    FILE_PATH,
    FILE_ROWS,
    read_numbers,
)
from phalanx.planning.rewrites.filter import Diagnostic, FilterStats
from phalanx.planning.rewrites.groups import FileRuns
from phalanx.planning.rewrites.options import RewriteOptions

_MAX_SHOWN = 20


@dataclass(frozen=True, slots=True)
class DeleteFile:
    """A file that deletes rows of a data file.

    Attributes:
        path: The path of the file.
        bytes: The size of the file.
        rows: The number of rows that it deletes; None if it is unknown.
    """

    path: str
    bytes: int
    rows: int | None


class RewriteFile(NamedTuple):
    """A data file to rewrite.

    Attributes:
        path: The path of the file.
        bytes: The size of the file.
        rows: The number of rows in it, including deleted ones.
        deletes: The delete files that apply to it.
    """

    path: str
    bytes: int
    rows: int
    deletes: tuple[DeleteFile, ...] = ()


@dataclass(frozen=True, slots=True)
class RewriteGroup:
    """Files of one partition to rewrite together.

    Attributes:
        id: The number of the group in the plan.
        key: The spec and the partition values.
        files: The files.
        bytes: The size of the files.
    """

    id: int
    key: PartitionKey
    files: tuple[RewriteFile, ...]
    bytes: int

    @property
    def rows(self) -> int:
        """The number of rows in its files, including deleted ones."""
        return sum(file.rows for file in self.files)

    @property
    def delete_files(self) -> tuple[DeleteFile, ...]:
        """The delete files that apply to its files, each path once."""
        return tuple({each.path: each for file in self.files for each in file.deletes}.values())


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Candidates that are not rewritten.

    Attributes:
        key: The spec and the partition values.
        files: The files.
        reason: Why they are not rewritten.
    """

    key: PartitionKey
    files: tuple[RewriteFile, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class SpecSummary:
    """The number of files under one spec.

    Attributes:
        spec_id: The id of the spec.
        label: The fields of the spec, as text.
        total_files: The number of files under the spec.
        matching_files: The number of these in partitions that the filter keeps.
    """

    spec_id: int
    label: str
    total_files: int
    matching_files: int


@dataclass(frozen=True, eq=False)
class RewritePlan:
    """The groups of files to rewrite, in order.

    Internal: `chosen` and `left`.

    Attributes:
        where: The partition filter as text; None: all partitions.
        options: The options of the rewrite.
        specs: The number of files under each spec.
        stats: How much of the filter could not be evaluated.
        diagnostics: Why partitions are kept without a decision of the filter, one for each cause.
        more_diagnostics: The number of further causes, which are left out.
        keys: The partition values of the candidates, a table for each spec id.
        candidates: A row for each file that its size or its deleted rows make a candidate.
        ids: The id of each group, in the order of `groups`.
        reasons: The reason for each item of `left_out`, in the same order.
        retirable: The ids of older specs that have no files.
    """

    where: str | None
    options: RewriteOptions
    specs: tuple[SpecSummary, ...]
    stats: FilterStats
    diagnostics: tuple[Diagnostic, ...]
    more_diagnostics: int
    keys: Mapping[int, pa.Table]
    candidates: pa.Table
    chosen: FileRuns
    ids: npt.NDArray[np.int64]
    left: FileRuns
    reasons: tuple[str, ...]
    retirable: tuple[int, ...] = ()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RewritePlan):
            return NotImplemented
        return self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]

    @cached_property
    def groups(self) -> tuple[RewriteGroup, ...]:
        """The groups to rewrite, in order."""
        runs = self._list_runs(self.chosen)
        sizes = self.chosen.sum_files(read_numbers(self.candidates, FILE_BYTES)).tolist()
        return tuple(
            RewriteGroup(number, key, files, size)
            for number, (key, files), size in zip(self.ids.tolist(), runs, sizes, strict=True)
        )

    @cached_property
    def left_out(self) -> tuple[LeftOut, ...]:
        """The candidates that are in no group, sorted by key."""
        runs = self._list_runs(self.left)
        return tuple(
            LeftOut(key, files, reason)
            for (key, files), reason in zip(runs, self.reasons, strict=True)
        )

    @property
    def total_files(self) -> int:
        """The number of all files."""
        return sum(each.total_files for each in self.specs)

    @property
    def matching_files(self) -> int:
        """The number of files in partitions that the filter keeps."""
        return sum(each.matching_files for each in self.specs)

    @property
    def candidate_files(self) -> int:
        """The number of candidates, by size or deletes."""
        return int(self.candidates.num_rows)

    @property
    def rewritten_files(self) -> int:
        """The number of files in groups."""
        return int(self.chosen.counts.sum())

    @property
    def rewritten_bytes(self) -> int:
        """The bytes of the files in groups."""
        return int(self.chosen.sum_files(read_numbers(self.candidates, FILE_BYTES)).sum())

    def _list_runs(self, runs: FileRuns) -> Iterator[tuple[PartitionKey, tuple[RewriteFile, ...]]]:
        keys, files = self._read_keys(runs), self._files
        for key, start, end in zip(keys, runs.starts.tolist(), runs.ends.tolist(), strict=True):
            yield key, tuple(files[start:end])

    def _read_keys(self, runs: FileRuns) -> list[PartitionKey]:
        found: list[PartitionKey] = [PartitionKey(0, ())] * len(runs)
        for spec_id, table in self.keys.items():
            indices = np.flatnonzero(runs.spec_ids == spec_id)
            columns = (
                table.take(pa.array(runs.key_indices[indices])).columns if len(indices) else []
            )
            values = zip(*map(to_python_values, columns), strict=True) if columns else repeat(())
            for index, each in zip(indices.tolist(), values, strict=False):
                found[index] = PartitionKey(spec_id, each)
        return found

    @cached_property
    def _files(self) -> list[RewriteFile]:
        columns = (
            self.candidates.column(name).to_pylist() for name in (FILE_PATH, FILE_BYTES, FILE_ROWS)
        )
        rows = zip(*columns, _read_deletes(self.candidates), strict=True)
        return list(map(RewriteFile._make, rows))

    def __getstate__(self) -> dict[str, Any]:
        # Cached properties are computed again from the columns.
        cached = ("groups", "left_out", "_files")
        return {name: value for name, value in self.__dict__.items() if name not in cached}

    def to_dict(self) -> dict[str, Any]:
        """Return the plan for JSON."""
        return {
            "where": self.where,
            "options": self.options.to_dict(),
            "total_files": self.total_files,
            "matching_files": self.matching_files,
            "candidate_files": self.candidate_files,
            "rewritten_files": self.rewritten_files,
            "rewritten_bytes": self.rewritten_bytes,
            "specs": [
                {
                    "spec_id": each.spec_id,
                    "partition_by": each.label,
                    "total_files": each.total_files,
                    "matching_files": each.matching_files,
                }
                for each in self.specs
            ],
            "retirable_specs": list(self.retirable),
            "stats": self.stats.to_dict(),
            "diagnostics": [each.to_dict() for each in self.diagnostics],
            "more_diagnostics": self.more_diagnostics,
            "groups": [
                {
                    "id": group.id,
                    **self._key_dict(group.key),
                    "bytes": group.bytes,
                    "rows": group.rows,
                    "files": [_file_dict(file) for file in group.files],
                    "delete_files": [_delete_dict(each) for each in group.delete_files],
                }
                for group in self.groups
            ],
            "left_out": [
                {
                    **self._key_dict(each.key),
                    "reason": each.reason,
                    "files": [_file_dict(file) for file in each.files],
                }
                for each in self.left_out
            ],
        }

    def _key_dict(self, key: PartitionKey) -> dict[str, Any]:
        values = {name: to_json_value(value) for name, value in self._named_values(key)}
        return {"spec_id": key.spec_id, "values": values}

    def _named_values(self, key: PartitionKey) -> Iterator[tuple[str, Any]]:
        return zip(self.keys[key.spec_id].column_names, key.values, strict=True)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        if self.where is not None:
            yield f"where {self.where}"
        yield (
            f"rewrites {self.rewritten_files:,} of {format_count(self.total_files, 'file')} in "
            f"{format_count(len(self.ids), 'group')}, {format_bytes(self.rewritten_bytes)}"
        )
        for each in self.specs:
            yield (
                f"spec v{each.spec_id} by {each.label or 'nothing'}: "
                f"{each.matching_files:,} of {format_count(each.total_files, 'file')} may match"
            )
        for spec_id in self.retirable:
            yield f"spec v{spec_id} no longer holds files: a vacuum removes those of older versions"
        for diagnostic in self.diagnostics:
            kept = format_count(diagnostic.partitions, "partition")
            yield f"spec v{diagnostic.spec_id} includes {kept} undecided: {diagnostic.cause}"
        if self.more_diagnostics:
            yield f"and {format_count(self.more_diagnostics, 'cause')} more"
        for group in self.groups[:_MAX_SHOWN]:
            files, deletes = format_count(len(group.files), "file"), len(group.delete_files)
            yield (
                f"group {group.id}: {self._format_key(group.key)}: {files}, "
                f"{format_bytes(group.bytes)}"
                + (f", {format_count(deletes, 'delete file')}" if deletes else "")
            )
        if (hidden := len(self.ids) - _MAX_SHOWN) > 0:
            yield f"and {format_count(hidden, 'group')} more"
        for left in self.left_out[:_MAX_SHOWN]:
            yield (
                f"left out: {self._format_key(left.key)}: {format_count(len(left.files), 'file')}: "
                f"{left.reason}"
            )
        if (hidden := len(self.reasons) - _MAX_SHOWN) > 0:
            yield f"and {hidden:,} more left out"

    def _format_key(self, key: PartitionKey) -> str:
        values = (
            f"{name}={'NULL' if value is None else to_json_value(value)}"
            for name, value in self._named_values(key)
        )
        return " ".join([f"v{key.spec_id}", *values])


def _read_deletes(files: pa.Table) -> Iterator[tuple[DeleteFile, ...]]:
    """Yield the delete files of each file, sorted by path."""
    lists = files.column(FILE_DELETES).combine_chunks()
    counts = pc.fill_null(pc.list_value_length(lists), 0).to_pylist()
    found = (DeleteFile(**each) for each in pc.list_flatten(lists).to_pylist())
    by_path = attrgetter("path")
    return (tuple(sorted(islice(found, count), key=by_path)) if count else () for count in counts)


def _file_dict(file: RewriteFile) -> dict[str, Any]:
    return {
        "path": file.path,
        "bytes": file.bytes,
        "rows": file.rows,
        "deletes": [each.path for each in file.deletes],
    }


def _delete_dict(file: DeleteFile) -> dict[str, Any]:
    return {"path": file.path, "bytes": file.bytes, "rows": file.rows}
