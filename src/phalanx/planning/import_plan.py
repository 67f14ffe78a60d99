"""The plan of an import: how specs and columns map, and how much data is left to import."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from phalanx.model.specs.partition_by import PartitionTerm
from phalanx.planning.formatting import format_bytes, format_count

EXACT, CHANGED, REFUSED = "exact", "changed", "refused"
_MAX_SHOWN_COLUMNS = 200


class ImportUnit(Protocol):
    """A part of a source that is imported as a whole. It must be picklable.

    For example a file with its deletes, a fragment of a Lance table, or a leaf.
    """

    @property
    def id(self) -> str:
        """An id that only units with the same rows share, also in later states of the source."""

    @property
    def rows(self) -> int:
        """The number of rows, without deleted ones."""

    @property
    def bytes(self) -> int:
        """The approximate number of bytes to read."""

    def check(self) -> None:
        """Raise an error if a file of the unit is missing or damaged."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows; callable in any process."""


@dataclass(frozen=True, slots=True)
class FieldMapping:
    """How a partition field of the source maps to the new table.

    Attributes:
        source: The field in the source, as text.
        becomes: The field in the table, as text; None if the field is refused.
        kind: "exact" if each row keeps its partition, "changed" if rows are partitioned by another
            function of the same columns, "refused" if the field has no equivalent.
        why: Why it is changed or refused.
    """

    source: str
    becomes: str | None
    kind: str
    why: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the mapping for JSON."""
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
    """How a spec of the source maps, field by field. Only the newest spec is used.

    Attributes:
        spec_id: The id of the spec in the source.
        label: The fields of the spec, as text.
        is_newest: Whether it is the newest spec.
        fields: How each field maps.
    """

    spec_id: int
    label: str
    is_newest: bool
    fields: tuple[FieldMapping, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the mapping for JSON."""
        return {
            "spec_id": self.spec_id,
            "partition_by": self.label,
            "is_newest": self.is_newest,
            "fields": [field.to_dict() for field in self.fields],
        }


@dataclass(frozen=True, slots=True)
class ColumnMapping:
    """How a column of the source is stored.

    Attributes:
        name: The name of the column.
        source: Its type in the source.
        stored: Its type in the table; None if the column is refused.
        why: Why the type differs, or the column is refused.
    """

    name: str
    source: str
    stored: str | None
    why: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the mapping for JSON."""
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
class ImportSize:
    """An amount of data.

    Attributes:
        files: The number of files.
        rows: The number of rows; None if it is unknown before reading.
        bytes: The size of the files.
    """

    files: int
    rows: int | None
    bytes: int

    @classmethod
    def of(cls, units: Sequence[ImportUnit]) -> ImportSize:
        """Return the size of all units together."""
        rows = sum(unit.rows for unit in units)
        return cls(len(units), rows, sum(unit.bytes for unit in units))

    def to_dict(self) -> dict[str, Any]:
        """Return the size for JSON."""
        return {"files": self.files, "rows": self.rows, "bytes": self.bytes}

    def __str__(self) -> str:
        rows = "rows unknown" if self.rows is None else format_count(self.rows, "row")
        return f"{format_count(self.files, 'file')}, {rows}, {format_bytes(self.bytes)}"


@dataclass(frozen=True, slots=True)
class ImportPlan:
    """The source and target of an import, the mappings, and the amount of data in chunks.

    Attributes:
        system: The kind of source, such as "iceberg".
        source: The source table.
        state: The state of the source that is read, such as a snapshot; None if it has none.
        uri: The path or URI of the table to write.
        is_new: Whether the import creates that table.
        partition_by: The partitioning of the table.
        label: The same as text.
        chosen_by: What `partition_by` comes from: "source", "user", or "table", the existing table.
        specs: How the specs of the source map.
        columns: How the columns of the source are stored.
        total: The size of the source.
        remaining: The part of `total` that the table does not have yet.
        chunks: The number of chunks in which the rest is committed.
        is_upgrade: Whether the table is upgraded in place, and nothing is imported.
        notes: What else is worth knowing, one sentence each.
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
    total: ImportSize
    remaining: ImportSize
    chunks: int
    is_upgrade: bool = False
    notes: tuple[str, ...] = ()

    @property
    def refusals(self) -> tuple[str, ...]:
        """The reasons why the import is impossible; empty if it is possible."""
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
        """Return the plan for JSON."""
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
            "refused": list(self.refusals),
            "total": self.total.to_dict(),
            "left": self.remaining.to_dict(),
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
            target = "a new table" if self.is_new else "an existing table"
            yield f"into {self.uri}, {target}"
        origins = {
            "source": "as in the source",
            "user": "as requested",
            "table": "as the table is",
        }
        yield f"partitioned by {self.label or 'nothing'}, {origins[self.chosen_by]}"
        for spec in self.specs:
            yield from self._spec_lines(spec)
        kept = [column for column in self.columns if column.stored == column.source]
        plain = [column for column in kept if not column.why]
        yield f"columns: {format_count(len(plain), 'column')} of {len(self.columns):,} unchanged"
        changed = [column for column in self.columns if column not in plain]
        for column in changed[:_MAX_SHOWN_COLUMNS]:
            yield f"  {column}"
        if (hidden := len(changed) - _MAX_SHOWN_COLUMNS) > 0:
            yield f"  and {format_count(hidden, 'column')} more"
        yield f"imports {self.remaining} in {format_count(self.chunks, 'chunk')}"
        if self.remaining != self.total:
            yield f"of {self.total}; the rest is already imported"
        yield from self.notes

    def _spec_lines(self, spec: SpecMapping) -> Iterator[str]:
        is_kept = spec.is_newest and self.chosen_by == "source"
        rest = "" if is_kept else ", whose rows are repartitioned"
        yield f"spec v{spec.spec_id} by {spec.label or 'nothing'}{rest}"
        if is_kept:
            for field in spec.fields:
                yield f"  {field}"
