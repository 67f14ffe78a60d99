"""How a version of a Lance table is committed, with what Phalanx keeps beside it."""

from __future__ import annotations

from typing import Any

import lance
from lance import LanceDataset, LanceOperation

from phalanx.storage.lance.checksums import record_commit
from phalanx.storage.lance.location import Location


def commit(
    location: Location,
    dataset: lance.LanceDataset,
    operation: LanceOperation.BaseOperation,
    **how: Any,
) -> lance.LanceDataset:
    """What an operation makes of a version; the checksums of its new files stand after it."""
    committed = LanceDataset.commit(
        dataset, operation, read_version=dataset.version, **how, **location.write_options
    )
    record_commit(location, dataset, committed)
    return committed
