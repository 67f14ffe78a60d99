"""The plan of a scan: the leaves to read, the residual filter of each, and the reasons."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa

from phalanx.model.locations import display_location
from phalanx.model.predicates.predicate import TRUE, Predicate
from phalanx.model.predicates.rendering import summarize, to_datafusion
from phalanx.model.specs.partition_key import PartitionKey, to_json_value, to_python_values
from phalanx.planning.formatting import format_bytes, format_count
from phalanx.planning.pruning.leaf_columns import LEAF_COLUMNS, LEAF_LOCATION, LEAF_VERSION
from phalanx.planning.pruning.projection import Reason, SpecProjection
from phalanx.planning.pruning.prune import Pruning
from phalanx.planning.pruning.residual import Residuals


@dataclass(frozen=True, slots=True)
class PlannedPartition:
    """A partition to read.

    Attributes:
        key: The spec and the partition values.
        location: The path or URI of the partition.
        version: The version to read; None: the newest.
        residual: The filter that remains to be applied to the rows; None: all rows match.
    """

    key: PartitionKey
    location: str
    version: int | None
    residual: str | None


@dataclass(frozen=True, slots=True)
class ScanSizes:
    """The bytes of data files.

    Attributes:
        scanned: The bytes of the files to scan.
        total: The bytes of all files; None if they are not counted.
    """

    scanned: int
    total: int | None


@dataclass(frozen=True, eq=False)
class ScanPlan:
    """The partitions that a predicate needs, in the order in which they are read.

    Internal: `pruning`, `residuals` and `measure`.

    Attributes:
        root: The path or URI of the table.
        labels: The fields of each spec as text, by spec id.
        leaves: A table for each spec id, with a row for each partition to read.
        total_partitions: The number of all partitions.
    """

    root: str
    pruning: Pruning
    labels: Mapping[int, str]
    leaves: Mapping[int, pa.Table]
    residuals: Mapping[int, Residuals]
    total_partitions: int
    measure: Callable[[], ScanSizes] | None = field(default=None, repr=False)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ScanPlan):
            return NotImplemented
        return self._contents == other._contents

    def __hash__(self) -> int:
        return hash(self._contents)

    @cached_property
    def _contents(self) -> tuple[object, ...]:
        """The values that plans are compared by: the leaves, residuals and reasons."""
        return self.root, str(self.pruning), self.total_partitions, self.partitions

    def __getstate__(self) -> dict[str, Any]:
        # Executors only use the plan to read, and do not show it.
        return {**self.__dict__, "measure": None}

    @cached_property
    def partitions(self) -> tuple[PlannedPartition, ...]:
        """The leaves to read: spec by spec, in the order of their values, NULL last."""
        return tuple(self._list_partitions())

    def _list_partitions(self) -> Iterator[PlannedPartition]:
        for spec in self.pruning.specs:
            leaves = self.leaves[spec.spec_id]
            residuals = self.residuals[spec.spec_id]
            texts = [None if each == TRUE else to_datafusion(each) for each in residuals.predicates]
            keys = leaves.columns[len(LEAF_COLUMNS) :]
            columns = [
                to_python_values(column)
                for column in (leaves.column(LEAF_LOCATION), leaves.column(LEAF_VERSION), *keys)
            ]
            for position, (location, version, *values) in enumerate(zip(*columns, strict=True)):
                key = PartitionKey(spec.spec_id, tuple(values))
                residual = texts[residuals.indices[position]]
                yield PlannedPartition(key, self.uri_of(location), version, residual)

    def uri_of(self, location: str) -> str:
        """Return the URI of a leaf from its location in the manifest."""
        return display_location(self.root, location)

    @property
    def predicate(self) -> Predicate:
        """Internal: the predicate that rows must satisfy."""
        return self.pruning.predicate

    @property
    def scanned_partitions(self) -> int:
        """The number of leaves to read."""
        return sum(leaves.num_rows for leaves in self.leaves.values())

    @property
    def fail_open(self) -> tuple[Reason, ...]:
        """The conditions on partition sources that could not prune, in the specs of this plan."""
        return tuple(reason for spec in self.pruning.specs for reason in spec.fail_open)

    @cached_property
    def sizes(self) -> ScanSizes | None:
        """The bytes of the leaves to read and of all leaves."""
        return None if self.measure is None else self.measure()

    def to_dict(self) -> dict[str, Any]:
        """Return the plan for JSON; versions are text, because they have 64 bits."""
        return {
            "root": self.root,
            "where": summarize(self.predicate),
            "scanned_partitions": self.scanned_partitions,
            "total_partitions": self.total_partitions,
            "scanned_bytes": self.sizes.scanned if self.sizes else None,
            "total_bytes": self.sizes.total if self.sizes else None,
            "manifest_filter": self.pruning.manifest_filter,
            "specs": [self._spec_dict(spec) for spec in self.pruning.specs],
            "fail_open": [reason.condition for reason in self.fail_open],
            "partitions": [
                {
                    "spec_id": partition.key.spec_id,
                    "values": {
                        name: to_json_value(value)
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
            "filter": summarize(spec.filter),
            "residual": None if spec.residual == TRUE else summarize(spec.residual),
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
        total = format_count(self.total_partitions, "partition")
        lines = [
            f"where {summarize(self.predicate)}",
            f"reads {self.scanned_partitions:,} of {total}{_format_sizes(self.sizes)}",
        ]
        for spec in self.pruning.specs:
            kept = format_count(self.leaves[spec.spec_id].num_rows, "partition")
            lines += [
                "",
                f"spec v{spec.spec_id} by {self.labels[spec.spec_id] or 'nothing'}: reads {kept}",
            ]
            for reason in spec.reasons:
                lines.append(f"  {reason.condition}")
                lines.append(f"    prunes by {reason.pushed or 'nothing, taken by itself'}")
                if not reason.exact:
                    lines.append(f"    is left to the scan: {reason.why}")
        return "\n".join([*lines, "", f"manifest filter: {self.pruning.manifest_filter}"])


def _format_sizes(sizes: ScanSizes | None) -> str:
    if sizes is None:
        return ""
    if sizes.total is None:
        return f", {format_bytes(sizes.scanned)} (bytes are not counted for this many partitions)"
    return f", {format_bytes(sizes.scanned)} of {format_bytes(sizes.total)}"
