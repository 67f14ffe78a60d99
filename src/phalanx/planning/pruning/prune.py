"""Build one manifest filter from a predicate and all specs (format: Partition Pruning, Appendix D).

Pruning is sound: a partition is dropped only if none of its rows can match. A condition that cannot
be projected keeps all partitions and records the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from phalanx.model.predicates.predicate import In, Like, Predicate, all_of, any_of
from phalanx.model.predicates.rendering import summarize, to_lance
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.spec import PartitionSpec
from phalanx.model.sql.syntax import Column
from phalanx.planning.pruning.projection import SpecProjection, project_on_spec

_IS_TABLE = In(Column(("object_type",)), pa.array(["table"]))
_OBJECT_ID = Column(("object_id",))


@dataclass(frozen=True, slots=True)
class Pruning:
    """A predicate projected on every spec."""

    predicate: Predicate
    specs: tuple[SpecProjection, ...]

    @property
    def manifest_filter(self) -> str:
        """The filter on `__manifest` that finds the partition tables to read (Appendix D)."""
        kept = any_of(
            all_of((Like(_OBJECT_ID, f"v{spec.spec_id}$%"), spec.filter)) for spec in self.specs
        )
        return to_lance(all_of((_IS_TABLE, kept)))

    def __str__(self) -> str:
        lines = [f"where {summarize(self.predicate)}"]
        for spec in self.specs:
            lines.append(f"spec v{spec.spec_id}: {summarize(spec.filter)}")
            for reason in spec.reasons:
                lines.append(f"  {reason.condition}")
                lines.append(f"    pruned by {reason.pushed or 'nothing, taken by itself'}")
                if not reason.exact:
                    lines.append(f"    is left to the scan: {reason.why}")
        return "\n".join(lines)


def prune(predicate: Predicate, specs: Mapping[int, PartitionSpec], schema: Schema) -> Pruning:
    """Project the predicate on every spec."""
    return Pruning(
        predicate,
        tuple(project_on_spec(predicate, spec, schema) for _, spec in sorted(specs.items())),
    )
