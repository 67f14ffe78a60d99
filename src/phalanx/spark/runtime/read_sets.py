"""What a statement has read of the table that it writes to, from its scans to its commit."""

from __future__ import annotations

import base64
import functools
import pickle
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql.datasource import WriterCommitMessage

from phalanx.model.predicates.predicate import Predicate
from phalanx.storage.commit.writing import Reading
from phalanx.storage.manifest.manifest import Manifest
from phalanx.storage.state.table_state import LeafListing
from phalanx.table.jobs.write_job import WriteJob
from phalanx.table.read.scan import plan_of
from phalanx.table.write.operations import versions_of


@dataclass(slots=True)
class RowsLooked(WriterCommitMessage):
    """What a scan tells the driver: of which table and version it has looked for which rows."""

    root: str
    version: int
    predicate: Predicate

    def packed(self) -> str:
        """For the classes in Java, which hand it to the commit as it is."""
        return base64.b64encode(pickle.dumps(self)).decode()


def looked(listing: LeafListing, predicate: Predicate) -> str | None:
    """What is to be told of a read; None where nothing tells one version from another."""
    if not isinstance(listing, Manifest):
        return None
    return RowsLooked(listing.root.uri, listing.version, predicate).packed()


def readings(job: WriteJob, messages: Sequence[WriterCommitMessage | None]) -> list[Reading]:
    """What a statement has read of the table that it writes to."""
    return [
        Reading(functools.partial(_planned, each.predicate), each.version)
        for each in messages
        if isinstance(each, RowsLooked) and each.root == job.root.uri
    ]


def _planned(predicate: Predicate, now: LeafListing) -> dict[str, int | None]:
    return versions_of(plan_of(now, predicate).leaves)
