"""The rows of a DuckLake table in units of one file each, which any process can read by itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from phalanx.errors import InvalidCatalog, StorageFailure
from phalanx.foreign.ducklake_rows import conformed, plain
from phalanx.foreign.file_systems import opened
from phalanx.model.schema.schema import Schema

# Rows of several snapshots in one file say themselves from which on they stand.
_SNAPSHOT = "_ducklake_internal_snapshot_id"
_BATCH_ROWS = 1 << 16


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of the lake; with a `snapshot` only its rows up to that one count."""

    path: str
    options: tuple[tuple[str, str], ...] = field(repr=False)
    snapshot: int | None = None

    def parquet(self) -> pq.ParquetFile:
        """The file, open; `StorageFailure` if it is missing or no Parquet."""
        try:
            return pq.ParquetFile(opened(self.path, dict(self.options)))
        except (OSError, pa.ArrowException) as error:
            raise StorageFailure(
                f"Cannot read {self.path}, which the DuckLake catalog lists: {error}"
            ) from None


@dataclass(frozen=True, slots=True, eq=False)
class FileUnit:
    """A data file, the rows deleted from it, and how its columns become those of the table.

    `names` tells the ids of columns in a file that DuckLake did not write, `constants` the values
    that its path gives.
    """

    id: str
    rows: int
    bytes: int
    file: StoredFile
    schema: Schema
    deletes: tuple[StoredFile, ...]
    deleted: pa.Array
    defaults: Mapping[int, pa.Scalar]
    names: Mapping[tuple[str, ...], int] | None = None
    constants: Mapping[int, pa.Scalar] | None = None

    def check(self) -> None:
        """Refuse a unit of which a file is gone, or no Parquet."""
        for file in (self.file, *self.deletes):
            file.parquet().close()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows in the table's columns, deleted ones left out."""
        target = pa.schema([plain(field) for field in self.schema.arrow])
        gone = self._gone()
        source = self.file.parquet()
        known = {**self.defaults, **(self.constants or {})}
        with source:
            start = 0
            for batch in _batches(source, self.file.path):
                kept = self._kept(batch, gone, start)
                start += batch.num_rows
                arrays = conformed(self._identified(batch), self.schema.arrow, known)
                rows = pa.RecordBatch.from_arrays(arrays, schema=target)
                yield rows if kept is None else rows.filter(pa.array(kept))

    def _kept(
        self, batch: pa.RecordBatch, gone: npt.NDArray[np.int64], start: int
    ) -> npt.NDArray[np.bool_] | None:
        """Which rows of the batch stand; None if all do."""
        first, last = np.searchsorted(gone, (start, start + batch.num_rows))
        later = None
        if self.file.snapshot is not None:
            numbers = batch.column(_SNAPSHOT).to_numpy(zero_copy_only=False)
            later = numbers > self.file.snapshot
        if first == last and later is None:
            return None
        kept = np.ones(batch.num_rows, dtype=bool) if later is None else ~later
        kept[gone[first:last] - start] = False
        return kept

    def _gone(self) -> npt.NDArray[np.int64]:
        """The places of deleted rows in the file, in order."""
        places = [np.asarray(self.deleted, dtype=np.int64)]
        places += [positions(file) for file in self.deletes]
        return np.unique(np.concatenate(places))

    def _identified(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with the ids of its columns."""
        if self.names is None:
            return batch
        fields = [_renumbered(field, self.names, ()) for field in batch.schema]
        return pa.RecordBatch.from_arrays(batch.columns, schema=pa.schema(fields))


@dataclass(frozen=True, slots=True, eq=False)
class InlinedUnit:
    """Rows that stood in the catalog, which come along: there are only few of them."""

    id: str
    rows: int
    bytes: int
    stored: pa.Table

    def check(self) -> None:
        """There is no file that could be gone."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows in the table's columns, deleted ones left out."""
        yield from self.stored.to_batches(max_chunksize=_BATCH_ROWS)


def positions(file: StoredFile) -> npt.NDArray[np.int64]:
    """The places of the rows that a delete file deletes."""
    with file.parquet() as source:
        columns = ["pos", *([] if file.snapshot is None else [_SNAPSHOT])]
        rows = source.read(columns=columns)
    if file.snapshot is not None:
        rows = rows.filter(pc.less_equal(rows.column(_SNAPSHOT), file.snapshot))
    found: npt.NDArray[np.int64] = rows.column("pos").to_numpy().astype(np.int64)
    return found


def rows_up_to(file: StoredFile) -> int:
    """How many rows of a file stand at its snapshot."""
    with file.parquet() as source:
        if _SNAPSHOT not in source.schema_arrow.names:
            raise InvalidCatalog(
                f"{file.path} should tell by {_SNAPSHOT} from which snapshot on its rows stand, "
                "as ducklake_data_file says: it has no such column."
            )
        numbers = source.read(columns=[_SNAPSHOT]).column(_SNAPSHOT)
    return int(np.count_nonzero(numbers.to_numpy() <= file.snapshot))


def _batches(source: pq.ParquetFile, path: str) -> Iterator[pa.RecordBatch]:
    try:
        yield from source.iter_batches(batch_size=_BATCH_ROWS)
    except (OSError, pa.ArrowException) as error:
        raise StorageFailure(f"Cannot read the rows of {path}: {error}") from None


def _renumbered(
    field: pa.Field, names: Mapping[tuple[str, ...], int], above: tuple[str, ...]
) -> pa.Field:
    path = (*above, field.name)
    kind: Any = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_renumbered(inner, names, path) for inner in kind])
    found = names.get(path)
    metadata = None if found is None else {"PARQUET:field_id": str(found)}
    return pa.field(field.name, kind, field.nullable, metadata)
