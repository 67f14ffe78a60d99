"""The plan of a rewrite: which files are rewritten together, which are left, and why."""

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

from phalanx.model.specs.partition_key import PartitionKey, json_value, plain_values
from phalanx.planning.pruning.scan_plan import counted, readable
from phalanx.planning.rewrites.entries import BYTES, DELETES, PATH, ROWS, numbers
from phalanx.planning.rewrites.filter import Diagnostic, FilterStats
from phalanx.planning.rewrites.groups import Runs
from phalanx.planning.rewrites.options import RewriteOptions

_SHOWN = 20


@dataclass(frozen=True, slots=True)
class DeleteFile:
    """A file that deletes rows of a data file; `rows` is None where nobody knows how many."""

    path: str
    bytes: int
    rows: int | None


class RewriteFile(NamedTuple):
    """A data file that is rewritten, and the delete files that apply to it."""

    path: str
    bytes: int
    rows: int
    deletes: tuple[DeleteFile, ...] = ()


@dataclass(frozen=True, slots=True)
class RewriteGroup:
    """Files of one partition that are rewritten together."""

    id: int
    key: PartitionKey
    files: tuple[RewriteFile, ...]
    bytes: int

    @property
    def rows(self) -> int:
        """How many rows were written to its files, deleted ones included."""
        return sum(file.rows for file in self.files)

    @property
    def delete_files(self) -> tuple[DeleteFile, ...]:
        """The delete files that apply to its files, each path once."""
        return tuple({each.path: each for file in self.files for each in file.deletes}.values())


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Files that want a rewrite and get none, and why."""

    key: PartitionKey
    files: tuple[RewriteFile, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class SpecSummary:
    """How many files there are under one spec, and how many of them the filter keeps."""

    spec_id: int
    label: str
    total_files: int
    matching_files: int


@dataclass(frozen=True, eq=False)
class RewritePlan:
    """The groups to rewrite, in the order in which they should be.

    The files are kept as columns, in which `chosen` and `left` are runs; `keys` has the partition
    values for each spec. `untold` causes are more than `diagnostics` tells.
    """

    where: str | None
    options: RewriteOptions
    specs: tuple[SpecSummary, ...]
    stats: FilterStats
    diagnostics: tuple[Diagnostic, ...]
    untold: int
    keys: Mapping[int, pa.Table]
    candidates: pa.Table
    chosen: Runs
    ids: npt.NDArray[np.int64]
    left: Runs
    reasons: tuple[str, ...]
    # Old specs that hold no files any more.
    retirable: tuple[int, ...] = ()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RewritePlan):
            return NotImplemented
        return self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]

    @cached_property
    def groups(self) -> tuple[RewriteGroup, ...]:
        """The groups to rewrite, the first ones first."""
        runs = self._runs(self.chosen)
        sizes = self.chosen.totals(numbers(self.candidates, BYTES)).tolist()
        return tuple(
            RewriteGroup(number, key, files, size)
            for number, (key, files), size in zip(self.ids.tolist(), runs, sizes, strict=True)
        )

    @cached_property
    def left_out(self) -> tuple[LeftOut, ...]:
        """The candidates that are in no group, in the order of their keys."""
        runs = self._runs(self.left)
        return tuple(
            LeftOut(key, files, reason)
            for (key, files), reason in zip(runs, self.reasons, strict=True)
        )

    @property
    def total_files(self) -> int:
        """How many files there are."""
        return sum(each.total_files for each in self.specs)

    @property
    def matching_files(self) -> int:
        """How many files are in partitions that the filter keeps."""
        return sum(each.matching_files for each in self.specs)

    @property
    def candidate_files(self) -> int:
        """How many of them want a rewrite, by their size or deletes."""
        return int(self.candidates.num_rows)

    @property
    def rewritten_files(self) -> int:
        """How many files are in groups."""
        return int(self.chosen.counts.sum())

    @property
    def rewritten_bytes(self) -> int:
        """How many bytes the files in groups have."""
        return int(self.chosen.totals(numbers(self.candidates, BYTES)).sum())

    def _runs(self, runs: Runs) -> Iterator[tuple[PartitionKey, tuple[RewriteFile, ...]]]:
        keys, files = self._keys_of(runs), self._files
        for key, start, end in zip(keys, runs.starts.tolist(), runs.ends.tolist(), strict=True):
            yield key, tuple(files[start:end])

    def _keys_of(self, runs: Runs) -> list[PartitionKey]:
        found: list[PartitionKey] = [PartitionKey(0, ())] * len(runs)
        for spec_id, table in self.keys.items():
            mine = np.flatnonzero(runs.specs == spec_id)
            columns = table.take(pa.array(runs.places[mine])).columns if len(mine) else []
            values = zip(*map(plain_values, columns), strict=True) if columns else repeat(())
            for place, each in zip(mine.tolist(), values, strict=False):
                found[place] = PartitionKey(spec_id, each)
        return found

    @cached_property
    def _files(self) -> list[RewriteFile]:
        columns = (self.candidates.column(name).to_pylist() for name in (PATH, BYTES, ROWS))
        rows = zip(*columns, _deletes(self.candidates), strict=True)
        return list(map(RewriteFile._make, rows))

    def __getstate__(self) -> dict[str, Any]:
        # What is made of the columns is made again where it is wanted.
        made = ("groups", "left_out", "_files")
        return {name: value for name, value in self.__dict__.items() if name not in made}

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON has it."""
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
            "more_diagnostics": self.untold,
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
        values = {name: json_value(value) for name, value in self._named(key)}
        return {"spec_id": key.spec_id, "values": values}

    def _named(self, key: PartitionKey) -> Iterator[tuple[str, Any]]:
        return zip(self.keys[key.spec_id].column_names, key.values, strict=True)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        if self.where is not None:
            yield f"where {self.where}"
        yield (
            f"rewrites {self.rewritten_files:,} of {counted(self.total_files, 'file')} in "
            f"{counted(len(self.ids), 'group')}, {readable(self.rewritten_bytes)}"
        )
        for each in self.specs:
            yield (
                f"spec v{each.spec_id} by {each.label or 'nothing'}: "
                f"{each.matching_files:,} of {counted(each.total_files, 'file')} may match"
            )
        for spec_id in self.retirable:
            yield f"spec v{spec_id} holds no files any more: it can be retired"
        for diagnostic in self.diagnostics:
            kept = counted(diagnostic.partitions, "partition")
            yield f"spec v{diagnostic.spec_id} includes {kept} undecided: {diagnostic.cause}"
        if self.untold:
            yield f"and {counted(self.untold, 'cause')} more"
        for group in self.groups[:_SHOWN]:
            deletes = len(group.delete_files)
            yield (
                f"group {group.id}: {self._shown(group.key)}: {counted(len(group.files), 'file')}, "
                f"{readable(group.bytes)}"
                + (f", {counted(deletes, 'delete file')}" if deletes else "")
            )
        if (hidden := len(self.ids) - _SHOWN) > 0:
            yield f"and {counted(hidden, 'group')} more"
        for left in self.left_out[:_SHOWN]:
            yield (
                f"left out: {self._shown(left.key)}: {counted(len(left.files), 'file')}: "
                f"{left.reason}"
            )
        if (hidden := len(self.reasons) - _SHOWN) > 0:
            yield f"and {hidden:,} more left out"

    def _shown(self, key: PartitionKey) -> str:
        values = (
            f"{name}={'NULL' if value is None else json_value(value)}"
            for name, value in self._named(key)
        )
        return " ".join([f"v{key.spec_id}", *values])


def _deletes(files: pa.Table) -> Iterator[tuple[DeleteFile, ...]]:
    """The delete files of each file, by path."""
    lists = files.column(DELETES).combine_chunks()
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
