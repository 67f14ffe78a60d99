"""The plan of a scan: which leaves to read, what is left to filter there, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa

from phalanx.model.locations import resolved
from phalanx.model.predicates.predicate import TRUE, Predicate
from phalanx.model.predicates.rendering import summary, to_datafusion
from phalanx.model.specs.partition_key import PartitionKey, json_value, plain_values
from phalanx.planning.pruning.projection import Reason, SpecProjection
from phalanx.planning.pruning.prune import Pruning
from phalanx.planning.pruning.residual import Residuals

# A leaf in a plan has these columns, then its partition values.
# No field id has a dot in it.
OBJECT_ID, LOCATION, READ_VERSION = ".object_id", ".location", ".read_version"
# Where the manifest has the row that lists it.
ROW_ADDRESS = ".row_address"
LEAF_COLUMNS = (OBJECT_ID, LOCATION, READ_VERSION, ROW_ADDRESS)


def located(leaves: pa.Table) -> Iterator[tuple[str, int | None]]:
    """Where each leaf is, and which version of it to read (None: the newest)."""
    locations, versions = leaves.column(LOCATION), leaves.column(READ_VERSION)
    return zip(locations.to_pylist(), versions.to_pylist(), strict=True)


@dataclass(frozen=True, slots=True)
class PlannedPartition:
    """A leaf to read: at which version (None: the newest), and what the scan has to filter."""

    key: PartitionKey
    location: str
    version: int | None
    residual: str | None


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of data files: of the planned leaves, and of all; None where nobody counted."""

    planned: int
    total: int | None


@dataclass(frozen=True, eq=False)
class ScanPlan:
    """The leaves that a predicate needs, in the order in which they are read.

    `leaves` has a table for each spec, `residuals` what is left to filter in each of its leaves.
    The sizes are measured when the plan is shown: that opens leaves, and a scan should not.
    """

    root: str
    pruning: Pruning
    labels: Mapping[int, str]
    leaves: Mapping[int, pa.Table]
    residuals: Mapping[int, Residuals]
    total_partitions: int
    measure: Callable[[], Sizes] | None = field(default=None, repr=False)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ScanPlan):
            return NotImplemented
        return self._contents == other._contents

    def __hash__(self) -> int:
        return hash(self._contents)

    @cached_property
    def _contents(self) -> tuple[object, ...]:
        """What makes two plans the same: the leaves, what is filtered in them, and the reasons."""
        return self.root, str(self.pruning), self.total_partitions, self.partitions

    def __getstate__(self) -> dict[str, Any]:
        # What is shipped to an executor is read there, not shown.
        return {**self.__dict__, "measure": None}

    @cached_property
    def partitions(self) -> tuple[PlannedPartition, ...]:
        """The planned leaves: spec by spec, in the order of their values, NULL last."""
        return tuple(self._partitions())

    def _partitions(self) -> Iterator[PlannedPartition]:
        for spec in self.pruning.specs:
            leaves = self.leaves[spec.spec_id]
            residuals = self.residuals[spec.spec_id]
            texts = [None if each == TRUE else to_datafusion(each) for each in residuals.predicates]
            keys = leaves.columns[len(LEAF_COLUMNS) :]
            columns = [
                plain_values(column)
                for column in (leaves.column(LOCATION), leaves.column(READ_VERSION), *keys)
            ]
            for place, (location, version, *values) in enumerate(zip(*columns, strict=True)):
                key = PartitionKey(spec.spec_id, tuple(values))
                residual = texts[residuals.places[place]]
                yield PlannedPartition(key, self.uri_of(location), version, residual)

    def uri_of(self, location: str) -> str:
        """Where a leaf is, from the location that the manifest has of it."""
        return resolved(self.root, location)

    @property
    def predicate(self) -> Predicate:
        """What a row must satisfy."""
        return self.pruning.predicate

    @property
    def planned(self) -> int:
        """How many leaves are to be read."""
        return sum(leaves.num_rows for leaves in self.leaves.values())

    @property
    def fail_open(self) -> tuple[Reason, ...]:
        """The conditions on partition sources that could not prune, in the specs that kept any."""
        return tuple(reason for spec in self.pruning.specs for reason in spec.fail_open)

    @cached_property
    def sizes(self) -> Sizes | None:
        """The bytes of the planned leaves and of all leaves."""
        return None if self.measure is None else self.measure()

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON has it; versions as text, because they have 64 bits."""
        return {
            "root": self.root,
            "where": summary(self.predicate),
            "scanned_partitions": self.planned,
            "total_partitions": self.total_partitions,
            "scanned_bytes": self.sizes.planned if self.sizes else None,
            "total_bytes": self.sizes.total if self.sizes else None,
            "manifest_filter": self.pruning.manifest_filter,
            "specs": [self._spec_dict(spec) for spec in self.pruning.specs],
            "fail_open": [reason.condition for reason in self.fail_open],
            "partitions": [
                {
                    "spec_id": partition.key.spec_id,
                    "values": {
                        name: json_value(value)
                        for name, value in zip(
                            self.leaves[partition.key.spec_id].column_names[len(LEAF_COLUMNS) :],
                            partition.key.values,
                            strict=True,
                        )
                    },
                    "location": partition.location,
                    "version": None if partition.version is None else str(partition.version),
                    "residual": partition.residual,
                }
                for partition in self.partitions
            ],
        }

    def _spec_dict(self, spec: SpecProjection) -> dict[str, Any]:
        return {
            "spec_id": spec.spec_id,
            "partition_by": self.labels[spec.spec_id],
            "scanned_partitions": self.leaves[spec.spec_id].num_rows,
            "filter": summary(spec.filter),
            "residual": None if spec.residual == TRUE else summary(spec.residual),
            "conditions": [
                {
                    "condition": reason.condition,
                    "pushed": reason.pushed,
                    "stays_for_the_scan": not reason.exact,
                    "why": reason.why or None,
                }
                for reason in spec.reasons
            ],
        }

    def __str__(self) -> str:
        lines = [
            f"where {summary(self.predicate)}",
            f"reads {self.planned:,} of {counted(self.total_partitions, 'partition')}"
            + _shown_sizes(self.sizes),
        ]
        for spec in self.pruning.specs:
            kept = counted(self.leaves[spec.spec_id].num_rows, "partition")
            lines += [
                "",
                f"spec v{spec.spec_id} by {self.labels[spec.spec_id] or 'nothing'}: reads {kept}",
            ]
            for reason in spec.reasons:
                lines.append(f"  {reason.condition}")
                lines.append(f"    prunes by {reason.pushed or 'nothing, taken by itself'}")
                if not reason.exact:
                    lines.append(f"    stays for the scan: {reason.why}")
        return "\n".join([*lines, "", f"manifest filter: {self.pruning.manifest_filter}"])


def counted(number: int, noun: str) -> str:
    """So many of a thing, in words."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _shown_sizes(sizes: Sizes | None) -> str:
    if sizes is None:
        return ""
    if sizes.total is None:
        return f", {readable(sizes.planned)} (the bytes of so many partitions are not counted)"
    return f", {readable(sizes.planned)} of {readable(sizes.total)}"


def readable(size: int) -> str:
    """A number of bytes as people write it."""
    if size < 1000:
        return f"{size} bytes"
    step = min((len(str(size)) - 1) // 3, 4)
    return f"{size / 1000**step:.1f} {('', 'kB', 'MB', 'GB', 'TB')[step]}"
