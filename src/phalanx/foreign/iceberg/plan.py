"""The plan of a scan of an Iceberg table: the files to read, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from phalanx.foreign.iceberg.deletes import IcebergDelete, IcebergDeletes
from phalanx.foreign.iceberg.manifests import FORMAT, SEQUENCE
from phalanx.model.specs.partition_key import PartitionKey, to_json_value, to_python_values
from phalanx.model.specs.spec import PartitionSpec
from phalanx.planning.formatting import format_bytes, format_count
from phalanx.planning.pruning.projection import SpecProjection
from phalanx.planning.rewrites.entries import FILE_BYTES, FILE_PATH, FILE_ROWS, read_numbers
from phalanx.planning.rewrites.filter import Diagnostic, FilterStats

_MAX_SHOWN_FILES = 20


@dataclass(frozen=True, slots=True)
class IcebergFile:
    """A data file to read.

    Attributes:
        path: The path of the file.
        bytes: The size of the file.
        rows: The number of rows in it, including deleted ones.
        key: The spec and the partition values.
        format: The format of the file.
        sequence_number: The number that orders the file and the deletes that apply to it.
        deletes: The delete files that apply to it.
    """

    path: str
    bytes: int
    rows: int
    key: PartitionKey
    format: str
    sequence_number: int
    deletes: tuple[IcebergDelete, ...]

    @property
    def spec_id(self) -> int:
        """The spec that the file was written under."""
        return self.key.spec_id

    @property
    def values(self) -> tuple[Any, ...]:
        """The partition values, one for each field of its spec."""
        return self.key.values


@dataclass(frozen=True, eq=False)
class IcebergPlan:
    """The files to read, by spec, ordered by sequence number and path.

    Files are pruned by partition values only, not by column statistics.

    Internal: `projections`, `kept` and `deletes`.

    Attributes:
        table: The name of the table.
        snapshot_id: The id of the snapshot; None if the table has none.
        where: The predicate as text; None: all rows.
        specs: The partition specs by id.
        labels: The fields of each spec as text, by spec id.
        total_files: The number of all files, by spec id.
        manifests_read: The number of manifests read.
        manifests_skipped: The number of manifests that hold no matching file.
        stats: How much of the filter could not be evaluated.
        diagnostics: Why partitions are kept without a decision of the filter, one for each cause.
    """

    table: str
    snapshot_id: int | None
    where: str | None
    specs: Mapping[int, PartitionSpec]
    labels: Mapping[int, str]
    projections: Mapping[int, SpecProjection]
    kept: Mapping[int, pa.Table]
    deletes: IcebergDeletes
    total_files: Mapping[int, int]
    manifests_read: int
    manifests_skipped: int
    stats: FilterStats
    diagnostics: tuple[Diagnostic, ...]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, IcebergPlan):
            return NotImplemented
        return self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]

    @cached_property
    def files(self) -> tuple[IcebergFile, ...]:
        """The files that may hold matching rows."""
        return tuple(self._files())

    def _files(self) -> Iterator[IcebergFile]:
        for spec_id, table in self.kept.items():
            deletes = self.deletes.list_by_file(spec_id, table.num_rows)
            fields = [field.field_id for field in self.specs[spec_id].fields]
            names = (FILE_PATH, FILE_BYTES, FILE_ROWS, FORMAT, SEQUENCE)
            columns = [to_python_values(table.column(name)) for name in (*names, *fields)]
            for found, row in zip(deletes, zip(*columns, strict=True), strict=True):
                path, size, rows, form, sequence, *values = row
                key = PartitionKey(spec_id, tuple(values))
                yield IcebergFile(path, size, rows, key, form, sequence, found)

    @property
    def planned_files(self) -> int:
        """The number of files to read."""
        return sum(table.num_rows for table in self.kept.values())

    @property
    def bytes(self) -> int:
        """The total size of the files to read."""
        return sum(int(read_numbers(table, FILE_BYTES).sum()) for table in self.kept.values())

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        return {
            "table": self.table,
            "snapshot_id": None if self.snapshot_id is None else str(self.snapshot_id),
            "where": self.where,
            "planned_files": self.planned_files,
            "total_files": sum(self.total_files.values()),
            "planned_bytes": self.bytes,
            "manifests_read": self.manifests_read,
            "manifests_skipped": self.manifests_skipped,
            "stats": self.stats.to_dict(),
            "diagnostics": [each.to_dict() for each in self.diagnostics],
            "specs": [self._spec_dict(spec_id) for spec_id in self.kept],
            "files": [self._file_dict(file) for file in self.files],
        }

    def _spec_dict(self, spec_id: int) -> dict[str, Any]:
        projection = self.projections.get(spec_id)
        return {
            "spec_id": spec_id,
            "partition_by": self.labels[spec_id],
            "planned_files": self.kept[spec_id].num_rows,
            "total_files": self.total_files[spec_id],
            "conditions": [
                {
                    "condition": reason.condition,
                    "pushed": reason.pushed,
                    "stays_for_the_scan": not reason.exact,
                    "why": reason.why or None,
                }
                for reason in (projection.reasons if projection else ())
            ],
        }

    def _file_dict(self, file: IcebergFile) -> dict[str, Any]:
        names = (field.field_id for field in self.specs[file.spec_id].fields)
        return {
            "path": file.path,
            "bytes": file.bytes,
            "rows": file.rows,
            "spec_id": file.spec_id,
            "values": dict(zip(names, map(to_json_value, file.values), strict=True)),
            "deletes": [{"path": each.path, "kind": each.kind} for each in file.deletes],
        }

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        if self.where is not None:
            yield f"where {self.where}"
        total = format_count(sum(self.total_files.values()), "file")
        yield f"reads {self.planned_files:,} of {total} of {self.table}, {format_bytes(self.bytes)}"
        every = format_count(self.manifests_read + self.manifests_skipped, "manifest")
        yield f"{self.manifests_read:,} of {every} had to be read"
        if used := {delete.path for file in self.files for delete in file.deletes}:
            yield f"{format_count(len(used), 'delete file')} to apply"
        for spec_id, table in self.kept.items():
            of = format_count(self.total_files[spec_id], "file")
            label = self.labels[spec_id] or "nothing"
            yield f"spec {spec_id} by {label}: reads {table.num_rows:,} of {of}"
            projection = self.projections.get(spec_id)
            for reason in projection.reasons if projection else ():
                yield f"  {reason.condition}"
                yield f"    prunes by {reason.pushed or 'nothing, taken by itself'}"
                if not reason.exact:
                    yield f"    is left to the scan: {reason.why}"
        for each in self.diagnostics:
            kept = format_count(each.partitions, "partition")
            yield f"spec {each.spec_id} includes {kept} undecided: {each.cause}"
        if self.where is not None:
            yield "files are pruned by partition values, not by column statistics"
        for file in self.files[:_MAX_SHOWN_FILES]:
            deletes = f", {format_count(len(file.deletes), 'delete file')}" if file.deletes else ""
            size = f"{format_count(file.rows, 'row')}, {format_bytes(file.bytes)}"
            yield f"{file.path}: {size}{deletes}"
        if (hidden := self.planned_files - _MAX_SHOWN_FILES) > 0:
            yield f"and {format_count(hidden, 'file')} more"
