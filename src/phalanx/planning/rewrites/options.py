"""What may be chosen about a rewrite: the names and defaults are Iceberg's, in snake case."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, TypeAlias, get_args

from phalanx.errors import PhalanxError, shown
from phalanx.model.schema.names import close_names

JobOrder: TypeAlias = Literal["none", "bytes-asc", "bytes-desc", "files-asc", "files-desc"]
JOB_ORDERS: tuple[JobOrder, ...] = get_args(JobOrder)

_SMALLEST = 0.75
_LARGEST = 1.8


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteOptions:
    """Which files are rewritten, and together with which others.

    | | |
    |---|---|
    | `partition_filter` | SQL on the table's rows: only partitions that may hold a match |
    | `case_sensitive` | names in the filter are columns only as they are spelled |
    | `strict` | refuse to plan where the filter cannot be evaluated, instead of including |
    | `target_file_size_bytes` | how large new files should be |
    | `min_file_size_bytes` | files below are rewritten; 0.75 of the target by default |
    | `max_file_size_bytes` | files above are rewritten; 1.8 of the target by default |
    | `min_input_files` | so many files are worth a rewrite, whatever their size |
    | `delete_file_threshold` | so many delete files are a reason to rewrite; None: no number is |
    | `delete_ratio_threshold` | so large a part of deleted rows is a reason to rewrite |
    | `max_file_group_size_bytes` | what is rewritten at once |
    | `rewrite_job_order` | which groups come first |
    | `rewrite_all` | every file is rewritten, whatever its size |
    | `max_files_to_rewrite` | no more files than these, those of the first groups |
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
                raise _refused(name, value, "True or False")
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is None and name in _OPTIONAL:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise _refused(name, value, f"a whole number from {least} on")
        ratio = self.delete_ratio_threshold
        if not isinstance(ratio, int | float) or math.isnan(ratio) or not 0 < ratio <= 1:
            raise _refused("delete_ratio_threshold", ratio, "a number above 0, at most 1")
        if self.rewrite_job_order not in JOB_ORDERS:
            expected = f"one of {', '.join(JOB_ORDERS)}"
            raise _refused("rewrite_job_order", self.rewrite_job_order, expected)
        target = self.target_file_size_bytes
        if self.smallest >= target:
            less = f"less than target_file_size_bytes, {target}, or every new file is too small"
            raise _refused("min_file_size_bytes", self.smallest, less)
        if self.largest <= target:
            more = f"more than target_file_size_bytes, {target}, or every new file is too large"
            raise _refused("max_file_size_bytes", self.largest, more)

    @property
    def smallest(self) -> int:
        """A file below this many bytes is too small."""
        given = self.min_file_size_bytes
        return int(self.target_file_size_bytes * _SMALLEST) if given is None else given

    @property
    def largest(self) -> int:
        """A file above this many bytes is too large."""
        given = self.max_file_size_bytes
        return int(self.target_file_size_bytes * _LARGEST) if given is None else given

    def to_dict(self) -> dict[str, Any]:
        """The options as JSON has them, with the sizes that follow from the target."""
        return asdict(self) | {
            "min_file_size_bytes": self.smallest,
            "max_file_size_bytes": self.largest,
        }


def rewrite_options(
    where: str | None, given: Mapping[str, Any], others: Sequence[str] = ()
) -> RewriteOptions:
    """The options by their names, of which no others are known; `others` are the caller's own."""
    known = RewriteOptions.__dataclass_fields__
    for name in given:
        if name not in known:
            all_names = sorted([*known, *others])
            close = close_names(name, all_names)
            hint = f"Did you mean {close[0]!r}?" if close else f"Expected {', '.join(all_names)}."
            raise PhalanxError(
                f"Cannot rewrite with {name}={given[name]!r}: there is no such option. {hint}"
            )
    if where is not None and given.get("partition_filter") is not None:
        raise PhalanxError("Cannot rewrite with both where and partition_filter: they are one.")
    return RewriteOptions(**{"partition_filter": where, **given})


# The least that a number may be.
_LEAST = {
    "target_file_size_bytes": 1,
    "min_file_size_bytes": 0,
    "max_file_size_bytes": 0,
    "min_input_files": 1,
    "delete_file_threshold": 0,
    "max_file_group_size_bytes": 1,
    "max_files_to_rewrite": 1,
}
_OPTIONAL = {field.name for field in fields(RewriteOptions) if field.default is None}


def _refused(name: str, value: object, expected: str) -> PhalanxError:
    return PhalanxError(f"Cannot rewrite with {name}={shown(value)}: expected {expected}.")
