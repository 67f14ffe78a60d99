"""Read sets: what the scans of a statement read, for conflict checks at its commit."""

from __future__ import annotations

import base64
import functools
import pickle
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql.datasource import WriterCommitMessage

from phalanx.model.predicates.predicate import Predicate
from phalanx.storage.commit.writing import ReadFootprint
from phalanx.storage.manifest.manifest import Manifest
from phalanx.storage.state.table_state import TableState
from phalanx.table.jobs.write_job import WriteJob
from phalanx.table.read.scan import plan_scan
from phalanx.table.write.operations import versions_of


@dataclass(slots=True)
class ReadSet(WriterCommitMessage):
    """The rows that a scan looked for: a predicate on one version of a table."""

    root: str
    version: int
    predicate: Predicate

    def to_base64(self) -> str:
        """Encode the read set for the Java classes, which pass it to the commit unchanged."""
        return base64.b64encode(pickle.dumps(self)).decode()


def pack_read_set(listing: TableState, predicate: Predicate) -> str | None:
    """Encode the read set of a scan; None for a layout without versions."""
    if not isinstance(listing, Manifest):
        return None
    return ReadSet(listing.root.uri, listing.version, predicate).to_base64()


def collect_reads(
    job: WriteJob, messages: Sequence[WriterCommitMessage | None]
) -> list[ReadFootprint]:
    """Return what a statement has read of the table that it writes to."""
    return [
        ReadFootprint(functools.partial(_leaf_versions, each.predicate), each.version)
        for each in messages
        if isinstance(each, ReadSet) and each.root == job.root.uri
    ]


def _leaf_versions(predicate: Predicate, now: TableState) -> dict[str, int | None]:
    return versions_of(plan_scan(now, predicate).leaves)
