"""Assign delete files to the data files that they apply to (Iceberg spec: Scan Planning).

| | |
|---|---|
| position deletes | files of the same partition that are not newer, within their path bounds |
| deletion vectors | the one file they name; position deletes of that file are ignored |
| equality deletes | older files of the same partition; of the whole table if unpartitioned |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.manifest import DataFileContent, FileFormat

from phalanx.foreign.iceberg.manifests import (
    CONTENT,
    EQUALITY_IDS,
    FORMAT,
    GREATEST_PATH,
    LEAST_PATH,
    REFERENCED,
    SEQUENCE,
    ManifestEntries,
)
from phalanx.model.schema.grouping import group_rows
from phalanx.model.specs.spec import PartitionSpec
from phalanx.planning.rewrites.entries import DELETES_TYPE, FILE_BYTES, FILE_PATH, FILE_ROWS

IntArray = npt.NDArray[np.int64]
DeleteKind: TypeAlias = Literal["position", "vector", "equality"]


@dataclass(frozen=True, slots=True)
class IcebergDelete:
    """A delete file.

    Attributes:
        kind: "position", "vector" or "equality".
        path: The path of the file.
        bytes: The size of the file.
        rows: The number of rows of one data file that it deletes; None if it is unknown.
        format: The format of the file.
        equality_ids: The ids of the fields that an equality delete compares.
    """

    kind: DeleteKind
    path: str
    bytes: int
    rows: int | None
    format: str
    equality_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class IcebergDeletes:
    """The delete files of a snapshot, and those that apply to each data file."""

    files: tuple[IcebergDelete, ...]
    # For each spec, pairs of a data file (its row) and a delete file (its index in `files`).
    pairs: Mapping[int, tuple[IntArray, IntArray]]

    def to_arrow_lists(self, spec_id: int, count: int) -> pa.Array:
        """Return the deletes of each data file of a spec as Arrow lists, for a rewrite planner."""
        rows, indices = self._pairs(spec_id)
        offsets = np.append(0, np.cumsum(np.bincount(rows, minlength=count)))
        kind = DELETES_TYPE.value_type
        values = pa.array(
            [{"path": each.path, "bytes": each.bytes, "rows": each.rows} for each in self.files],
            kind,
        )
        taken = values.take(pa.array(indices))
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), taken).cast(DELETES_TYPE)

    def list_by_file(self, spec_id: int, count: int) -> list[tuple[IcebergDelete, ...]]:
        """Return the deletes of each data file of a spec."""
        found: list[tuple[IcebergDelete, ...]] = [()] * count
        rows, indices = self._pairs(spec_id)
        for row, index in zip(rows.tolist(), indices.tolist(), strict=True):
            found[row] = (*found[row], self.files[index])
        return found

    def _pairs(self, spec_id: int) -> tuple[IntArray, IntArray]:
        nothing = np.empty(0, dtype=np.int64)
        return self.pairs.get(spec_id, (nothing, nothing))


def assign_deletes(entries: ManifestEntries, specs: Mapping[int, PartitionSpec]) -> IcebergDeletes:
    """Return the delete files of the entries, and the data files that each applies to."""
    files: list[IcebergDelete] = []
    found: dict[int, list[tuple[IntArray, IntArray]]] = {}
    for spec_id, table in entries.deletes.items():
        first = len(files)
        known = list(_read_delete_entries(table))
        files += [each.file for each in known]
        targets = [spec_id] if specs[spec_id].fields else list(entries.data)
        for target in targets:
            data = entries.data.get(target)
            if data is None or not data.num_rows:
                continue
            matcher = _DeleteMatcher(
                data, table, known, specs[spec_id], same_spec=target == spec_id
            )
            for index in range(len(known)):
                rows = matcher.match(index)
                if len(rows):
                    pair = rows, np.full(len(rows), first + index)
                    found.setdefault(target, []).append(pair)
    return IcebergDeletes(
        tuple(files), {spec: _sort_pairs(pairs, files) for spec, pairs in found.items()}
    )


@dataclass(frozen=True, slots=True)
class _DeleteEntry:
    """A delete file, and the data file or the range of paths that it applies to, if known."""

    file: IcebergDelete
    sequence: int
    target: str | None = None
    least: bytes | None = None
    greatest: bytes | None = None


def _read_delete_entries(table: pa.Table) -> Iterator[_DeleteEntry]:
    names = (FILE_PATH, FILE_BYTES, FILE_ROWS, FORMAT, SEQUENCE, CONTENT, EQUALITY_IDS, REFERENCED)
    bounds = (LEAST_PATH, GREATEST_PATH)
    columns = [table.column(name).to_pylist() for name in (*names, *bounds)]
    for path, size, rows, form, sequence, content, ids, named, low, high in zip(
        *columns, strict=True
    ):
        if content == DataFileContent.EQUALITY_DELETES:
            file = IcebergDelete("equality", path, size, None, form, tuple(ids or ()))
            yield _DeleteEntry(file, sequence)
            continue
        target = named or (low.decode() if low is not None and low == high else None)
        kind: DeleteKind = "vector" if form == FileFormat.PUFFIN.value else "position"
        file = IcebergDelete(kind, path, size, None if target is None else rows, form)
        yield _DeleteEntry(file, sequence, target, low, high)


class _DeleteMatcher:
    """Finds the data files of one spec that the delete files of one spec apply to."""

    def __init__(
        self,
        data: pa.Table,
        table: pa.Table,
        deletes: Sequence[_DeleteEntry],
        spec: PartitionSpec,
        same_spec: bool,
    ) -> None:
        self._deletes = deletes
        self._same_spec = same_spec
        self._paths = data.column(FILE_PATH).combine_chunks()
        self._sequences: IntArray = data.column(SEQUENCE).to_numpy()
        targets = pa.array([each.target for each in deletes], pa.string())
        found = pc.index_in(targets, value_set=self._paths, skip_nulls=True)
        self._targets: IntArray = found.fill_null(-1).to_numpy()
        # The data files ordered by partition, and the start of each partition.
        self._own: IntArray = np.zeros(len(deletes), dtype=np.int64)
        self._order: IntArray = np.arange(data.num_rows)
        self._starts: IntArray = np.array([0, data.num_rows])
        if spec.fields:
            names = [field.field_id for field in spec.fields]
            values = pa.concat_tables([data.select(names), table.select(names)])
            groups = group_rows(values, values.num_rows)
            codes, self._own = np.split(groups.codes, [data.num_rows])
            self._order = np.argsort(codes, kind="stable")
            self._starts = np.append(0, np.cumsum(np.bincount(codes, minlength=groups.count)))

    def match(self, index: int) -> IntArray:
        """Return the data files that the delete file at this index applies to."""
        delete = self._deletes[index]
        if delete.file.kind == "equality":
            rows = self._same_partition(index)
            return rows[self._sequences[rows] < delete.sequence]
        if not self._same_spec:
            return np.empty(0, dtype=np.int64)
        if delete.target is not None:
            rows = self._targets[index : index + 1]
            rows = rows[rows >= 0].astype(np.int64)
        else:
            rows = self._within_path_bounds(self._same_partition(index), delete)
        return rows[self._sequences[rows] <= delete.sequence]

    def _same_partition(self, index: int) -> IntArray:
        """Return the data files of the partition of the delete file."""
        code = self._own[index]
        return self._order[self._starts[code] : self._starts[code + 1]]

    def _within_path_bounds(self, rows: IntArray, delete: _DeleteEntry) -> IntArray:
        """Return the data files whose paths lie within the path bounds of the delete file."""
        if delete.least is None or delete.greatest is None:
            return rows
        # Bounds may be truncated, so compare bytes.
        paths = self._paths.take(pa.array(rows)).cast(pa.binary())
        after = pc.greater_equal(paths, delete.least)
        before = pc.less_equal(paths, delete.greatest)
        allowed: IntArray = rows[pc.and_(after, before).to_numpy(zero_copy_only=False)]
        return allowed


def _sort_pairs(
    pairs: Sequence[tuple[IntArray, IntArray]], files: Sequence[IcebergDelete]
) -> tuple[IntArray, IntArray]:
    """Sort pairs by data file, without position deletes of files with a deletion vector."""
    rows = np.concatenate([rows for rows, _ in pairs])
    indices = np.concatenate([indices for _, indices in pairs])
    kinds = np.array([each.kind for each in files])[indices]
    replaced = (kinds == "position") & np.isin(rows, rows[kinds == "vector"])
    rows, indices = rows[~replaced], indices[~replaced]
    order = np.lexsort((indices, rows))
    return rows[order], indices[order]
