"""Which groups are worth a rewrite, in which order, and what is left out for which reason."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from phalanx.planning.rewrites.groups import Candidates, Runs
from phalanx.planning.rewrites.options import RewriteOptions

Flags = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Selection:
    """The groups to rewrite, in order, and the groups or parts of groups that are left out.

    Ids go by the order of the keys, whatever the order of the groups.
    """

    chosen: Runs
    ids: Numbers
    left: Runs
    reasons: tuple[str, ...]


def selected(candidates: Candidates, options: RewriteOptions) -> Selection:
    """The groups worth a rewrite, in the order of the options, up to their limit of files."""
    worth = _are_worth_it(candidates, candidates.groups, options)
    groups = candidates.groups.take(worth)
    order = _ordered(groups, candidates.sizes, options)
    groups, ids = groups.take(order), order + 1
    taken = _taken(candidates, groups, options)
    some = taken > 0
    small = candidates.groups.take(~worth)
    beyond = groups.between(groups.starts + taken, groups.ends).take(taken < groups.counts)
    left = Runs.chained([small, beyond])
    by_key = np.argsort(left.starts)
    reasons = [*_too_little(small, options), *[_over_the_limit(options)] * len(beyond)]
    return Selection(
        groups.between(groups.starts, groups.starts + taken).take(some),
        ids[some],
        left.take(by_key),
        tuple(reasons[place] for place in by_key.tolist()),
    )


def _are_worth_it(candidates: Candidates, groups: Runs, options: RewriteOptions) -> Flags:
    """Many files, or bytes enough for new files, or a file with many deletes, be it alone."""
    if options.rewrite_all:
        return np.full(len(groups), True)
    counts, sizes = groups.counts, groups.totals(candidates.sizes)
    found: Flags = (
        ((counts > 1) & (counts >= options.min_input_files))
        | ((counts > 1) & (sizes > options.target_file_size_bytes))
        | (sizes > options.largest)
        | (groups.totals(candidates.heavy) > 0)
    )
    return found


def _ordered(groups: Runs, sizes: Numbers, options: RewriteOptions) -> Numbers:
    """The places of the groups in the order in which they are rewritten; equal ones by key."""
    match options.rewrite_job_order:
        case "none":
            return np.arange(len(groups))
        case "bytes-asc":
            by = groups.totals(sizes)
        case "bytes-desc":
            by = -groups.totals(sizes)
        case "files-asc":
            by = groups.counts
        case "files-desc":
            by = -groups.counts
    return np.argsort(by, kind="stable")


def _taken(candidates: Candidates, groups: Runs, options: RewriteOptions) -> Numbers:
    """How many files of each group are rewritten before the limit is reached.

    The group at the limit is cut, unless what is left of it is one file that gains nothing alone.
    """
    limit, counts = options.max_files_to_rewrite, groups.counts
    if limit is None:
        return counts
    taken: Numbers = np.clip(limit - np.cumsum(counts) + counts, 0, counts)
    lone = (taken == 1) & (counts > 1)
    cut = groups.between(groups.starts, groups.starts + taken)
    taken[lone & ~_are_worth_it(candidates, cut, options)] = 0
    return taken


def _too_little(groups: Runs, options: RewriteOptions) -> list[str]:
    alone = f"alone, and not above max_file_size_bytes={options.largest}"
    few = (
        f"fewer files than min_input_files={options.min_input_files}, and not above "
        f"target_file_size_bytes={options.target_file_size_bytes}"
    )
    return [alone if count == 1 else few for count in groups.counts.tolist()]


def _over_the_limit(options: RewriteOptions) -> str:
    return f"max_files_to_rewrite={options.max_files_to_rewrite} is reached"
