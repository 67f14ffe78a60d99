"""Write new data files of an Iceberg table with pyiceberg, and replace old ones by them."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.io.pyarrow import pyarrow_to_schema, write_file
from pyiceberg.manifest import DataFile, ManifestFile
from pyiceberg.table import Table, WriteTask
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update.snapshot import _OverwriteFiles
from pyiceberg.typedef import EMPTY_DICT, Record
from pyiceberg.types import UUIDType

from phalanx.errors import StorageFailure, UnknownOutcome
from phalanx.foreign.iceberg.manifests import to_iceberg_values
from phalanx.foreign.iceberg.state import IcebergState
from phalanx.model.schema.grouping import group_rows


@dataclass(frozen=True, slots=True)
class _Partition:
    """What pyiceberg needs of a partition: its values, and the folder for its files.

    pyiceberg's own class does not support two fields of one column.
    """

    partition: Record
    path: str

    def to_path(self) -> str:
        """Return the folder, relative to the data folder of the table."""
        return self.path


class NewFiles:
    """New files that no snapshot contains yet; `remove` deletes them.

    Phalanx's transforms assign rows to partitions: pyiceberg fails on NaN partition values, and
    writes rows twice if both zeros occur.
    """

    def __init__(self, state: IcebergState) -> None:
        self._state = state
        self._metadata = state.metadata
        self.spec_id = state.spec_id
        self._spec = state.specs[self.spec_id]
        self._task_ids = itertools.count()
        self._write_id = uuid.uuid4()
        # Without our field ids: pyiceberg matches by name here.
        arrow = pa.schema([_strip_field_metadata(field) for field in state.schema.arrow])
        self._arrow = arrow
        self._schema = pyarrow_to_schema(
            arrow,
            name_mapping=state.iceberg_schema.name_mapping,
            format_version=self._metadata.format_version,
        )
        self.files: list[DataFile] = []
        self.rows = 0

    def add(self, rows: pa.Table) -> None:
        """Write rows, one file for each of their partitions."""
        for partition, part in self._split_by_partition(rows):
            task = WriteTask(
                write_uuid=self._write_id,
                task_id=next(self._task_ids),
                schema=self._schema,
                record_batches=part.cast(self._arrow).combine_chunks().to_batches(),
                partition_key=cast(Any, partition),
            )
            self.files += write_file(self._state.io, self._metadata, iter([task]))
        self.rows += rows.num_rows
        if (written := sum(file.record_count for file in self.files)) != self.rows:
            raise StorageFailure(
                f"pyiceberg wrote {written} rows of {self.rows} of the Iceberg table "
                f"{self._state.name}. Nothing was committed."
            )

    def _split_by_partition(self, rows: pa.Table) -> Iterator[tuple[_Partition | None, pa.Table]]:
        if not self._spec.fields:
            yield None, rows
            return
        values = self._spec.compute_partition_values(rows, self._state.schema)
        groups = group_rows(values, rows.num_rows)
        order = np.argsort(groups.codes, kind="stable")
        ends = np.cumsum(np.bincount(groups.codes, minlength=groups.count))
        partitions = self._make_partitions(groups.keys)
        for partition, indices in zip(partitions, np.split(order, ends[:-1]), strict=True):
            yield partition, rows.take(pa.array(indices))

    def _make_partitions(self, keys: pa.Table) -> Iterator[_Partition]:
        spec, schema = self._metadata.spec(), self._metadata.schema()
        kinds = [field.field_type for field in spec.partition_type(schema).fields]
        columns = [
            to_iceberg_values(column, isinstance(kind, UUIDType))
            for column, kind in zip(keys.columns, kinds, strict=True)
        ]
        for values in zip(*columns, strict=True):
            record = Record(*values)
            yield _Partition(record, spec.partition_to_path(record, schema))

    def remove(self) -> None:
        """Delete the files that no snapshot contains; ignore failures."""
        for file in self.files:
            with suppress(Exception):
                self._state.io.delete(file.file_path)


def _strip_field_metadata(field: pa.Field) -> pa.Field:
    return pa.field(field.name, _strip_type_metadata(field.type), field.nullable)


def _strip_type_metadata(kind: pa.DataType) -> pa.DataType:
    """Return the type without metadata on nested fields."""
    if pa.types.is_struct(kind):
        return pa.struct([_strip_field_metadata(field) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_strip_field_metadata(kind.value_field))
    if pa.types.is_map(kind):
        return pa.map_(
            _strip_field_metadata(kind.key_field), _strip_field_metadata(kind.item_field)
        )
    return kind


class _ReplaceFiles(_OverwriteFiles):
    """pyiceberg's overwrite of given files, as the operation `replace`.

    pyiceberg would search for the files by partition, which does not find NaN, and would retry a
    commit after checks that miss a delete followed by an append. Here the manifests are given, and
    a commit that loses the race fails.
    """

    manifest_paths: frozenset[str] = frozenset()

    def _build_delete_files_partition_predicate(self) -> None:
        """Do nothing: the manifests are given."""

    def _build_manifest_evaluator(self, spec_id: int) -> Callable[[ManifestFile], bool]:
        return lambda manifest: manifest.manifest_path in self.manifest_paths

    def commit(self) -> None:
        # Bypass the transaction, which retries the commits registered with it.
        self._transaction._apply(*self._commit())

    def _summary(self, snapshot_properties: dict[str, str] = EMPTY_DICT) -> Summary:
        # pyiceberg summarizes only the operations that it implements.
        summary = super()._summary(snapshot_properties)
        return Summary(Operation.REPLACE, **summary.additional_properties)


def replace_files(
    table: Table,
    removed: Sequence[DataFile],
    added: Sequence[DataFile],
    manifests: frozenset[str],
) -> int:
    """Commit the snapshot and return its id; `manifests` are those that list the removed files.

    Raises `CommitFailedException` if the table has a newer snapshot, and `UnknownOutcome` if it is
    unknown whether the commit succeeded.
    """
    transaction = table.transaction()
    producer = _ReplaceFiles(Operation.OVERWRITE, transaction, table.io)
    producer.manifest_paths = manifests
    for file in removed:
        producer.delete_data_file(file)
    for file in added:
        producer.append_data_file(file)
    try:
        producer.commit()
    except Exception:
        # Only manifests have been written so far.
        producer._clean_all_uncommitted()
        raise
    try:
        transaction.commit_transaction()
    except (CommitFailedException, ValidationException):
        producer._clean_all_uncommitted()
        raise
    except Exception as error:
        if not _has_snapshot(table, producer.snapshot_id):
            raise UnknownOutcome(
                f"The commit of snapshot {producer.snapshot_id} to the Iceberg table "
                f"{'.'.join(table.name())} failed: {error}. Check whether the table has the "
                "snapshot before you retry.",
                snapshot=producer.snapshot_id,
            ) from error
    return producer.snapshot_id


def _has_snapshot(table: Table, snapshot_id: int) -> bool:
    """Return whether the catalog has the snapshot; False if it does not respond."""
    try:
        fresh = table.catalog.load_table(table.name())
    except Exception:
        return False
    return fresh.metadata.snapshot_by_id(snapshot_id) is not None
