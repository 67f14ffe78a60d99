"""Run a rewrite plan on an Iceberg table: replace each group of files in one snapshot.

Rows are read with their deletes applied and written under the table's current schema and spec. A
snapshot is committed only if the files of the group are still in the table with exactly the deletes
that were applied. Appends and rewrites of other files do not conflict.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.manifest import DataFile
from pyiceberg.table import StaticTable
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER_ID
from pyiceberg.transforms import UnknownTransform, VoidTransform

from phalanx.errors import CommitConflict, PhalanxError, StorageFailure, UnknownOutcome
from phalanx.foreign.file_systems import is_inside
from phalanx.foreign.iceberg.deletes import assign_deletes
from phalanx.foreign.iceberg.manifests import MANIFEST, ManifestEntries
from phalanx.foreign.iceberg.rows import IcebergUnit, make_units
from phalanx.foreign.iceberg.schema import transform_text
from phalanx.foreign.iceberg.state import IcebergState
from phalanx.foreign.iceberg.writing import NewFiles, replace_files
from phalanx.model.predicates.predicate import FALSE, TRUE, Predicate, all_of, one_of
from phalanx.model.specs.partition_key import PartitionKey
from phalanx.model.specs.spec import PartitionSpec
from phalanx.model.sql.syntax import Column
from phalanx.model.transforms.iceberg import Unevaluable
from phalanx.planning.formatting import format_bytes, format_count
from phalanx.planning.rewrites.entries import FILE_PATH
from phalanx.planning.rewrites.plan import RewriteGroup, RewritePlan

_LOGGER = logging.getLogger("phalanx.foreign")
_WRITABLE_VERSIONS = (1, 2)
# Each attempt reads the table again, which takes longer than an append by another writer.
_MAX_ATTEMPTS = 20


@dataclass(frozen=True, slots=True)
class IcebergRewritten:
    """The result of a rewrite.

    Attributes:
        plan: The plan.
        files_before: The number of files that were replaced.
        files_after: The number of files that replace them.
        bytes_before: The size of the files that were replaced.
        bytes_after: The size of the files that replace them.
        rows: The number of rows in the new files.
        snapshots: The ids of the snapshots committed, in order.
    """

    plan: RewritePlan
    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    rows: int = 0
    snapshots: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON values; ids are text, because they have 64 bits."""
        return {
            "groups": len(self.snapshots),
            "files_before": self.files_before,
            "files_after": self.files_after,
            "bytes_before": self.bytes_before,
            "bytes_after": self.bytes_after,
            "rows": self.rows,
            "snapshots": [str(each) for each in self.snapshots],
        }

    def __str__(self) -> str:
        return (
            f"{format_count(self.files_before, 'file')}, {format_bytes(self.bytes_before)}, became "
            f"{format_count(self.files_after, 'file')}, {format_bytes(self.bytes_after)}, with "
            f"{format_count(self.rows, 'row')}, in {format_count(len(self.snapshots), 'snapshot')}"
        )


def rewrite(state: IcebergState, plan: RewritePlan) -> IcebergRewritten:
    """Rewrite all groups of the plan, one after another."""
    _check_rewritable(state, plan)
    done = IcebergRewritten(plan)
    for group in plan.groups:
        try:
            done = _rewrite_group(state, plan, group, done)
        except CommitConflict as conflict:
            before = format_count(len(done.snapshots), "group")
            raise CommitConflict(
                f"{conflict} {before} before it were committed.",
                partitions=conflict.partitions,
                snapshot=conflict.snapshot,
            ) from None
    return done


def _rewrite_group(
    state: IcebergState, plan: RewritePlan, group: RewriteGroup, done: IcebergRewritten
) -> IcebergRewritten:
    current = _CurrentGroup(state.reload(), group)
    size = plan.options.target_file_size_bytes
    most_rows = math.ceil(group.rows / max(1, math.ceil(group.bytes / size))) or 1
    written = NewFiles(current.state)
    try:
        for rows in _split_rows(current.units, most_rows):
            written.add(rows)
        snapshot_id = _commit_group(current, written)
    except UnknownOutcome:
        raise
    except BaseException as error:
        written.remove()
        if isinstance(error, PhalanxError) or not isinstance(error, Exception):
            raise
        raise StorageFailure(
            f"Cannot rewrite group {group.id} of the Iceberg table {state.name}: "
            f"{str(error).rstrip('.')}. The group is unchanged."
        ) from error
    _LOGGER.info(
        "Committed snapshot %d of the Iceberg table %s: rewrote %s into %d",
        snapshot_id,
        state.name,
        format_count(len(group.files), "file"),
        len(written.files),
    )
    return IcebergRewritten(
        plan,
        files_before=done.files_before + len(group.files),
        files_after=done.files_after + len(written.files),
        bytes_before=done.bytes_before + group.bytes,
        bytes_after=done.bytes_after + sum(file.file_size_in_bytes for file in written.files),
        rows=done.rows + written.rows,
        snapshots=(*done.snapshots, snapshot_id),
    )


def _commit_group(current: _CurrentGroup, written: NewFiles) -> int:
    """Replace the files; if another writer commits first, check the group again."""
    for _ in range(_MAX_ATTEMPTS):
        if current.state.spec_id != written.spec_id:
            raise current.conflict("its partitioning changed meanwhile")
        try:
            table = current.state.iceberg
            return replace_files(table, current.read_data_files(), written.files, current.manifests)
        except CommitFailedException:
            _LOGGER.debug(
                "Another writer committed to the Iceberg table %s before group %d; trying again",
                *(current.state.name, current.group.id),
            )
            current = _CurrentGroup(current.state.reload(), current.group)
        except ValidationException as error:
            raise current.conflict(str(error)) from error
    raise current.conflict(f"other writers committed first {_MAX_ATTEMPTS} times")


def _split_rows(units: Sequence[IcebergUnit], most_rows: int) -> Iterator[pa.Table]:
    """Yield the rows of the files in tables of at most `most_rows` rows."""
    waiting: list[pa.RecordBatch] = []
    count = 0
    for batch in (batch for unit in units for batch in unit.batches()):
        while count + batch.num_rows >= most_rows:
            part = batch.slice(0, most_rows - count)
            yield pa.Table.from_batches([*waiting, part])
            batch = batch.slice(part.num_rows)
            waiting, count = [], 0
        if batch.num_rows:
            waiting.append(batch)
            count += batch.num_rows
    if waiting:
        yield pa.Table.from_batches(waiting)


class _CurrentGroup:
    """The files of a group in a snapshot; raises unless they and their deletes are as planned."""

    def __init__(self, state: IcebergState, group: RewriteGroup) -> None:
        self.state = state
        self.group = group
        spec_id = group.key.spec_id
        if spec_id not in state.specs:
            raise self.conflict(f"the table does not define spec {spec_id}")
        own = _partition_predicate(group.key, state.specs[spec_id])
        loaded = state.load_entries(
            {each: own if each == spec_id else FALSE for each in state.specs},
            {
                each: _delete_predicate(own, each == spec_id, spec)
                for each, spec in state.specs.items()
            },
        )
        planned = {file.path: {each.path for each in file.deletes} for file in group.files}
        table = loaded.entries.data.get(spec_id)
        paths = pa.array(list(planned), pa.string())
        if table is not None:
            table = table.filter(pc.is_in(table.column(FILE_PATH), value_set=paths))
        if table is None or table.num_rows != len(planned):
            there = set() if table is None else set(table.column(FILE_PATH).to_pylist())
            gone = sorted(planned.keys() - there)
            raise self.conflict(f"{gone[0] if gone else 'a file'} is no longer in the table")
        deletes = assign_deletes(
            ManifestEntries({spec_id: table}, loaded.entries.deletes), state.specs
        )
        self.units = make_units(
            state.read_context(), spec_id, table, deletes.list_by_file(spec_id, table.num_rows)
        )
        for unit in self.units:
            if {each.path for each in unit.deletes} != planned[unit.path]:
                raise self.conflict(f"rows of {unit.path} were deleted meanwhile")
        self.manifests = frozenset(table.column(MANIFEST).to_pylist())

    def read_data_files(self) -> list[DataFile]:
        """Read the entries of the files as pyiceberg objects."""
        snapshot, io = self.state.snapshot, self.state.io
        assert snapshot is not None
        wanted = {file.path for file in self.group.files}
        return [
            entry.data_file
            for manifest in snapshot.manifests(io)
            if manifest.manifest_path in self.manifests
            for entry in manifest.fetch_manifest_entry(io)
            if entry.data_file.file_path in wanted
        ]

    def conflict(self, why: str) -> CommitConflict:
        """Return the error for a group that changed since it was planned."""
        return CommitConflict(
            f"Cannot rewrite group {self.group.id} of the Iceberg table {self.state.name}: "
            f"{why.rstrip('.')}. The group is unchanged; plan it again.",
            partitions=[self.group.key],
            snapshot=self.state.snapshot_id,
        )


def _partition_predicate(key: PartitionKey, spec: PartitionSpec) -> Predicate:
    """Return a predicate that the partition values of the key satisfy."""
    try:
        return all_of(
            one_of(Column((field.column,)), pa.array([value], field.result_type))
            for field, value in zip(spec.fields, key.values, strict=True)
        )
    except (pa.ArrowException, PhalanxError, TypeError, ValueError):
        return TRUE


def _delete_predicate(own: Predicate, is_own: bool, spec: PartitionSpec) -> Predicate:
    """Return a filter for delete files that may apply: of the same spec, or unpartitioned."""
    if is_own:
        return own
    return FALSE if spec.fields else TRUE


def _check_rewritable(state: IcebergState, plan: RewritePlan) -> None:
    """Raise, before anything is written, if pyiceberg cannot rewrite the table safely."""
    for reason in _list_reasons(state, plan):
        raise PhalanxError(f"Cannot rewrite files of the Iceberg table {state.name}: {reason}")


def _list_reasons(state: IcebergState, plan: RewritePlan) -> Iterator[str]:
    metadata = state.metadata
    if isinstance(state.iceberg, StaticTable):
        yield "it was opened without a catalog. Load it from its catalog."
    if metadata.format_version not in _WRITABLE_VERSIONS:
        yield (
            f"it has format version {metadata.format_version}, but pyiceberg writes versions "
            f"{' and '.join(map(str, _WRITABLE_VERSIONS))} and would lose the row ids."
        )
    if metadata.default_sort_order_id != UNSORTED_SORT_ORDER_ID:
        order = state.iceberg.sort_order()
        yield f"it is sorted ({order}), but pyiceberg would write the rows unsorted."
    written = metadata.properties.get("write.format.default", "parquet").lower()
    if written != "parquet":
        yield f"its property write.format.default is {written}, but pyiceberg writes only parquet."
    provider = load_location_provider(metadata.location, metadata.properties)
    for location in (provider.new_data_location("new"), provider.new_metadata_location("new")):
        if not state.trusts_locations and not is_inside(location, state.folder):
            yield (
                f"its new files would be written to {location}, outside of its folder "
                f"{state.folder}. Open it with trust_locations=True if you trust the writer of the "
                "table."
            )
    current = metadata.default_spec_id
    used = dict.fromkeys([current, *(group.key.spec_id for group in plan.groups)])
    for spec_id in used:
        yield from _list_spec_reasons(state, spec_id)


def _list_spec_reasons(state: IcebergState, spec_id: int) -> Iterator[str]:
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
                what + "has a source column that was dropped, and pyiceberg would lose the "
                "partition values of other files in the same manifests."
            )
