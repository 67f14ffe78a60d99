"""Where pyiceberg cannot rewrite an Iceberg table safely: said before anything is written."""

from __future__ import annotations

from collections.abc import Iterator

from pyiceberg.table import StaticTable
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER_ID
from pyiceberg.transforms import UnknownTransform, VoidTransform

from phalanx.errors import PhalanxError
from phalanx.foreign.file_systems import is_inside
from phalanx.foreign.iceberg.schema import transform_text
from phalanx.foreign.iceberg.state import IcebergState
from phalanx.model.transforms.iceberg import Unevaluable
from phalanx.planning.rewrites.plan import RewritePlan

_WRITABLE_VERSIONS = (1, 2)


def refuse_unsafe(state: IcebergState, plan: RewritePlan) -> None:
    """Raise with the first reason against the rewrite."""
    for reason in _reasons(state, plan):
        raise PhalanxError(f"Cannot rewrite files of the Iceberg table {state.name}: {reason}")


def _reasons(state: IcebergState, plan: RewritePlan) -> Iterator[str]:
    metadata = state.metadata
    if isinstance(state.iceberg, StaticTable):
        yield "it was opened without a catalog. Load it from its catalog."
    if metadata.format_version not in _WRITABLE_VERSIONS:
        yield (
            f"it has format version {metadata.format_version}, and pyiceberg writes versions "
            f"{' and '.join(map(str, _WRITABLE_VERSIONS))}; the ids of its rows would be lost."
        )
    if metadata.default_sort_order_id != UNSORTED_SORT_ORDER_ID:
        order = state.iceberg.sort_order()
        yield f"it is sorted ({order}), and pyiceberg would write the rows unsorted."
    written = metadata.properties.get("write.format.default", "parquet").lower()
    if written != "parquet":
        yield f"its property write.format.default is {written}, and pyiceberg writes only parquet."
    places = load_location_provider(metadata.location, metadata.properties)
    for place in (places.new_data_location("new"), places.new_metadata_location("new")):
        if not state.trusts_locations and not is_inside(place, state.folder):
            yield (
                f"its new files would be written to {place}, outside of its folder {state.folder}. "
                "Open it with trust_locations=True if you trust who wrote the table."
            )
    current = metadata.default_spec_id
    used = dict.fromkeys([current, *(group.key.spec_id for group in plan.groups)])
    for spec_id in used:
        yield from _against_spec(state, spec_id)


def _against_spec(state: IcebergState, spec_id: int) -> Iterator[str]:
    specs = state.metadata.specs()
    if spec_id not in specs:
        yield f"the plan has files of spec {spec_id}, which the table does not define."
        return
    ours = state.specs[spec_id].fields
    columns = state.iceberg.metadata.schema().field_ids
    for field, own in zip(specs[spec_id].fields, ours, strict=True):
        if isinstance(field.transform, VoidTransform):
            continue
        what = f"field {field.name!r} of spec {spec_id}, {transform_text(field.transform)}, "
        if isinstance(field.transform, UnknownTransform) or isinstance(own.derivation, Unevaluable):
            yield what + "cannot be evaluated."
        if field.source_id not in columns:
            yield (
                what + "comes from a column that was dropped, and pyiceberg would forget the "
                "partition values of the files beside those that are rewritten."
            )
