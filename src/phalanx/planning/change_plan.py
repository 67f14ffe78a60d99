"""The plan of a change feed: the changes of leaves to read, snapshot by snapshot."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import Any

from phalanx.model.specs.partition_key import PartitionKey, to_json_value
from phalanx.planning.formatting import format_count

# The text of a plan names at most this many partitions of a snapshot.
_MAX_NAMED = 5


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """A partition that a snapshot changed.

    Attributes:
        snapshot: The id of the snapshot.
        operation: What the snapshot did to the partition, such as "append".
        key: The spec and the partition values.
        location: The path or URI of the partition.
        before: The version before the snapshot; None: the snapshot created the partition.
        after: The version after the snapshot; None: the snapshot dropped the partition.
        residual: The filter that remains to be applied to the rows; None: all rows match.
    """

    snapshot: int
    operation: str
    key: PartitionKey
    location: str
    before: int | None
    after: int | None
    residual: str | None


@dataclass(frozen=True, slots=True)
class ChangePlan:
    """The changes of partitions to read, snapshot by snapshot.

    Attributes:
        root: The path or URI of the table.
        from_snapshot: The id of the snapshot whose later changes are read; 0: all.
        to_snapshot: The id of the last snapshot that is read.
        where: The predicate as text.
        changes: The changes to read.
        total: The number of changes of partitions before pruning, by snapshots that changed rows.
    """

    root: str
    from_snapshot: int
    to_snapshot: int
    where: str
    changes: tuple[PlannedChange, ...]
    total: int

    def to_dict(self) -> dict[str, Any]:
        """Return the plan for JSON; versions are text, because they have 64 bits."""
        return {
            "root": self.root,
            "from_snapshot": self.from_snapshot,
            "to_snapshot": self.to_snapshot,
            "where": self.where,
            "read_changes": len(self.changes),
            "total_changes": self.total,
            "changes": [
                {
                    "snapshot": each.snapshot,
                    "operation": each.operation,
                    "spec_id": each.key.spec_id,
                    "values": [to_json_value(value) for value in each.key.values],
                    "location": each.location,
                    "before": None if each.before is None else str(each.before),
                    "after": None if each.after is None else str(each.after),
                    "residual": each.residual,
                }
                for each in self.changes
            ],
        }

    def __str__(self) -> str:
        lines = [
            f"changes from snapshot {self.from_snapshot} to {self.to_snapshot}",
            f"where {self.where}",
            f"reads {len(self.changes):,} of {format_count(self.total, 'changed partition')}",
        ]
        for number, group in groupby(self.changes, lambda each: each.snapshot):
            changes = list(group)
            keys = [f"v{each.key.spec_id}{each.key.values}" for each in changes[:_MAX_NAMED]]
            more = ", …" if len(changes) > _MAX_NAMED else ""
            operations = "+".join(dict.fromkeys(each.operation for each in changes))
            lines.append(f"  snapshot {number} ({operations}): {', '.join(keys)}{more}")
        return "\n".join(lines)
