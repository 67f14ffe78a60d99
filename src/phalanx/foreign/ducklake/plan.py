"""The plan of a scan of a DuckLake table: the files to read, and why the others are pruned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, repeat
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from phalanx.foreign.ducklake.catalog import LakeTable, check_snapshot
from phalanx.foreign.ducklake.connection import CatalogReader
from phalanx.foreign.ducklake.files import (
    BYTES,
    PATH,
    ROWS,
    count_files,
    empty_files,
    read_bounds,
    read_deletes,
    read_files,
)
from phalanx.foreign.ducklake.files import FILE_ID as _FILE_ID
from phalanx.foreign.ducklake.inlined import InlinedRows, count_inlined
from phalanx.model.predicates.binding import bind_predicate
from phalanx.model.predicates.predicate import FALSE, TRUE, any_of
from phalanx.model.predicates.rendering import summarize, to_datafusion
from phalanx.model.specs.partition_key import PartitionKey, to_json_value, to_python_values
from phalanx.planning.formatting import format_bytes, format_count
from phalanx.planning.pruning.file_bounds import find_matching_files
from phalanx.planning.pruning.projection import Reason, SpecProjection
from phalanx.planning.pruning.prune import Pruning, prune
from phalanx.planning.pruning.residual import find_possible_partitions
from phalanx.planning.rewrites.plan import DeleteFile

_DELETES = ".deletes"
_FILE_COLUMNS = (_FILE_ID, PATH, ROWS, BYTES, _DELETES)


class PlannedFile(NamedTuple):
    """A data file to read: its partition, its delete files, and the residual filter.

    `rows` counts all rows written, including deleted ones.
    """

    path: str
    bytes: int
    rows: int
    key: PartitionKey
    deletes: tuple[DeleteFile, ...] = ()
    residual: str | None = None

    @property
    def spec_id(self) -> int:
        """The partitioning that the file was written under."""
        return self.key.spec_id

    @property
    def values(self) -> tuple[Any, ...]:
        """The partition values, one for each field of its spec."""
        return self.key.values


@dataclass(frozen=True, eq=False)
class DuckLakePlan:
    """The data files that a predicate needs, of all partitionings, as columns.

    Internal: `pruning` and `kept`.

    Attributes:
        table: The name of the table.
        snapshot: The id of the snapshot.
        labels: The fields of each partitioning as text, by its id.
        totals: The number of all files, by the id of their partitioning.
        outside: The number of files that column bounds exclude, by the id of their partitioning.
        inlined: The rows inlined in the catalog, which are always read.
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
                    _read_keys(spec.spec_id, table),
                    _deletes_of(table.column(_DELETES)),
                    repeat(residual, table.num_rows),
                    strict=True,
                ),
            )

    @property
    def planned_files(self) -> int:
        """The number of files to read."""
        return sum(table.num_rows for table in self.kept.values())

    @property
    def total_files(self) -> int:
        """The number of files of the table at the snapshot."""
        return sum(self.totals.values())

    @property
    def planned_bytes(self) -> int:
        """The total size of the files to read."""
        return sum(_sum(table.column(BYTES)) for table in self.kept.values())

    @property
    def fail_open(self) -> tuple[Reason, ...]:
        """The conditions on partition sources that could not prune by partition values."""
        return tuple(reason for spec in self.pruning.specs for reason in spec.fail_open)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        return {
            "table": self.table,
            "snapshot": self.snapshot,
            "where": summarize(self.pruning.predicate),
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
            "filter": summarize(spec.filter),
            "residual": None if spec.residual == TRUE else summarize(spec.residual),
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
                name: to_json_value(value) for name, value in zip(names, file.values, strict=True)
            },
            "deletes": [
                {"path": each.path, "bytes": each.bytes, "rows": each.rows} for each in file.deletes
            ],
            "residual": file.residual,
        }

    def __str__(self) -> str:
        lines = [
            f"where {summarize(self.pruning.predicate)}",
            f"reads {self.planned_files:,} of {format_count(self.total_files, 'file')}, "
            f"{format_bytes(self.planned_bytes)}",
        ]
        if self.inlined:
            rows = sum(each.rows for each in self.inlined)
            lines.append(f"and {format_count(rows, 'row')} that are inlined in the catalog")
        for spec in self.pruning.specs:
            total = self.totals.get(spec.spec_id, 0)
            lines += [
                "",
                f"spec {spec.spec_id} by {self.labels[spec.spec_id] or 'nothing'}: reads "
                f"{self.kept[spec.spec_id].num_rows:,} of {format_count(total, 'file')}",
            ]
            if outside := self.outside[spec.spec_id]:
                lines.append(f"  {format_count(outside, 'file')} more excluded by column bounds")
            for reason in spec.reasons:
                lines.append(f"  {reason.condition}")
                lines.append(f"    prunes by {reason.pushed or 'nothing, taken by itself'}")
                if not reason.exact:
                    lines.append(f"    is left to the scan: {reason.why}")
        return "\n".join(lines)


def plan_files_to_scan(table: LakeTable, where: str | None) -> DuckLakePlan:
    """Plan the files that may hold matching rows, at the snapshot of the table."""
    schema, specs = table.columns.schema, table.partitionings.specs
    predicate = TRUE if where is None else bind_predicate(where, schema)
    pruning = prune(predicate, specs, schema)
    with table.location.open() as reader:
        check_snapshot(reader, table)
        totals = count_files(reader, table)
        deletes = read_deletes(reader, table)
        held = {
            each.spec_id: _prune_by_values(reader, table, each, totals.get(each.spec_id, 0))
            for each in pruning.specs
        }
        kept = _prune_by_bounds(reader, table, pruning, held)
        inlined = count_inlined(reader, table)
    outside = {number: held[number].num_rows - files.num_rows for number, files in kept.items()}
    kept = {
        number: files.add_column(
            len(_FILE_COLUMNS) - 1, _DELETES, deletes.lists_for(files[_FILE_ID])
        )
        for number, files in kept.items()
    }
    labels = {spec_id: spec.label(schema) for spec_id, spec in specs.items()}
    return DuckLakePlan(table.name, table.snapshot, pruning, labels, kept, totals, outside, inlined)


def _prune_by_values(
    reader: CatalogReader, table: LakeTable, projection: SpecProjection, total: int
) -> pa.Table:
    """Return the files of a partitioning whose partition values allow a matching row."""
    spec = table.partitionings.specs[projection.spec_id]
    if projection.filter == FALSE or not total:
        return empty_files(spec)
    files = read_files(reader, table, spec, projection.filter)
    held = find_possible_partitions(projection.filter, spec, files, files.num_rows)
    return files if held.all() else files.filter(pa.array(held))


def _prune_by_bounds(
    reader: CatalogReader,
    table: LakeTable,
    pruning: Pruning,
    files_by_spec: Mapping[int, pa.Table],
) -> dict[int, pa.Table]:
    """Return the files whose bounds allow a match; read the bounds of all specs at once."""
    open_specs = [each for each in pruning.specs if each.residual != TRUE]
    residuals = any_of(each.residual for each in open_specs if files_by_spec[each.spec_id].num_rows)
    together = [files_by_spec[each.spec_id].select([_FILE_ID, ROWS]) for each in open_specs]
    if residuals == FALSE:
        return dict(files_by_spec)
    bounds = read_bounds(reader, table, pa.concat_tables(together), residuals)
    kept, start = dict(files_by_spec), 0
    for each in open_specs:
        files = files_by_spec[each.spec_id]
        own = {path: known.slice(start, files.num_rows) for path, known in bounds.items()}
        matching = find_matching_files(each.residual, own, files.num_rows)
        kept[each.spec_id] = files.filter(pa.array(matching))
        start += files.num_rows
    return kept


def _read_keys(spec_id: int, files: pa.Table) -> Iterator[PartitionKey]:
    """Yield the key of each file; files of one partition share an object."""
    columns = [to_python_values(column) for column in files.columns[len(_FILE_COLUMNS) :]]
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
    """Yield the delete files of each file."""
    counts = pc.list_value_length(lists).to_pylist()
    every = (DeleteFile(**each) for each in pc.list_flatten(lists).to_pylist())
    for count in counts:
        yield tuple(islice(every, count)) if count else ()


def _sum(column: pa.ChunkedArray) -> int:
    return int(pc.sum(column, min_count=0).as_py())
