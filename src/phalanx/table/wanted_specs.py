"""What `partition_by` means for a table that is there, whatever its layout."""

from __future__ import annotations

from phalanx.model.schema.schema import Schema
from phalanx.model.specs.evolution import next_spec
from phalanx.model.specs.hive_properties import HiveProperties
from phalanx.model.specs.partition_by import PartitionBy
from phalanx.model.specs.spec import PartitionSpec
from phalanx.storage.state.properties import EXPRESSIONS
from phalanx.table.table import Table


def wanted_spec(table: Table, partition_by: PartitionBy) -> PartitionSpec:
    """The spec that a table of this layout would have: buckets of drafts are their own."""
    if table.layout == "hive":
        return HiveProperties.of(table.schema, partition_by).spec
    known = Schema.of(table.schema)
    return next_spec(partition_by, known, table.specs, drafted=table.layout == EXPRESSIONS)
