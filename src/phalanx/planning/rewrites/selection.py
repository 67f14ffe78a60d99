"""Select the groups worth rewriting, in order, and explain which files are left out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from phalanx.planning.rewrites.groups import Candidates, FileRuns
from phalanx.planning.rewrites.options import RewriteOptions

_Flags = npt.NDArray[np.bool_]
_Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RewriteSelection:
    """The groups to rewrite, in order, and the groups or parts of groups that are left out.

    Ids follow the order of the keys, not the order of the groups.
    """

    chosen: FileRuns
    ids: _Numbers
    left: FileRuns
    reasons: tuple[str, ...]


def select_groups(candidates: Candidates, options: RewriteOptions) -> RewriteSelection:
    """Select the groups worth rewriting, in the order and up to the limit of the options."""
    worth = _are_worth_rewriting(candidates, candidates.groups, options)
    groups = candidates.groups.take(worth)
    order = _order_groups(groups, candidates.sizes, options)
    groups, ids = groups.take(order), order + 1
    taken = _count_taken_files(candidates, groups, options)
    some = taken > 0
    small = candidates.groups.take(~worth)
    beyond = groups.with_bounds(groups.starts + taken, groups.ends).take(taken < groups.counts)
    left = FileRuns.concat([small, beyond])
    by_key = np.argsort(left.starts)
    reasons = [*_explain_small_groups(small, options), *[_explain_limit(options)] * len(beyond)]
    return RewriteSelection(
        groups.with_bounds(groups.starts, groups.starts + taken).take(some),
        ids[some],
        left.take(by_key),
        tuple(reasons[index] for index in by_key.tolist()),
    )


def _are_worth_rewriting(
    candidates: Candidates, groups: FileRuns, options: RewriteOptions
) -> _Flags:
    """Return for each group whether it has enough files or bytes, or a file with many deletes."""
    if options.rewrite_all:
        return np.full(len(groups), True)
    counts, sizes = groups.counts, groups.sum_files(candidates.sizes)
    found: _Flags = (
        ((counts > 1) & (counts >= options.min_input_files))
        | ((counts > 1) & (sizes > options.target_file_size_bytes))
        | (sizes > options.max_file_size)
        | (groups.sum_files(candidates.has_many_deletes) > 0)
    )
    return found


def _order_groups(groups: FileRuns, sizes: _Numbers, options: RewriteOptions) -> _Numbers:
    """Return the indices of the groups in the order of the rewrite; ties are ordered by key."""
    match options.rewrite_job_order:
        case "none":
            return np.arange(len(groups))
        case "bytes-asc":
            by = groups.sum_files(sizes)
        case "bytes-desc":
            by = -groups.sum_files(sizes)
        case "files-asc":
            by = groups.counts
        case "files-desc":
            by = -groups.counts
    return np.argsort(by, kind="stable")


def _count_taken_files(
    candidates: Candidates, groups: FileRuns, options: RewriteOptions
) -> _Numbers:
    """Return how many files of each group are rewritten before the limit is reached.

    The group at the limit is cut, unless that leaves a single file not worth rewriting alone.
    """
    limit, counts = options.max_files_to_rewrite, groups.counts
    if limit is None:
        return counts
    taken: _Numbers = np.clip(limit - np.cumsum(counts) + counts, 0, counts)
    lone = (taken == 1) & (counts > 1)
    cut = groups.with_bounds(groups.starts, groups.starts + taken)
    taken[lone & ~_are_worth_rewriting(candidates, cut, options)] = 0
    return taken


def _explain_small_groups(groups: FileRuns, options: RewriteOptions) -> list[str]:
    alone = f"alone, and not above max_file_size_bytes={options.max_file_size}"
    few = (
        f"fewer files than min_input_files={options.min_input_files}, and not above "
        f"target_file_size_bytes={options.target_file_size_bytes}"
    )
    return [alone if count == 1 else few for count in groups.counts.tolist()]


def _explain_limit(options: RewriteOptions) -> str:
    return f"max_files_to_rewrite={options.max_files_to_rewrite} is reached"
