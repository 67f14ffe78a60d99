"""New data files of an Iceberg table under its current spec, written by pyiceberg."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pyarrow as pa
from pyiceberg.io.pyarrow import pyarrow_to_schema, write_file
from pyiceberg.manifest import DataFile
from pyiceberg.table import WriteTask
from pyiceberg.typedef import Record
from pyiceberg.types import UUIDType

from phalanx.errors import StorageFailure
from phalanx.foreign.iceberg.manifests import internal_values
from phalanx.foreign.iceberg.state import IcebergState
from phalanx.model.schema.grouping import group


@dataclass(frozen=True, slots=True)
class _Partition:
    """What pyiceberg wants to know of a partition: its values, and the folder for its files.

    pyiceberg's own class knows no two fields of one column.
    """

    partition: Record
    path: str

    def to_path(self) -> str:
        """The folder, below that of the table's data."""
        return self.path


class NewFiles:
    """Files that no snapshot has yet; `remove` takes them away again.

    Rows go to their partitions by Phalanx's transforms: pyiceberg's way fails where a partition
    value is NaN, and writes rows twice where both zeros are.
    """

    def __init__(self, state: IcebergState) -> None:
        self._state = state
        self._metadata = state.metadata
        self.spec_id = state.spec_id
        self._spec = state.specs[self.spec_id]
        self._numbers = itertools.count()
        self._write_id = uuid.uuid4()
        # Without ids of ours: pyiceberg goes by names.
        arrow = pa.schema([_unnumbered(field) for field in state.schema.arrow])
        self._arrow = arrow
        self._schema = pyarrow_to_schema(
            arrow,
            name_mapping=state.iceberg_schema.name_mapping,
            format_version=self._metadata.format_version,
        )
        self.files: list[DataFile] = []
        self.rows = 0

    def add(self, rows: pa.Table) -> None:
        """Write rows, a file for each partition among them."""
        for partition, part in self._parts(rows):
            task = WriteTask(
                write_uuid=self._write_id,
                task_id=next(self._numbers),
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

    def _parts(self, rows: pa.Table) -> Iterator[tuple[_Partition | None, pa.Table]]:
        if not self._spec.fields:
            yield None, rows
            return
        values = self._spec.partition_values(rows, self._state.schema)
        groups = group(values, rows.num_rows)
        order = np.argsort(groups.codes, kind="stable")
        ends = np.cumsum(np.bincount(groups.codes, minlength=groups.count))
        partitions = self._partitions(groups.keys)
        for partition, places in zip(partitions, np.split(order, ends[:-1]), strict=True):
            yield partition, rows.take(pa.array(places))

    def _partitions(self, keys: pa.Table) -> Iterator[_Partition]:
        spec, schema = self._metadata.spec(), self._metadata.schema()
        kinds = [field.field_type for field in spec.partition_type(schema).fields]
        columns = [
            internal_values(column, isinstance(kind, UUIDType))
            for column, kind in zip(keys.columns, kinds, strict=True)
        ]
        for values in zip(*columns, strict=True):
            record = Record(*values)
            yield _Partition(record, spec.partition_to_path(record, schema))

    def remove(self) -> None:
        """Delete the files, which no snapshot has: what cannot be deleted is left over."""
        for file in self.files:
            with suppress(Exception):
                self._state.io.delete(file.file_path)


def _unnumbered(field: pa.Field) -> pa.Field:
    return pa.field(field.name, _plain(field.type), field.nullable)


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type without metadata on what is inside it."""
    if pa.types.is_struct(kind):
        return pa.struct([_unnumbered(field) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_unnumbered(kind.value_field))
    if pa.types.is_map(kind):
        return pa.map_(_unnumbered(kind.key_field), _unnumbered(kind.item_field))
    return kind
