"""The options of a rewrite, with Iceberg's names in snake case and its defaults."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, get_args

from phalanx.arguments import JobOrder
from phalanx.errors import InvalidArgument, PhalanxError, format_value
from phalanx.model.schema.names import find_close_names

JOB_ORDERS: tuple[JobOrder, ...] = get_args(JobOrder)

_MIN_SIZE_RATIO = 0.75
_MAX_SIZE_RATIO = 1.8


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteOptions:
    """The options that choose and group the files to rewrite.

    | | |
    |---|---|
    | `partition_filter` | SQL on the table's rows: rewrite only partitions that may match |
    | `case_sensitive` | match column names in the filter case-sensitively |
    | `strict` | raise if the filter cannot be evaluated for a partition, instead of including it |
    | `target_file_size_bytes` | the size of new files |
    | `min_file_size_bytes` | rewrite smaller files; default: 0.75 of the target |
    | `max_file_size_bytes` | rewrite larger files; default: 1.8 of the target |
    | `min_input_files` | rewrite a group of this many files, regardless of their size |
    | `delete_file_threshold` | rewrite files with this many delete files; None: never |
    | `delete_ratio_threshold` | rewrite files with this ratio of deleted rows |
    | `max_file_group_size_bytes` | the maximum size of a group |
    | `rewrite_job_order` | the order of the groups |
    | `rewrite_all` | rewrite every file, regardless of its size |
    | `max_files_to_rewrite` | stop after this many files, in the order of the groups |
    """

    partition_filter: str | None = None
    case_sensitive: bool = False
    strict: bool = False
    target_file_size_bytes: int = 512 << 20
    min_file_size_bytes: int | None = None
    max_file_size_bytes: int | None = None
    min_input_files: int = 5
    delete_file_threshold: int | None = None
    delete_ratio_threshold: float = 0.3
    max_file_group_size_bytes: int = 100 << 30
    rewrite_job_order: JobOrder = "none"
    rewrite_all: bool = False
    max_files_to_rewrite: int | None = None

    def __post_init__(self) -> None:
        for name in ("case_sensitive", "strict", "rewrite_all"):
            if not isinstance(value := getattr(self, name), bool):
                raise _option_error(name, value, "True or False")
        for name, least in _MINIMUMS.items():
            value = getattr(self, name)
            if value is None and name in _OPTIONAL:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise _option_error(
                    name, value, "a positive integer" if least else "an integer of at least 0"
                )
        ratio = self.delete_ratio_threshold
        if not isinstance(ratio, int | float) or math.isnan(ratio) or not 0 < ratio <= 1:
            raise _option_error("delete_ratio_threshold", ratio, "a number above 0, at most 1")
        if self.rewrite_job_order not in JOB_ORDERS:
            expected = f"one of {', '.join(JOB_ORDERS)}"
            raise _option_error("rewrite_job_order", self.rewrite_job_order, expected)
        target = self.target_file_size_bytes
        if self.min_file_size >= target:
            less = f"less than target_file_size_bytes, {target}, or every new file is too small"
            raise _option_error("min_file_size_bytes", self.min_file_size, less)
        if self.max_file_size <= target:
            more = f"more than target_file_size_bytes, {target}, or every new file is too large"
            raise _option_error("max_file_size_bytes", self.max_file_size, more)

    @property
    def min_file_size(self) -> int:
        """The effective `min_file_size_bytes`."""
        given = self.min_file_size_bytes
        return int(self.target_file_size_bytes * _MIN_SIZE_RATIO) if given is None else given

    @property
    def max_file_size(self) -> int:
        """The effective `max_file_size_bytes`."""
        given = self.max_file_size_bytes
        return int(self.target_file_size_bytes * _MAX_SIZE_RATIO) if given is None else given

    def to_dict(self) -> dict[str, Any]:
        """Return the options for JSON, with the effective sizes."""
        return asdict(self) | {
            "min_file_size_bytes": self.min_file_size,
            "max_file_size_bytes": self.max_file_size,
        }


def build_rewrite_options(
    where: str | None, given: Mapping[str, Any], others: Sequence[str] = ()
) -> RewriteOptions:
    """Build the options; unknown names are errors, which also list the caller's `others`."""
    known = RewriteOptions.__dataclass_fields__
    for name in given:
        if name not in known:
            all_names = sorted([*known, *others])
            close = find_close_names(name, all_names)
            hint = f"Did you mean {close[0]!r}?" if close else f"Expected {', '.join(all_names)}."
            raise InvalidArgument(
                f"Cannot rewrite with {name}={given[name]!r}: there is no such option. {hint}"
            )
    if where is not None and given.get("partition_filter") is not None:
        raise InvalidArgument(
            "Cannot rewrite with both where and partition_filter: they mean the same. Give one."
        )
    return RewriteOptions(**{"partition_filter": where, **given})


# The minimum of each numeric option.
_MINIMUMS = {
    "target_file_size_bytes": 1,
    "min_file_size_bytes": 0,
    "max_file_size_bytes": 0,
    "min_input_files": 1,
    "delete_file_threshold": 0,
    "max_file_group_size_bytes": 1,
    "max_files_to_rewrite": 1,
}
_OPTIONAL = {field.name for field in fields(RewriteOptions) if field.default is None}


def _option_error(name: str, value: object, expected: str) -> PhalanxError:
    return InvalidArgument(
        f"Cannot rewrite with {name}={format_value(value)}: expected {expected}."
    )
