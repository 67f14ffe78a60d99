"""The plan of a scan of a DuckLake table: which files to read, and why not the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, repeat
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from phalanx.foreign.ducklake.catalog import LakeTable, check_snapshot
from phalanx.foreign.ducklake.connection import CatalogReading
from phalanx.foreign.ducklake.files import (
    BYTES,
    PATH,
    ROWS,
    count_files,
    no_files,
    read_bounds,
    read_deletes,
    read_files,
)
from phalanx.foreign.ducklake.files import FILE_ID as _FILE_ID
from phalanx.foreign.ducklake.inlined import InlinedRows, count_inlined
from phalanx.model.predicates.binding import bind
from phalanx.model.predicates.predicate import FALSE, TRUE, any_of
from phalanx.model.predicates.rendering import summary, to_datafusion
from phalanx.model.specs.partition_key import PartitionKey, json_value, plain_values
from phalanx.planning.pruning.file_bounds import may_match
from phalanx.planning.pruning.projection import Reason, SpecProjection
from phalanx.planning.pruning.prune import Pruning, prune
from phalanx.planning.pruning.residual import may_hold
from phalanx.planning.pruning.scan_plan import counted, readable
from phalanx.planning.rewrites.plan import DeleteFile

_DELETES = ".deletes"
_FILE_COLUMNS = (_FILE_ID, PATH, ROWS, BYTES, _DELETES)


class PlannedFile(NamedTuple):
    """A data file to read: its partition, the delete files that apply, and what is left to filter.

    `rows` are those that were written, deleted ones included.
    """

    path: str
    bytes: int
    rows: int
    key: PartitionKey
    deletes: tuple[DeleteFile, ...] = ()
    residual: str | None = None

    @property
    def spec_id(self) -> int:
        """The partitioning that it was written under."""
        return self.key.spec_id

    @property
    def values(self) -> tuple[Any, ...]:
        """The partition values, one for each field of its spec."""
        return self.key.values


@dataclass(frozen=True, eq=False)
class DuckLakePlan:
    """The data files that a predicate needs, of all partitionings; kept as columns.

    `outside` counts, for each spec, the files that the bounds of their columns rule out. Rows that
    still stand in the catalog are always read: `inlined` says how many there are.
    """

    table: str
    snapshot: int
    pruning: Pruning
    labels: Mapping[int, str]
    kept: Mapping[int, pa.Table]
    totals: Mapping[int, int]
    outside: Mapping[int, int]
    inlined: tuple[InlinedRows, ...]

    @cached_property
    def files(self) -> tuple[PlannedFile, ...]:
        """The planned files, spec by spec, in the order in which they were written."""
        return tuple(self._files())

    def _files(self) -> Iterator[PlannedFile]:
        for spec in self.pruning.specs:
            table = self.kept[spec.spec_id]
            residual = None if spec.residual == TRUE else to_datafusion(spec.residual)
            columns = (table.column(name).to_pylist() for name in (PATH, BYTES, ROWS))
            yield from map(
                PlannedFile._make,
                zip(
                    *columns,
                    _keys(spec.spec_id, table),
                    _deletes_of(table.column(_DELETES)),
                    repeat(residual, table.num_rows),
                    strict=True,
                ),
            )

    @property
    def planned_files(self) -> int:
        """How many files are to be read."""
        return sum(table.num_rows for table in self.kept.values())

    @property
    def total_files(self) -> int:
        """How many files the table has at the snapshot."""
        return sum(self.totals.values())

    @property
    def planned_bytes(self) -> int:
        """How many bytes the planned files have."""
        return sum(_sum(table.column(BYTES)) for table in self.kept.values())

    @property
    def fail_open(self) -> tuple[Reason, ...]:
        """The conditions on partition sources that could not prune by partition values."""
        return tuple(reason for spec in self.pruning.specs for reason in spec.fail_open)

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON has it."""
        return {
            "table": self.table,
            "snapshot": self.snapshot,
            "where": summary(self.pruning.predicate),
            "planned_files": self.planned_files,
            "total_files": self.total_files,
            "planned_bytes": self.planned_bytes,
            "inlined": [{"table": each.table, "rows": each.rows} for each in self.inlined],
            "specs": [self._spec_dict(spec) for spec in self.pruning.specs],
            "fail_open": [reason.condition for reason in self.fail_open],
            "files": [self._file_dict(file) for file in self.files],
        }

    def _spec_dict(self, spec: SpecProjection) -> dict[str, Any]:
        return {
            "spec_id": spec.spec_id,
            "partition_by": self.labels[spec.spec_id],
            "planned_files": self.kept[spec.spec_id].num_rows,
            "total_files": self.totals.get(spec.spec_id, 0),
            "outside_bounds": self.outside[spec.spec_id],
            "filter": summary(spec.filter),
            "residual": None if spec.residual == TRUE else summary(spec.residual),
            "conditions": [
                {
                    "condition": reason.condition,
                    "pushed": reason.pushed,
                    "stays_for_the_scan": not reason.exact,
                    "why": reason.why or None,
                }
                for reason in spec.reasons
            ],
        }

    def _file_dict(self, file: PlannedFile) -> dict[str, Any]:
        names = self.kept[file.spec_id].column_names[len(_FILE_COLUMNS) :]
        return {
            "path": file.path,
            "bytes": file.bytes,
            "rows": file.rows,
            "spec_id": file.spec_id,
            "values": {
                name: json_value(value) for name, value in zip(names, file.values, strict=True)
            },
            "deletes": [
                {"path": each.path, "bytes": each.bytes, "rows": each.rows} for each in file.deletes
            ],
            "residual": file.residual,
        }

    def __str__(self) -> str:
        lines = [
            f"where {summary(self.pruning.predicate)}",
            f"reads {self.planned_files:,} of {counted(self.total_files, 'file')}, "
            f"{readable(self.planned_bytes)}",
        ]
        if self.inlined:
            rows = sum(each.rows for each in self.inlined)
            lines.append(f"and {counted(rows, 'row')} that still stand in the catalog")
        for spec in self.pruning.specs:
            total = self.totals.get(spec.spec_id, 0)
            lines += [
                "",
                f"spec {spec.spec_id} by {self.labels[spec.spec_id] or 'nothing'}: reads "
                f"{self.kept[spec.spec_id].num_rows:,} of {counted(total, 'file')}",
            ]
            if outside := self.outside[spec.spec_id]:
                lines.append(f"  {counted(outside, 'file')} more left out by the bounds of columns")
            for reason in spec.reasons:
                lines.append(f"  {reason.condition}")
                lines.append(f"    prunes by {reason.pushed or 'nothing, taken by itself'}")
                if not reason.exact:
                    lines.append(f"    stays for the scan: {reason.why}")
        return "\n".join(lines)


def plan_scan(table: LakeTable, where: str | None) -> DuckLakePlan:
    """Which files can hold a row that matches, at the snapshot that the table was opened at."""
    schema, specs = table.columns.schema, table.partitionings.specs
    predicate = TRUE if where is None else bind(where, schema)
    pruning = prune(predicate, specs, schema)
    with table.location.reading() as reading:
        check_snapshot(reading, table)
        totals = count_files(reading, table)
        deletes = read_deletes(reading, table)
        held = {
            each.spec_id: _held(reading, table, each, totals.get(each.spec_id, 0))
            for each in pruning.specs
        }
        kept = _within_bounds(reading, table, pruning, held)
        inlined = count_inlined(reading, table)
    outside = {number: held[number].num_rows - files.num_rows for number, files in kept.items()}
    kept = {
        number: files.add_column(len(_FILE_COLUMNS) - 1, _DELETES, deletes.of(files[_FILE_ID]))
        for number, files in kept.items()
    }
    labels = {spec_id: spec.label(schema) for spec_id, spec in specs.items()}
    return DuckLakePlan(table.name, table.snapshot, pruning, labels, kept, totals, outside, inlined)


def _held(
    reading: CatalogReading, table: LakeTable, projection: SpecProjection, total: int
) -> pa.Table:
    """The files of a partitioning whose values allow a matching row."""
    spec = table.partitionings.specs[projection.spec_id]
    if projection.filter == FALSE or not total:
        return no_files(spec)
    files = read_files(reading, table, spec, projection.filter)
    held = may_hold(projection.filter, spec, files, files.num_rows)
    return files if held.all() else files.filter(pa.array(held))


def _within_bounds(
    reading: CatalogReading, table: LakeTable, pruning: Pruning, held: Mapping[int, pa.Table]
) -> dict[int, pa.Table]:
    """The files whose bounds allow a match; those of all partitionings are read at once."""
    open_specs = [each for each in pruning.specs if each.residual != TRUE]
    residuals = any_of(each.residual for each in open_specs if held[each.spec_id].num_rows)
    together = [held[each.spec_id].select([_FILE_ID, ROWS]) for each in open_specs]
    if residuals == FALSE:
        return dict(held)
    bounds = read_bounds(reading, table, pa.concat_tables(together), residuals)
    kept, start = dict(held), 0
    for each in open_specs:
        files = held[each.spec_id]
        own = {path: known.slice(start, files.num_rows) for path, known in bounds.items()}
        matching = may_match(each.residual, own, files.num_rows)
        kept[each.spec_id] = files.filter(pa.array(matching))
        start += files.num_rows
    return kept


def _keys(spec_id: int, files: pa.Table) -> Iterator[PartitionKey]:
    """The key of each file; files of one partition have the same one."""
    columns = [plain_values(column) for column in files.columns[len(_FILE_COLUMNS) :]]
    if not columns:
        yield from repeat(PartitionKey(spec_id, ()), files.num_rows)
        return
    known: dict[tuple[Any, ...], PartitionKey] = {}
    for values in zip(*columns, strict=True):
        key = known.get(values)
        if key is None:
            key = known[values] = PartitionKey(spec_id, values)
        yield key


def _deletes_of(lists: pa.ChunkedArray) -> Iterator[tuple[DeleteFile, ...]]:
    """The delete files of each file; few have any."""
    counts = pc.list_value_length(lists).to_pylist()
    every = (DeleteFile(**each) for each in pc.list_flatten(lists).to_pylist())
    for count in counts:
        yield tuple(islice(every, count)) if count else ()


def _sum(column: pa.ChunkedArray) -> int:
    return int(pc.sum(column, min_count=0).as_py())
