"""What is not well with a table: findings, each with the command that fixes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args, overload

from phalanx.model.specs.partition_key import PartitionKey, json_value
from phalanx.planning.pruning.scan_plan import counted

Kind: TypeAlias = Literal[
    "missing-partitions",
    "missing-files",
    "missing-history",
    "foreign-writes",
    "doubled-partitions",
    "compaction",
    "deleted-rows",
    "unindexed-rows",
    "skew",
    "tiny-partitions",
    "huge-partitions",
    "old-spec",
    "empty-spec",
    "orphans",
    "leftovers",
]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class PartitionSize:
    """A partition, and how large it is; its values go by the ids of its fields."""

    key: PartitionKey
    fields: tuple[str, ...]
    files: int
    rows: int
    deleted_rows: int
    bytes: int

    def to_dict(self) -> dict[str, Any]:
        """The partition as JSON has it."""
        return {
            "spec_id": self.key.spec_id,
            "values": {name: json_value(value) for name, value in self._named()},
            "files": self.files,
            "rows": self.rows,
            "deleted_rows": self.deleted_rows,
            "bytes": self.bytes,
        }

    def __str__(self) -> str:
        values = (
            f"{name}={'NULL' if value is None else json_value(value)}"
            for name, value in self._named()
        )
        return " ".join([f"v{self.key.spec_id}", *values])

    def _named(self) -> Iterator[tuple[str, Any]]:
        return zip(self.fields, self.key.values, strict=True)


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that should be done: a sentence about it, and how, in a shell and in Python.

    `partitions` are those it is about, the worst first, and no more than a few; `figures` has the
    number of all. `spec_id` is the spec it is about, if it is about one. The commands leave out
    the storage options, which may be secret; in Python the table is called `table`.
    """

    kind: Kind
    message: str
    command: str
    python: str
    figures: Mapping[str, int]
    partitions: tuple[PartitionSize, ...] = ()
    spec_id: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """The finding as JSON has it."""
        return {
            "kind": self.kind,
            "message": self.message,
            "command": self.command,
            "python": self.python,
            "spec_id": self.spec_id,
            "figures": dict(self.figures),
            "partitions": [each.to_dict() for each in self.partitions],
        }

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}\n  {self.command}"


@dataclass(frozen=True, slots=True)
class Health(Sequence[Finding]):
    """The findings about a table, by kind; so many `more` are not told."""

    findings: tuple[Finding, ...] = ()
    more: int = 0

    @overload
    def __getitem__(self, place: int) -> Finding: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Finding, ...]: ...
    def __getitem__(self, place: int | slice) -> Finding | tuple[Finding, ...]:
        return self.findings[place]

    def __len__(self) -> int:
        return len(self.findings)

    def to_dict(self) -> dict[str, Any]:
        """The findings as JSON has them."""
        return {"findings": [each.to_dict() for each in self.findings], "more_findings": self.more}

    def __str__(self) -> str:
        if not self.findings:
            return "healthy: nothing to do"
        lines = [str(each) for each in self.findings]
        return "\n".join(lines + [f"and {counted(self.more, 'finding')} more"] * bool(self.more))
