"""Reads of Lance tables; every error names the table's location."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import lance
import pyarrow as pa

from phalanx.storage.lance.failures import read_each, translate_read_errors


def scan_batches(dataset: lance.LanceDataset, **options: Any) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a scan; the options are those of Lance's scanner."""
    what = f"read {dataset.uri}"
    with translate_read_errors(what):
        batches = dataset.scanner(**options).to_batches()
    yield from read_each(batches, what)


def scan_table(dataset: lance.LanceDataset, **options: Any) -> pa.Table:
    """Read a scan as one table; the options are those of Lance's scanner."""
    with translate_read_errors(f"read {dataset.uri}"):
        return dataset.scanner(**options).to_table()


def count_rows(dataset: lance.LanceDataset, condition: str | None = None) -> int:
    """Count the rows, or those that satisfy a condition."""
    with translate_read_errors(f"count the rows of {dataset.uri}"):
        return int(dataset.count_rows(condition))


def take_rows(
    dataset: lance.LanceDataset, ids: list[int], columns: list[str] | None = None
) -> pa.Table:
    """Return the rows with these ids, in their order."""
    with translate_read_errors(f"read {dataset.uri}"):
        return dataset._take_rows(ids, columns)
