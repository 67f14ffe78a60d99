"""From the files of one spec to groups of them: whole columns at a time, no loop over files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from phalanx.model.schema.grouping import group, order_of
from phalanx.planning.rewrites.entries import (
    BYTES,
    FILE_COLUMNS,
    PATH,
    POSITION,
    ROWS,
    delete_counts,
    numbers,
)
from phalanx.planning.rewrites.filter import MultiSpecPartitionFilter
from phalanx.planning.rewrites.options import RewriteOptions

Flags = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Runs:
    """Groups of files that follow each other: where each begins and ends, and its key.

    A key is a spec, and a place among the keys of that spec.
    """

    starts: Numbers
    ends: Numbers
    specs: Numbers
    places: Numbers

    @classmethod
    def of(cls, spec_id: int, starts: Numbers, places: Numbers, files: int) -> Runs:
        """Groups that begin at these files and have these keys."""
        specs = np.full(len(starts), spec_id, dtype=np.int64)
        ends = np.append(starts[1:], files)[: len(starts)]
        return cls(starts, ends, specs, places)

    @classmethod
    def chained(cls, runs: Iterable[Runs]) -> Runs:
        """All groups, in turn."""
        nothing = np.empty(0, dtype=np.int64)
        every = [cls(nothing, nothing, nothing, nothing), *runs]
        return cls(
            np.concatenate([each.starts for each in every]),
            np.concatenate([each.ends for each in every]),
            np.concatenate([each.specs for each in every]),
            np.concatenate([each.places for each in every]),
        )

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def counts(self) -> Numbers:
        """How many files each has."""
        return self.ends - self.starts

    def totals(self, values: npt.NDArray[np.generic]) -> Numbers:
        """The sum over each group's files."""
        sums = np.append(0, np.cumsum(values, dtype=np.int64))
        found: Numbers = sums[self.ends] - sums[self.starts]
        return found

    def take(self, which: Flags | Numbers) -> Runs:
        """Some of the groups, in that order."""
        return Runs(self.starts[which], self.ends[which], self.specs[which], self.places[which])

    def between(self, starts: Numbers, ends: Numbers) -> Runs:
        """The same groups with other files."""
        return Runs(starts, ends, self.specs, self.places)

    def behind(self, files: int) -> Runs:
        """The same groups, behind so many other files."""
        return self.between(self.starts + files, self.ends + files)


@dataclass(frozen=True, slots=True)
class Packed:
    """The candidates under one spec, in the order of their keys, positions and paths.

    `heavy` marks those with many deletes.
    """

    spec_id: int
    total: int
    matching: int
    fail_open: int
    keys: pa.Table
    files: pa.Table
    heavy: Flags
    groups: Runs


def packed(
    spec_id: int,
    entries: pa.Table,
    options: RewriteOptions,
    filter: MultiSpecPartitionFilter | None,
) -> Packed:
    """The files of one spec that want a rewrite, in groups of one key and a bounded size."""
    count = entries.num_rows
    fields = entries.column_names[: -len(FILE_COLUMNS)]
    partitions = group(entries.select(fields), count)
    heavy = _has_many_deletes(entries, options)
    chosen = np.full(count, True) if options.rewrite_all else heavy | _is_misfit(entries, options)
    matching, fail_open = count, 0
    if filter is not None:
        verdicts = filter.decide(spec_id, partitions.keys, partitions.count)
        kept = verdicts.kept[partitions.codes]
        matching = int(np.count_nonzero(kept))
        chosen &= kept
        fail_open = int(np.count_nonzero(verdicts.fail_open[partitions.codes] & chosen))
    places = np.flatnonzero(chosen)
    keys, ranks = _sorted_keys(partitions.keys, partitions.count)
    codes = ranks[partitions.codes[places]]
    order = _order(codes, entries, places)
    codes, places = codes[order], places[order]
    files = entries.select(list(FILE_COLUMNS)).take(pa.array(places))
    groups = _bins(spec_id, codes, numbers(files, BYTES), options.max_file_group_size_bytes)
    return Packed(
        spec_id=spec_id,
        total=count,
        matching=matching,
        fail_open=fail_open,
        keys=keys,
        files=files,
        heavy=heavy[places],
        groups=groups,
    )


@dataclass(frozen=True, slots=True)
class Candidates:
    """The candidates under all specs, one spec after the other."""

    files: pa.Table
    heavy: Flags
    groups: Runs

    @property
    def sizes(self) -> Numbers:
        """The bytes of each file."""
        return numbers(self.files, BYTES)


def joined(specs: Sequence[Packed]) -> Candidates:
    """The candidates of all specs."""
    none = pa.schema(FILE_COLUMNS.items()).empty_table()
    files = pa.concat_tables([none, *(each.files for each in specs)]).combine_chunks()
    behind = np.cumsum([0, *(len(each.heavy) for each in specs)])
    return Candidates(
        files,
        np.concatenate([np.empty(0, dtype=bool), *(each.heavy for each in specs)]),
        Runs.chained(each.groups.behind(start) for each, start in zip(specs, behind, strict=False)),
    )


def _is_misfit(entries: pa.Table, options: RewriteOptions) -> Flags:
    """The files that are too small or too large."""
    sizes = numbers(entries, BYTES)
    found: Flags = (sizes < options.smallest) | (sizes > options.largest)
    return found


def _has_many_deletes(entries: pa.Table, options: RewriteOptions) -> Flags:
    """The files with so many delete files, or so many deleted rows, that they want a rewrite."""
    files, deleted = delete_counts(entries)
    rows = numbers(entries, ROWS)
    ratio = np.minimum(deleted, rows) / np.maximum(rows, 1)
    found: Flags = (files > 0) & (ratio >= options.delete_ratio_threshold)
    if options.delete_file_threshold is not None:
        found |= files >= options.delete_file_threshold
    return found


def _sorted_keys(keys: pa.Table, count: int) -> tuple[pa.Table, Numbers]:
    """The keys in order, and the place there of each key as it was."""
    if not keys.num_columns:
        return keys, np.arange(count)
    order = order_of(keys)
    ranks = np.empty(count, dtype=np.int64)
    ranks[order.to_numpy()] = np.arange(count)
    return keys.take(order), ranks


def _order(codes: Numbers, entries: pa.Table, places: Numbers) -> Numbers:
    """The files at these places by key, position and path; most are told apart without paths."""
    file_positions = numbers(entries, POSITION)[places]
    order = np.lexsort((file_positions, codes))
    same = (np.diff(codes[order]) == 0) & (np.diff(file_positions[order]) == 0)
    tied = np.flatnonzero(np.append(same, False) | np.insert(same, 0, False))
    if len(tied):
        rows = order[tied]
        names = ["key", "position", "path"]
        paths = entries.column(PATH).take(pa.array(places[rows]))
        columns = [codes[rows], file_positions[rows], paths]
        by_path = pc.sort_indices(
            pa.table(columns, names=names), sort_keys=[(name, "ascending") for name in names]
        )
        order[tied] = rows[by_path.to_numpy()]
    return order


def _bins(spec_id: int, codes: Numbers, sizes: Numbers, most: int) -> Runs:
    """A group for every key, and a new one wherever the next file would be too much.

    All keys that are too large take a step at a time, from one group to the next.
    """
    firsts = np.flatnonzero(np.diff(codes, prepend=-1))
    whole = Runs.of(spec_id, firsts, codes[firsts], len(codes))
    large = whole.take(whole.totals(sizes) > most)
    filled = np.cumsum(sizes)
    starts, at, ends = [firsts], large.starts, large.ends
    while len(at):
        fitting = np.searchsorted(filled, filled[at] - sizes[at] + most, side="right")
        at = np.maximum(fitting, at + 1)
        inside = at < ends
        at, ends = at[inside], ends[inside]
        starts.append(at)
    every = np.sort(np.concatenate(starts))
    return Runs.of(spec_id, every, codes[every], len(codes))
