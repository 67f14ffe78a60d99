"""How every Lance table is read: whatever goes wrong is told with the table's place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import lance
import pyarrow as pa

from phalanx.storage.lance.failures import reading, reading_each


def batches_of(dataset: lance.LanceDataset, **options: Any) -> Iterator[pa.RecordBatch]:
    """The batches of a scan as they come; the options are those of Lance's scanner."""
    what = f"read {dataset.uri}"
    with reading(what):
        batches = dataset.scanner(**options).to_batches()
    yield from reading_each(batches, what)


def table_of(dataset: lance.LanceDataset, **options: Any) -> pa.Table:
    """The same at once."""
    with reading(f"read {dataset.uri}"):
        return dataset.scanner(**options).to_table()


def count_of(dataset: lance.LanceDataset, condition: str | None = None) -> int:
    """How many rows there are (that satisfy a condition)."""
    with reading(f"count the rows of {dataset.uri}"):
        return int(dataset.count_rows(condition))


def rows_at(
    dataset: lance.LanceDataset, ids: list[int], columns: list[str] | None = None
) -> pa.Table:
    """The rows with these ids, in their order."""
    with reading(f"read {dataset.uri}"):
        return dataset._take_rows(ids, columns)
