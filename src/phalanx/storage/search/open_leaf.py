"""A leaf that is being searched: its rows with their ids, and the rows that some ids stand for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from phalanx.model.best import RowIds
from phalanx.model.predicates.evaluation import matches
from phalanx.model.predicates.predicate import TRUE
from phalanx.model.predicates.rendering import to_lance
from phalanx.model.schema.rows import chosen_column, readable
from phalanx.model.schema.schema import Schema
from phalanx.storage.lance.scanning import batches_of, count_of, rows_at
from phalanx.storage.lance.schema import is_aligned
from phalanx.storage.lance.version_cache import known
from phalanx.storage.leaf.fields import fields_of
from phalanx.storage.leaf.path_values import check_stored, for_leaf
from phalanx.storage.leaf.reading import LeafScan, columns_read
from phalanx.storage.leaf.reconcile import reconciled

_ROW_ID = "_rowid"
# A leaf is small with so many rows.
_FEW_ROWS = 1 << 12
Mask = npt.NDArray[np.bool_]
Rows = TypeVar("Rows", pa.RecordBatch, pa.Table)


@dataclass(frozen=True, slots=True)
class OpenLeaf:
    """A version of a leaf, and which of its rows count. A row goes by Lance's row id."""

    scan: LeafScan
    dataset: lance.LanceDataset
    # Whether its columns can be read by their names.
    is_plain: bool
    # Columns that are read beside a searched one: in a small leaf that is quicker than to go back
    # for the rows that were found.
    beside: tuple[str, ...] = ()
    _read: list[tuple[RowIds, pa.RecordBatch]] = field(default_factory=list, repr=False)

    @classmethod
    def of(cls, scan: LeafScan, beside: tuple[str, ...] = ()) -> OpenLeaf:
        """Open the leaf of a scan."""
        dataset = scan.location.open_leaf(scan.version)
        if scan.path is not None:
            check_stored(dataset, scan.schema, scan.path.values, scan.location)
            return cls(scan, dataset, True)
        if beside and count_of(dataset) > _FEW_ROWS:
            beside = ()
        return cls(scan, dataset, _is_plain(dataset, scan.schema), beside)

    def searched(self, column: str) -> Iterator[tuple[pa.RecordBatch, RowIds]]:
        """A column of the rows that match, each batch with the rows' ids."""
        columns = list(dict.fromkeys([column, *self.beside]))
        for batch, ids in self.filtered(columns):
            if self.beside:
                self._read.append((ids, batch))
            yield batch, ids

    def filtered(
        self,
        columns: Sequence[str],
        fragments: Sequence[lance.LanceFragment] | None = None,
        *,
        all_rows: bool = False,
    ) -> Iterator[tuple[pa.RecordBatch, RowIds]]:
        """Some columns of the rows that match, or of all rows, each batch with the rows' ids."""
        predicate = TRUE if all_rows else self.scan.predicate
        path = self.scan.path
        if not self.is_plain:
            leaf = fields_of(self.dataset, self.scan.schema, self.scan.location)
            for batch in batches_of(self.dataset, fragments=fragments, with_row_id=True):
                rows = reconciled(batch, leaf, self.scan.schema)
                kept = matches(predicate, rows)
                ids = batch.column(_ROW_ID).filter(kept).to_numpy()
                yield _chosen(readable(rows).filter(kept), columns), ids
            return
        inner, rest = for_leaf(predicate, path)
        read = list(dict.fromkeys([*columns, *columns_read(rest, self.scan.schema)]))
        stored = read if path is None else [name for name in read if name not in path.values]
        found = batches_of(
            self.dataset,
            columns=stored,
            filter=None if inner == TRUE else to_lance(inner),
            fragments=fragments,
            with_row_id=True,
        )
        for batch in found:
            ids = batch.column(_ROW_ID)
            rows = batch if path is None else path.restored(batch, read)
            if rest != TRUE:
                kept = matches(rest, rows)
                rows, ids = readable(rows).filter(kept), ids.filter(kept)
            yield _chosen(rows, columns), ids.to_numpy()

    def matching(self, ids: RowIds) -> Mask:
        """Which of these rows match."""
        if self.scan.predicate == TRUE or not len(ids):
            return np.ones(len(ids), bool)
        rows = self.taken(ids, columns_read(self.scan.predicate, self.scan.schema))
        kept = matches(self.scan.predicate, rows.combine_chunks().to_batches()[0])
        found: Mask = kept.to_numpy(zero_copy_only=False)
        return found

    def taken(self, ids: RowIds, columns: Sequence[str]) -> pa.Table:
        """Some columns of the rows with these ids, in their order."""
        if self._read and (known := self._known(ids, columns)) is not None:
            return known
        path, wanted = self.scan.path, ids.tolist()
        if not self.is_plain:
            found = rows_at(self.dataset, wanted).combine_chunks().to_batches()
            leaf = fields_of(self.dataset, self.scan.schema, self.scan.location)
            rows = [reconciled(batch, leaf, self.scan.schema) for batch in found]
            return _chosen(pa.Table.from_batches(rows), columns)
        tops = list(dict.fromkeys(name.partition(".")[0] for name in columns))
        stored = [name for name in tops if path is None or name not in path.values]
        if not stored:
            # Only a path has them: any column tells how many rows there are.
            stored = [next(name for name in self.dataset.schema.names)]
        found = rows_at(self.dataset, wanted, stored)
        if path is None:
            return _chosen(found, columns)
        (batch,) = found.combine_chunks().to_batches()
        return _chosen(pa.Table.from_batches([path.restored(batch, tops)]), columns)

    def _known(self, ids: RowIds, columns: Sequence[str]) -> pa.Table | None:
        """The same from what was read; None if that is not all."""
        every = np.concatenate([ids for ids, _ in self._read])
        rows = pa.Table.from_batches([batch for _, batch in self._read])
        if not set(columns) <= set(rows.column_names) or not len(every):
            return None
        order = np.argsort(every)
        places = order[np.minimum(np.searchsorted(every, ids, sorter=order), len(every) - 1)]
        if (every[places] != ids).any():
            return None
        return rows.select(list(columns)).take(pa.array(places))


def _chosen(rows: Rows, columns: Sequence[str]) -> Rows:
    """These columns of some rows."""
    kind = type(rows)
    return kind.from_arrays([chosen_column(rows, name) for name in columns], names=list(columns))


def _is_plain(dataset: lance.LanceDataset, schema: Schema) -> bool:
    return known(dataset, schema, lambda: is_aligned(dataset, schema))
