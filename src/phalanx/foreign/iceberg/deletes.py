"""Which delete files apply to which data files, by Iceberg's rules (spec: Scan Planning).

| | |
|---|---|
| position deletes | files of the same partition that are not newer, and that their paths allow |
| deletion vectors | the one file they name; position deletes of that file no longer count |
| equality deletes | older files of the same partition; of the table, if theirs has no fields |
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
    Entries,
)
from phalanx.model.schema.grouping import group
from phalanx.model.specs.spec import PartitionSpec
from phalanx.planning.rewrites.entries import BYTES, DELETES_TYPE, PATH, ROWS

Numbers = npt.NDArray[np.int64]
DeleteKind: TypeAlias = Literal["position", "vector", "equality"]


@dataclass(frozen=True, slots=True)
class IcebergDelete:
    """A delete file of one of three kinds; those by equality have the ids of the fields compared.

    `rows` is None where nobody knows how many rows of one data file it deletes.
    """

    kind: DeleteKind
    path: str
    bytes: int
    rows: int | None
    format: str
    equality_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Deletes:
    """The delete files of a snapshot, and for each data file of a spec those that apply to it."""

    files: tuple[IcebergDelete, ...]
    # For each spec the data files that have deletes and the places of these, in pairs.
    pairs: Mapping[int, tuple[Numbers, Numbers]]

    def lists(self, spec_id: int, count: int) -> pa.Array:
        """The deletes of each of the spec's data files, as a rewrite is planned from."""
        rows, places = self._pairs(spec_id)
        offsets = np.append(0, np.cumsum(np.bincount(rows, minlength=count)))
        kind = DELETES_TYPE.value_type
        values = pa.array(
            [{"path": each.path, "bytes": each.bytes, "rows": each.rows} for each in self.files],
            kind,
        )
        taken = values.take(pa.array(places))
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), taken).cast(DELETES_TYPE)

    def of(self, spec_id: int, count: int) -> list[tuple[IcebergDelete, ...]]:
        """The deletes of each of the spec's data files."""
        found: list[tuple[IcebergDelete, ...]] = [()] * count
        rows, places = self._pairs(spec_id)
        for row, place in zip(rows.tolist(), places.tolist(), strict=True):
            found[row] = (*found[row], self.files[place])
        return found

    def _pairs(self, spec_id: int) -> tuple[Numbers, Numbers]:
        nothing = np.empty(0, dtype=np.int64)
        return self.pairs.get(spec_id, (nothing, nothing))


def assigned(entries: Entries, specs: Mapping[int, PartitionSpec]) -> Deletes:
    """The delete files among the entries, each with the data files it applies to."""
    files: list[IcebergDelete] = []
    found: dict[int, list[tuple[Numbers, Numbers]]] = {}
    for spec_id, table in entries.deletes.items():
        first = len(files)
        known = list(_described(table))
        files += [each.file for each in known]
        targets = [spec_id] if specs[spec_id].fields else list(entries.data)
        for target in targets:
            data = entries.data.get(target)
            if data is None or not data.num_rows:
                continue
            matcher = _Matcher(data, table, known, specs[spec_id], same_spec=target == spec_id)
            for place in range(len(known)):
                rows = matcher.rows(place)
                if len(rows):
                    pair = rows, np.full(len(rows), first + place)
                    found.setdefault(target, []).append(pair)
    return Deletes(tuple(files), {spec: _sorted(pairs, files) for spec, pairs in found.items()})


@dataclass(frozen=True, slots=True)
class _Described:
    """A delete file, and what is known of the data files that it is about: one, or a range."""

    file: IcebergDelete
    sequence: int
    target: str | None = None
    least: bytes | None = None
    greatest: bytes | None = None


def _described(table: pa.Table) -> Iterator[_Described]:
    names = (PATH, BYTES, ROWS, FORMAT, SEQUENCE, CONTENT, EQUALITY_IDS, REFERENCED)
    bounds = (LEAST_PATH, GREATEST_PATH)
    columns = [table.column(name).to_pylist() for name in (*names, *bounds)]
    for path, size, rows, form, sequence, content, ids, named, low, high in zip(
        *columns, strict=True
    ):
        if content == DataFileContent.EQUALITY_DELETES:
            file = IcebergDelete("equality", path, size, None, form, tuple(ids or ()))
            yield _Described(file, sequence)
            continue
        target = named or (low.decode() if low is not None and low == high else None)
        kind: DeleteKind = "vector" if form == FileFormat.PUFFIN.value else "position"
        file = IcebergDelete(kind, path, size, None if target is None else rows, form)
        yield _Described(file, sequence, target, low, high)


class _Matcher:
    """Finds the data files of one spec that the delete files of one spec apply to."""

    def __init__(
        self,
        data: pa.Table,
        table: pa.Table,
        deletes: Sequence[_Described],
        spec: PartitionSpec,
        same_spec: bool,
    ) -> None:
        self._deletes = deletes
        self._same_spec = same_spec
        self._paths = data.column(PATH).combine_chunks()
        self._sequences: Numbers = data.column(SEQUENCE).to_numpy()
        targets = pa.array([each.target for each in deletes], pa.string())
        found = pc.index_in(targets, value_set=self._paths, skip_nulls=True)
        self._targets: Numbers = found.fill_null(-1).to_numpy()
        # The data files in the order of their partitions, and where each of those starts.
        self._own: Numbers = np.zeros(len(deletes), dtype=np.int64)
        self._order: Numbers = np.arange(data.num_rows)
        self._starts: Numbers = np.array([0, data.num_rows])
        if spec.fields:
            names = [field.field_id for field in spec.fields]
            values = pa.concat_tables([data.select(names), table.select(names)])
            groups = group(values, values.num_rows)
            codes, self._own = np.split(groups.codes, [data.num_rows])
            self._order = np.argsort(codes, kind="stable")
            self._starts = np.append(0, np.cumsum(np.bincount(codes, minlength=groups.count)))

    def rows(self, place: int) -> Numbers:
        """The data files that the delete file at this place applies to."""
        delete = self._deletes[place]
        if delete.file.kind == "equality":
            rows = self._together(place)
            return rows[self._sequences[rows] < delete.sequence]
        if not self._same_spec:
            return np.empty(0, dtype=np.int64)
        if delete.target is not None:
            rows = self._targets[place : place + 1]
            rows = rows[rows >= 0].astype(np.int64)
        else:
            rows = self._allowed(self._together(place), delete)
        return rows[self._sequences[rows] <= delete.sequence]

    def _together(self, place: int) -> Numbers:
        """The data files of the delete file's partition."""
        code = self._own[place]
        return self._order[self._starts[code] : self._starts[code + 1]]

    def _allowed(self, rows: Numbers, delete: _Described) -> Numbers:
        """Those whose paths lie within the paths in the delete file."""
        if delete.least is None or delete.greatest is None:
            return rows
        # Bounds may be cut: they are compared as bytes.
        paths = self._paths.take(pa.array(rows)).cast(pa.binary())
        after = pc.greater_equal(paths, delete.least)
        before = pc.less_equal(paths, delete.greatest)
        allowed: Numbers = rows[pc.and_(after, before).to_numpy(zero_copy_only=False)]
        return allowed


def _sorted(
    pairs: Sequence[tuple[Numbers, Numbers]], files: Sequence[IcebergDelete]
) -> tuple[Numbers, Numbers]:
    """The pairs by data file; where there is a deletion vector, position deletes do not count."""
    rows = np.concatenate([rows for rows, _ in pairs])
    places = np.concatenate([places for _, places in pairs])
    kinds = np.array([each.kind for each in files])[places]
    replaced = (kinds == "position") & np.isin(rows, rows[kinds == "vector"])
    rows, places = rows[~replaced], places[~replaced]
    order = np.lexsort((places, rows))
    return rows[order], places[order]
