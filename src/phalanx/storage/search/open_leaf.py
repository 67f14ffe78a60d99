"""A leaf that is being searched: its matching rows with their ids, and lookups by row id."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from phalanx.model.predicates.evaluation import match_rows
from phalanx.model.predicates.predicate import TRUE
from phalanx.model.predicates.rendering import to_lance
from phalanx.model.schema.rows import make_readable, select_column
from phalanx.model.schema.schema import Schema
from phalanx.model.search.ranking import RowIdArray
from phalanx.storage.lance.scanning import count_rows, scan_batches, take_rows
from phalanx.storage.lance.schema import is_aligned
from phalanx.storage.lance.version_cache import compute_once
from phalanx.storage.leaf.fields import resolve_fields
from phalanx.storage.leaf.path_values import check_stored_columns, split_for_leaf
from phalanx.storage.leaf.reading import LeafScan, list_read_columns
from phalanx.storage.leaf.reconcile import reconcile_batch

_ROW_ID = "_rowid"
# Leaves with at most this many rows count as small.
_SMALL_LEAF_ROWS = 1 << 12
_Mask = npt.NDArray[np.bool_]
_Rows = TypeVar("_Rows", pa.RecordBatch, pa.Table)


@dataclass(frozen=True, slots=True)
class OpenLeaf:
    """A version of a leaf and the filter of its rows. Rows are identified by Lance's row id."""

    scan: LeafScan
    dataset: lance.LanceDataset
    # Whether its columns can be read by name.
    is_plain: bool
    # Columns to read together with the searched one: faster in a small leaf than a later lookup
    # of the rows found.
    extra_columns: tuple[str, ...] = ()
    _read: list[tuple[RowIdArray, pa.RecordBatch]] = field(default_factory=list, repr=False)

    @classmethod
    def of(cls, scan: LeafScan, extra_columns: tuple[str, ...] = ()) -> OpenLeaf:
        """Open the leaf of a scan."""
        dataset = scan.location.open_leaf(scan.version)
        if scan.path is not None:
            check_stored_columns(dataset, scan.schema, scan.path.values, scan.location)
            return cls(scan, dataset, True)
        if extra_columns and count_rows(dataset) > _SMALL_LEAF_ROWS:
            extra_columns = ()
        return cls(scan, dataset, _is_plain(dataset, scan.schema), extra_columns)

    def read_searched(self, column: str) -> Iterator[tuple[pa.RecordBatch, RowIdArray]]:
        """Yield a column of the matching rows, each batch with the row ids."""
        columns = list(dict.fromkeys([column, *self.extra_columns]))
        for batch, ids in self.read_filtered(columns):
            if self.extra_columns:
                self._read.append((ids, batch))
            yield batch, ids

    def read_filtered(
        self,
        columns: Sequence[str],
        fragments: Sequence[lance.LanceFragment] | None = None,
        *,
        all_rows: bool = False,
    ) -> Iterator[tuple[pa.RecordBatch, RowIdArray]]:
        """Yield some columns of the matching rows, or of all rows, with the row ids."""
        predicate = TRUE if all_rows else self.scan.predicate
        path = self.scan.path
        if not self.is_plain:
            leaf = resolve_fields(self.dataset, self.scan.schema, self.scan.location)
            for batch in scan_batches(self.dataset, fragments=fragments, with_row_id=True):
                rows = reconcile_batch(batch, leaf, self.scan.schema)
                kept = match_rows(predicate, rows)
                ids = batch.column(_ROW_ID).filter(kept).to_numpy()
                yield _select_columns(make_readable(rows).filter(kept), columns), ids
            return
        inner, rest = split_for_leaf(predicate, path)
        read = list(dict.fromkeys([*columns, *list_read_columns(rest, self.scan.schema)]))
        stored = read if path is None else [name for name in read if name not in path.values]
        found = scan_batches(
            self.dataset,
            columns=stored,
            filter=None if inner == TRUE else to_lance(inner),
            fragments=fragments,
            with_row_id=True,
        )
        for batch in found:
            ids = batch.column(_ROW_ID)
            rows = batch if path is None else path.restore_columns(batch, read)
            if rest != TRUE:
                kept = match_rows(rest, rows)
                rows, ids = make_readable(rows).filter(kept), ids.filter(kept)
            yield _select_columns(rows, columns), ids.to_numpy()

    def match_rows(self, ids: RowIdArray) -> _Mask:
        """Return a mask of those of these rows that match."""
        if self.scan.predicate == TRUE or not len(ids):
            return np.ones(len(ids), bool)
        rows = self.take(ids, list_read_columns(self.scan.predicate, self.scan.schema))
        kept = match_rows(self.scan.predicate, rows.combine_chunks().to_batches()[0])
        found: _Mask = kept.to_numpy(zero_copy_only=False)
        return found

    def take(self, ids: RowIdArray, columns: Sequence[str]) -> pa.Table:
        """Return some columns of the rows with these ids, in their order."""
        if self._read and (known := self._take_cached(ids, columns)) is not None:
            return known
        path, wanted = self.scan.path, ids.tolist()
        if not self.is_plain:
            found = take_rows(self.dataset, wanted).combine_chunks().to_batches()
            leaf = resolve_fields(self.dataset, self.scan.schema, self.scan.location)
            rows = [reconcile_batch(batch, leaf, self.scan.schema) for batch in found]
            return _select_columns(pa.Table.from_batches(rows), columns)
        tops = list(dict.fromkeys(name.partition(".")[0] for name in columns))
        stored = [name for name in tops if path is None or name not in path.values]
        if not stored:
            # All columns are in the path: read any column for the number of rows.
            stored = [next(name for name in self.dataset.schema.names)]
        found = take_rows(self.dataset, wanted, stored)
        if path is None:
            return _select_columns(found, columns)
        (batch,) = found.combine_chunks().to_batches()
        return _select_columns(pa.Table.from_batches([path.restore_columns(batch, tops)]), columns)

    def _take_cached(self, ids: RowIdArray, columns: Sequence[str]) -> pa.Table | None:
        """Like `take`, from batches already read; None if they lack some rows or columns."""
        every = np.concatenate([ids for ids, _ in self._read])
        rows = pa.Table.from_batches([batch for _, batch in self._read])
        if not set(columns) <= set(rows.column_names) or not len(every):
            return None
        order = np.argsort(every)
        positions = order[np.minimum(np.searchsorted(every, ids, sorter=order), len(every) - 1)]
        if (every[positions] != ids).any():
            return None
        return rows.select(list(columns)).take(pa.array(positions))


def _select_columns(rows: _Rows, columns: Sequence[str]) -> _Rows:
    """Return these columns of the rows."""
    kind = type(rows)
    return kind.from_arrays([select_column(rows, name) for name in columns], names=list(columns))


def _is_plain(dataset: lance.LanceDataset, schema: Schema) -> bool:
    return compute_once(dataset, schema, lambda: is_aligned(dataset, schema))
