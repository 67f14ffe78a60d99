"""The plan of an import: what of another system becomes what here, and how much there is to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from phalanx.model.specs.partition_by import PartitionTerm
from phalanx.planning.pruning.scan_plan import counted, readable

EXACT, CHANGED, REFUSED = "exact", "changed", "refused"
_SHOWN_FIELDS = 200


class ImportUnit(Protocol):
    """A piece of a source that is imported as a whole; it must be picklable.

    A file with its deletes, a fragment of a Lance table, a leaf.
    """

    @property
    def id(self) -> str:
        """What no other unit of the source has, now and later, unless it holds the same rows."""

    @property
    def rows(self) -> int:
        """How many rows it gives, deleted ones left out."""

    @property
    def bytes(self) -> int:
        """About how much has to be read."""

    def check(self) -> None:
        """Refuse a unit that cannot be read, because a file of it is gone or broken."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, wherever it is called."""


@dataclass(frozen=True, slots=True)
class FieldMapping:
    """What a partition field of the source becomes.

    It carries over exactly if each row keeps its partition value, and changes its meaning if rows
    are placed by another function of the same columns. `becomes` is None where it is refused.
    """

    source: str
    becomes: str | None
    kind: str
    why: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The mapping as JSON has it."""
        return {
            "source": self.source,
            "becomes": self.becomes,
            "kind": self.kind,
            "why": self.why or None,
        }

    def __str__(self) -> str:
        why = f": {self.why}" if self.why else ""
        match self.kind:
            case "exact":
                same = "" if self.becomes == self.source else f" as {self.becomes}"
                return f"{self.source} carries over{same}{why}"
            case "changed":
                return f"{self.source} becomes {self.becomes}{why}"
        return f"{self.source} is refused{why}"


@dataclass(frozen=True, slots=True)
class SpecMapping:
    """What a spec of the source becomes, field by field; only the newest decides here."""

    spec_id: int
    label: str
    is_newest: bool
    fields: tuple[FieldMapping, ...]

    def to_dict(self) -> dict[str, Any]:
        """The mapping as JSON has it."""
        return {
            "spec_id": self.spec_id,
            "partition_by": self.label,
            "is_newest": self.is_newest,
            "fields": [field.to_dict() for field in self.fields],
        }


@dataclass(frozen=True, slots=True)
class ColumnMapping:
    """What a column of the source is stored as; None where it is refused."""

    name: str
    source: str
    stored: str | None
    why: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The mapping as JSON has it."""
        return {
            "name": self.name,
            "source": self.source,
            "stored": self.stored,
            "why": self.why or None,
        }

    def __str__(self) -> str:
        why = f" ({self.why})" if self.why else ""
        if self.stored is None:
            return f"{self.name} {self.source} is refused{why}"
        if self.stored == self.source:
            return f"{self.name} {self.source}{why}"
        return f"{self.name} {self.source} is stored as {self.stored}{why}"


@dataclass(frozen=True, slots=True)
class Amount:
    """So many files, with rows and bytes; rows are None where nobody knows before they are read."""

    files: int
    rows: int | None
    bytes: int

    @classmethod
    def of(cls, units: Sequence[ImportUnit]) -> Amount:
        """All of the units."""
        rows = sum(unit.rows for unit in units)
        return cls(len(units), rows, sum(unit.bytes for unit in units))

    def to_dict(self) -> dict[str, Any]:
        """The amount as JSON has it."""
        return {"files": self.files, "rows": self.rows, "bytes": self.bytes}

    def __str__(self) -> str:
        rows = "rows unknown" if self.rows is None else counted(self.rows, "row")
        return f"{counted(self.files, 'file')}, {rows}, {readable(self.bytes)}"


@dataclass(frozen=True, slots=True)
class ImportPlan:
    """What an import brings from where to where: specs, columns, and how much in how many chunks.

    `state` says which state of the source it is. `chosen_by` says who decided `partition_by`: the
    source, the user, or the table that is there already. `left` is what `total` has that the table
    has not yet. An upgrade changes the table where it is, and brings nothing.
    """

    system: str
    source: str
    state: str | None
    uri: str
    is_new: bool
    partition_by: tuple[PartitionTerm, ...]
    label: str
    chosen_by: str
    specs: tuple[SpecMapping, ...]
    columns: tuple[ColumnMapping, ...]
    total: Amount
    left: Amount
    chunks: int
    is_upgrade: bool = False
    notes: tuple[str, ...] = ()

    @property
    def refused(self) -> tuple[str, ...]:
        """Why it cannot be done; nothing if it can."""
        found = [str(column) for column in self.columns if column.stored is None]
        if self.chosen_by == "source":
            found += [
                str(field)
                for spec in self.specs
                if spec.is_newest
                for field in spec.fields
                if field.kind == REFUSED
            ]
        return tuple(found)

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON has it."""
        return {
            "system": self.system,
            "source": self.source,
            "state": self.state,
            "uri": self.uri,
            "is_new": self.is_new,
            "is_upgrade": self.is_upgrade,
            "partition_by": self.label,
            "chosen_by": self.chosen_by,
            "specs": [spec.to_dict() for spec in self.specs],
            "columns": [column.to_dict() for column in self.columns],
            "refused": list(self.refused),
            "total": self.total.to_dict(),
            "left": self.left.to_dict(),
            "chunks": self.chunks,
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        state = "" if self.state is None else f", {self.state}"
        doing = "upgrade" if self.is_upgrade else "import"
        yield f"{doing} of {self.source} ({self.system}{state})"
        if not self.is_upgrade:
            there = "a new table" if self.is_new else "which is there"
            yield f"into {self.uri}, {there}"
        who = {"source": "as in the source", "user": "as asked for", "table": "as the table is"}
        yield f"partitioned by {self.label or 'nothing'}, {who[self.chosen_by]}"
        for spec in self.specs:
            yield from self._spec_lines(spec)
        kept = [column for column in self.columns if column.stored == column.source]
        plain = [column for column in kept if not column.why]
        yield f"columns: {counted(len(plain), 'column')} of {len(self.columns):,} as they are"
        told = [column for column in self.columns if column not in plain]
        for column in told[:_SHOWN_FIELDS]:
            yield f"  {column}"
        if (hidden := len(told) - _SHOWN_FIELDS) > 0:
            yield f"  and {counted(hidden, 'column')} more"
        yield f"brings {self.left} in {counted(self.chunks, 'chunk')}"
        if self.left != self.total:
            yield f"of {self.total}; the others are there already"
        yield from self.notes

    def _spec_lines(self, spec: SpecMapping) -> Iterator[str]:
        is_kept = spec.is_newest and self.chosen_by == "source"
        rest = "" if is_kept else ", whose rows are placed anew"
        yield f"spec v{spec.spec_id} by {spec.label or 'nothing'}{rest}"
        if is_kept:
            for field in spec.fields:
                yield f"  {field}"
