"""An import of a table of an earlier draft into its own place: an upgrade, which copies nothing."""

from __future__ import annotations

from phalanx.model.schema.schema import Schema
from phalanx.planning.import_plan import (
    EXACT,
    REFUSED,
    Amount,
    ColumnMapping,
    FieldMapping,
    ImportPlan,
    SpecMapping,
)
from phalanx.table.hive_upgrade import UpgradePlan
from phalanx.table.import_sources import ImportSource
from phalanx.table.table import Table


def plan_upgrade(source: ImportSource, table: Table) -> ImportPlan:
    """What upgrading the table would change, as the plan of an import."""
    found = table.upgrade(dry_run=True)
    schema, spec = Schema.of(table.schema), table.spec
    if isinstance(found, UpgradePlan):
        fields = [FieldMapping(old, new, EXACT) for old, new in found.fields]
        label = found.spec.label(schema)
        gets = ", ".join(found.added_columns)
        notes = [f"each partition gets the columns of its path: {gets}"] if gets else []
    else:
        labels = [field.label(schema) for field in spec.fields]
        fields = [FieldMapping(each, each, EXACT) for each in labels]
        fields += [FieldMapping("the upgrade", None, REFUSED, why) for why in found.refused]
        label = spec.label(schema)
        notes = list(found.changes or ["it is of the newest format already"])
    nothing = Amount(0, 0, 0)
    return ImportPlan(
        source.system,
        source.place,
        source.state,
        table.uri,
        False,
        (),
        label,
        "source",
        (SpecMapping(spec.id, spec.label(schema), True, tuple(fields)),),
        tuple(ColumnMapping(each.name, str(each.type), str(each.type)) for each in table.schema),
        Amount.of(source.units),
        nothing,
        0,
        is_upgrade=True,
        notes=("no data is rewritten", *notes),
    )
