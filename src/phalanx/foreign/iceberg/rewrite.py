"""Runs a rewrite plan on an Iceberg table: each group of files is replaced in one snapshot.

Rows are read with their deletes applied and written under the table's current schema and spec. The
snapshot stands only if, at that moment, the group's files are still the table's and have just the
deletes that were applied; appends and rewrites of other files do not matter.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.manifest import DataFile

from phalanx.errors import CommitConflict, PhalanxError, StorageFailure, UnknownOutcome
from phalanx.foreign.iceberg.deletes import assigned
from phalanx.foreign.iceberg.manifests import MANIFEST, Entries
from phalanx.foreign.iceberg.rows import IcebergUnit, units_of
from phalanx.foreign.iceberg.state import IcebergState
from phalanx.foreign.iceberg.writing import NewFiles
from phalanx.foreign.iceberg_commit import replace_files
from phalanx.foreign.iceberg_refusals import refuse_unsafe
from phalanx.model.predicates.predicate import FALSE, TRUE, Predicate, all_of, among
from phalanx.model.specs.partition_key import PartitionKey
from phalanx.model.specs.spec import PartitionSpec
from phalanx.model.sql.syntax import Column
from phalanx.planning.pruning.scan_plan import counted, readable
from phalanx.planning.rewrites.entries import PATH
from phalanx.planning.rewrites.plan import RewriteGroup, RewritePlan

# Each looks at the table anew, which takes longer than an append of somebody else.
_MOST_ATTEMPTS = 20


@dataclass(frozen=True, slots=True)
class IcebergRewritten:
    """What a rewrite has done: files and bytes before and after, and its snapshots in order."""

    plan: RewritePlan
    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    rows: int = 0
    snapshots: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The numbers as JSON has them; ids as text, because they have 64 bits."""
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
            f"{counted(self.files_before, 'file')}, {readable(self.bytes_before)}, became "
            f"{counted(self.files_after, 'file')}, {readable(self.bytes_after)}, with "
            f"{counted(self.rows, 'row')}, in {counted(len(self.snapshots), 'snapshot')}"
        )


def rewrite(state: IcebergState, plan: RewritePlan) -> IcebergRewritten:
    """Rewrite all groups of the plan, one after the other."""
    refuse_unsafe(state, plan)
    done = IcebergRewritten(plan)
    for group in plan.groups:
        try:
            done = _rewritten(state, plan, group, done)
        except CommitConflict as conflict:
            before = counted(len(done.snapshots), "group")
            raise CommitConflict(f"{conflict} {before} before it stand as they are.") from None
    return done


def _rewritten(
    state: IcebergState, plan: RewritePlan, group: RewriteGroup, done: IcebergRewritten
) -> IcebergRewritten:
    current = _Current(state.newest(), group)
    size = plan.options.target_file_size_bytes
    most_rows = math.ceil(group.rows / max(1, math.ceil(group.bytes / size))) or 1
    written = NewFiles(current.state)
    try:
        for rows in _chunks(current.units, most_rows):
            written.add(rows)
        snapshot_id = _committed(current, written)
    except UnknownOutcome:
        raise
    except BaseException as error:
        written.remove()
        if isinstance(error, PhalanxError) or not isinstance(error, Exception):
            raise
        raise StorageFailure(
            f"Cannot rewrite group {group.id} of the Iceberg table {state.name}: "
            f"{str(error).rstrip('.')}. Nothing of the group has changed."
        ) from error
    return IcebergRewritten(
        plan,
        files_before=done.files_before + len(group.files),
        files_after=done.files_after + len(written.files),
        bytes_before=done.bytes_before + group.bytes,
        bytes_after=done.bytes_after + sum(file.file_size_in_bytes for file in written.files),
        rows=done.rows + written.rows,
        snapshots=(*done.snapshots, snapshot_id),
    )


def _committed(current: _Current, written: NewFiles) -> int:
    """Replace the files; if somebody else commits first, look again whether that still is right."""
    for _ in range(_MOST_ATTEMPTS):
        if current.state.spec_id != written.spec_id:
            raise current.conflict("the table is partitioned in another way meanwhile")
        try:
            table = current.state.iceberg
            return replace_files(table, current.files(), written.files, current.manifests)
        except CommitFailedException:
            current = _Current(current.state.newest(), current.group)
        except ValidationException as error:
            raise current.conflict(str(error)) from error
    raise current.conflict(f"others committed first {_MOST_ATTEMPTS} times")


def _chunks(units: Sequence[IcebergUnit], most_rows: int) -> Iterator[pa.Table]:
    """The rows of the files, so many at a time."""
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


class _Current:
    """A group's files as a snapshot has them: still there, and with the deletes of the plan."""

    def __init__(self, state: IcebergState, group: RewriteGroup) -> None:
        self.state = state
        self.group = group
        spec_id = group.key.spec_id
        if spec_id not in state.specs:
            raise self.conflict(f"the table does not define spec {spec_id}")
        own = _holds(group.key, state.specs[spec_id])
        loaded = state.load(
            {each: own if each == spec_id else FALSE for each in state.specs},
            {each: _may_delete(own, each == spec_id, spec) for each, spec in state.specs.items()},
        )
        planned = {file.path: {each.path for each in file.deletes} for file in group.files}
        table = loaded.entries.data.get(spec_id)
        paths = pa.array(list(planned), pa.string())
        if table is not None:
            table = table.filter(pc.is_in(table.column(PATH), value_set=paths))
        if table is None or table.num_rows != len(planned):
            there = set() if table is None else set(table.column(PATH).to_pylist())
            gone = sorted(planned.keys() - there)
            raise self.conflict(f"{gone[0] if gone else 'a file'} is no longer in the table")
        deletes = assigned(Entries({spec_id: table}, loaded.entries.deletes), state.specs)
        self.units = units_of(
            state.read_context(), spec_id, table, deletes.of(spec_id, table.num_rows)
        )
        for unit in self.units:
            if {each.path for each in unit.deletes} != planned[unit.path]:
                raise self.conflict(f"rows of {unit.path} were deleted meanwhile")
        self.manifests = frozenset(table.column(MANIFEST).to_pylist())

    def files(self) -> list[DataFile]:
        """The files as pyiceberg has them."""
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
        """The error for a group that changed since it was planned."""
        return CommitConflict(
            f"Cannot rewrite group {self.group.id} of the Iceberg table {self.state.name}: "
            f"{why.rstrip('.')}. Nothing of the group has changed; plan it again."
        )


def _holds(key: PartitionKey, spec: PartitionSpec) -> Predicate:
    """What the partition values of the key's files satisfy."""
    try:
        return all_of(
            among(Column((field.column,)), pa.array([value], field.result_type))
            for field, value in zip(spec.fields, key.values, strict=True)
        )
    except (pa.ArrowException, PhalanxError, TypeError, ValueError):
        return TRUE


def _may_delete(own: Predicate, is_own: bool, spec: PartitionSpec) -> Predicate:
    """Which delete files of a spec may be about the group: its own, and those of no partition."""
    if is_own:
        return own
    return FALSE if spec.fields else TRUE
