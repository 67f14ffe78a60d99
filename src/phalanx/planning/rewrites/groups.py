"""Group the files of one spec, by operations on whole columns without a loop over files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from phalanx.model.schema.grouping import group_rows, sort_indices
from phalanx.planning.rewrites.entries import (
    FILE_BYTES,
    FILE_COLUMNS,
    FILE_PATH,
    FILE_POSITION,
    FILE_ROWS,
    count_deletes,
    read_numbers,
)
from phalanx.planning.rewrites.filter import MultiSpecPartitionFilter
from phalanx.planning.rewrites.options import RewriteOptions

_Flags = npt.NDArray[np.bool_]
_Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class FileRuns:
    """Groups of consecutive files: the start and end of each group, and its key.

    A key is a spec id and an index into the keys of that spec.
    """

    starts: _Numbers
    ends: _Numbers
    spec_ids: _Numbers
    key_indices: _Numbers

    @classmethod
    def of(cls, spec_id: int, starts: _Numbers, key_indices: _Numbers, files: int) -> FileRuns:
        """Return the groups with these starts and keys."""
        specs = np.full(len(starts), spec_id, dtype=np.int64)
        ends = np.append(starts[1:], files)[: len(starts)]
        return cls(starts, ends, specs, key_indices)

    @classmethod
    def concat(cls, runs: Iterable[FileRuns]) -> FileRuns:
        """Concatenate groups."""
        nothing = np.empty(0, dtype=np.int64)
        every = [cls(nothing, nothing, nothing, nothing), *runs]
        return cls(
            np.concatenate([each.starts for each in every]),
            np.concatenate([each.ends for each in every]),
            np.concatenate([each.spec_ids for each in every]),
            np.concatenate([each.key_indices for each in every]),
        )

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def counts(self) -> _Numbers:
        """The number of files of each group."""
        return self.ends - self.starts

    def sum_files(self, values: npt.NDArray[np.generic]) -> _Numbers:
        """Return the sum of a value over the files of each group."""
        sums = np.append(0, np.cumsum(values, dtype=np.int64))
        found: _Numbers = sums[self.ends] - sums[self.starts]
        return found

    def take(self, which: _Flags | _Numbers) -> FileRuns:
        """Return some of the groups, in that order."""
        return FileRuns(
            self.starts[which], self.ends[which], self.spec_ids[which], self.key_indices[which]
        )

    def with_bounds(self, starts: _Numbers, ends: _Numbers) -> FileRuns:
        """Return the same groups with other starts and ends."""
        return FileRuns(starts, ends, self.spec_ids, self.key_indices)

    def shift(self, files: int) -> FileRuns:
        """Return the same groups, shifted by a number of files."""
        return self.with_bounds(self.starts + files, self.ends + files)


@dataclass(frozen=True, slots=True)
class PackedSpec:
    """The candidates under one spec, sorted by key, position and path, with their groups."""

    spec_id: int
    total: int
    matching: int
    fail_open: int
    keys: pa.Table
    files: pa.Table
    has_many_deletes: _Flags
    groups: FileRuns


def pack_files(
    spec_id: int,
    entries: pa.Table,
    options: RewriteOptions,
    filter: MultiSpecPartitionFilter | None,
) -> PackedSpec:
    """Find the candidates of one spec and pack them in groups of one key and a bounded size."""
    count = entries.num_rows
    fields = entries.column_names[: -len(FILE_COLUMNS)]
    partitions = group_rows(entries.select(fields), count)
    heavy = _has_many_deletes(entries, options)
    chosen = (
        np.full(count, True) if options.rewrite_all else heavy | _has_wrong_size(entries, options)
    )
    matching, fail_open = count, 0
    if filter is not None:
        verdicts = filter.decide(spec_id, partitions.keys, partitions.count)
        kept = verdicts.kept[partitions.codes]
        matching = int(np.count_nonzero(kept))
        chosen &= kept
        fail_open = int(np.count_nonzero(verdicts.fail_open[partitions.codes] & chosen))
    indices = np.flatnonzero(chosen)
    keys, ranks = _sort_keys(partitions.keys, partitions.count)
    codes = ranks[partitions.codes[indices]]
    order = _sort_files(codes, entries, indices)
    codes, indices = codes[order], indices[order]
    files = entries.select(list(FILE_COLUMNS)).take(pa.array(indices))
    groups = _pack_bins(
        spec_id, codes, read_numbers(files, FILE_BYTES), options.max_file_group_size_bytes
    )
    return PackedSpec(
        spec_id=spec_id,
        total=count,
        matching=matching,
        fail_open=fail_open,
        keys=keys,
        files=files,
        has_many_deletes=heavy[indices],
        groups=groups,
    )


@dataclass(frozen=True, slots=True)
class Candidates:
    """The candidates under all specs, spec by spec."""

    files: pa.Table
    has_many_deletes: _Flags
    groups: FileRuns

    @property
    def sizes(self) -> _Numbers:
        """The bytes of each file."""
        return read_numbers(self.files, FILE_BYTES)


def combine_specs(specs: Sequence[PackedSpec]) -> Candidates:
    """Combine the candidates of all specs."""
    none = pa.schema(FILE_COLUMNS.items()).empty_table()
    files = pa.concat_tables([none, *(each.files for each in specs)]).combine_chunks()
    behind = np.cumsum([0, *(len(each.has_many_deletes) for each in specs)])
    return Candidates(
        files,
        np.concatenate([np.empty(0, dtype=bool), *(each.has_many_deletes for each in specs)]),
        FileRuns.concat(
            each.groups.shift(start) for each, start in zip(specs, behind, strict=False)
        ),
    )


def _has_wrong_size(entries: pa.Table, options: RewriteOptions) -> _Flags:
    """Return for each file whether it is too small or too large."""
    sizes = read_numbers(entries, FILE_BYTES)
    found: _Flags = (sizes < options.min_file_size) | (sizes > options.max_file_size)
    return found


def _has_many_deletes(entries: pa.Table, options: RewriteOptions) -> _Flags:
    """Return for each file whether its delete files or deleted rows exceed a threshold."""
    files, deleted = count_deletes(entries)
    rows = read_numbers(entries, FILE_ROWS)
    ratio = np.minimum(deleted, rows) / np.maximum(rows, 1)
    found: _Flags = (files > 0) & (ratio >= options.delete_ratio_threshold)
    if options.delete_file_threshold is not None:
        found |= files >= options.delete_file_threshold
    return found


def _sort_keys(keys: pa.Table, count: int) -> tuple[pa.Table, _Numbers]:
    """Return the sorted keys, and the sorted position of each original key."""
    if not keys.num_columns:
        return keys, np.arange(count)
    order = sort_indices(keys)
    ranks = np.empty(count, dtype=np.int64)
    ranks[order.to_numpy()] = np.arange(count)
    return keys.take(order), ranks


def _sort_files(codes: _Numbers, entries: pa.Table, indices: _Numbers) -> _Numbers:
    """Sort files by key, position and path; compare paths only for ties."""
    file_positions = read_numbers(entries, FILE_POSITION)[indices]
    order = np.lexsort((file_positions, codes))
    same = (np.diff(codes[order]) == 0) & (np.diff(file_positions[order]) == 0)
    tied = np.flatnonzero(np.append(same, False) | np.insert(same, 0, False))
    if len(tied):
        rows = order[tied]
        names = ["key", "position", "path"]
        paths = entries.column(FILE_PATH).take(pa.array(indices[rows]))
        columns = [codes[rows], file_positions[rows], paths]
        by_path = pc.sort_indices(
            pa.table(columns, names=names), sort_keys=[(name, "ascending") for name in names]
        )
        order[tied] = rows[by_path.to_numpy()]
    return order


def _pack_bins(spec_id: int, codes: _Numbers, sizes: _Numbers, most: int) -> FileRuns:
    """Start a group for every key, and a new one where the next file would exceed `most` bytes.

    The loop finds the next group of all large keys at once.
    """
    firsts = np.flatnonzero(np.diff(codes, prepend=-1))
    whole = FileRuns.of(spec_id, firsts, codes[firsts], len(codes))
    large = whole.take(whole.sum_files(sizes) > most)
    filled = np.cumsum(sizes)
    starts, at, ends = [firsts], large.starts, large.ends
    while len(at):
        fitting = np.searchsorted(filled, filled[at] - sizes[at] + most, side="right")
        at = np.maximum(fitting, at + 1)
        inside = at < ends
        at, ends = at[inside], ends[inside]
        starts.append(at)
    every = np.sort(np.concatenate(starts))
    return FileRuns.of(spec_id, every, codes[every], len(codes))
