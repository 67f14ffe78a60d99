"""An Iceberg table with very many files, of which only the metadata is made."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import DateType, DoubleType, NestedField


def iceberg_table(folder: Path, first_day: date, files: int) -> Any:
    """A table by day with one file for each day."""
    folder.mkdir(parents=True)
    catalog = SqlCatalog(
        "bench", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}"
    )
    catalog.create_namespace("bench")
    schema = Schema(
        NestedField(1, "day", DateType(), required=False),
        NestedField(2, "amount", DoubleType(), required=False),
    )
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "day"))
    table = catalog.create_table("bench.events", schema, partition_spec=spec)
    first = (first_day - date(1970, 1, 1)).days
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
        for day in range(first, first + files):
            append.append_data_file(_data_file(folder, day))
    return table


def _data_file(folder: Path, day: int) -> DataFile:
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"file://{folder}/data/{day}.parquet",
        file_format=FileFormat.PARQUET,
        partition=Record(day),
        record_count=1000,
        file_size_in_bytes=10_000,
        column_sizes={},
        value_counts={},
        null_value_counts={},
        nan_value_counts={},
        lower_bounds={},
        upper_bounds={},
        split_offsets=None,
    )
    file.spec_id = 0
    return file
