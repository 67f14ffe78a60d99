"""Retention: drop partitions outside of a predicate, by their values and without reading data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from phalanx.errors import InvalidPredicate
from phalanx.model.predicates.binding import bind_predicate
from phalanx.model.predicates.predicate import TRUE, Predicate, find_predicate_columns
from phalanx.model.predicates.relative_times import resolve_relative_times
from phalanx.model.specs.partition_key import PartitionKey, read_keys, to_json_value
from phalanx.planning.formatting import format_count
from phalanx.planning.pruning.fields import bind_fields
from phalanx.planning.pruning.leaf_columns import list_leaf_versions
from phalanx.storage.commit.writing import format_partitions
from phalanx.storage.lance.parallel import map_parallel
from phalanx.storage.leaf.reading import LeafScan
from phalanx.storage.state.table_state import TableState
from phalanx.table.read.scan import make_scan
from phalanx.table.write.incoming_rows import Statement, Target
from phalanx.table.write.operations import (
    REPEAT_CALL,
    choose_partitions,
    plan_deletions,
    versions_of,
)


@dataclass(frozen=True, slots=True)
class ExpiredPartition:
    """A partition with rows outside of the retention.

    Attributes:
        key: The spec and the partition values.
        location: The path or URI of the partition.
    """

    key: PartitionKey
    location: str

    def to_dict(self) -> dict[str, Any]:
        """Return the partition as JSON-ready values."""
        values = [to_json_value(value) for value in self.key.values]
        return {"spec_id": self.key.spec_id, "values": values, "location": self.location}


@dataclass(frozen=True, slots=True)
class Retained:
    """The partitions that a retention dropped, or would drop in a dry run.

    Attributes:
        where: The predicate that all removed rows match.
        dropped: The partitions dropped: all their rows match `where`.
        partial: The partitions of which only some rows may match `where`.
        total_partitions: The number of partitions before.
        rows: The number of rows deleted from the partitions in `partial`, or to be deleted in a dry
            run; None: these partitions stay as they are.
        dry_run: Whether nothing was changed.
    """

    where: str
    dropped: tuple[ExpiredPartition, ...]
    partial: tuple[ExpiredPartition, ...]
    total_partitions: int
    rows: int | None
    dry_run: bool

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON-ready values."""
        return {
            "dry_run": self.dry_run,
            "where": self.where,
            "total_partitions": self.total_partitions,
            "dropped": [each.to_dict() for each in self.dropped],
            "partial": [each.to_dict() for each in self.partial],
            "rows": self.rows,
        }

    def __str__(self) -> str:
        total = format_count(self.total_partitions, "partition")
        lines = [f"{'Would drop' if self.dry_run else 'Dropped'} {len(self.dropped):,} of {total}."]
        if self.rows is not None:
            verb = "Would delete" if self.dry_run else "Deleted"
            lines.append(f"{verb} {format_count(self.rows, 'row')} of {_count_partial(self)}.")
        elif self.partial:
            keys = format_partitions([each.key for each in self.partial])
            stays = "stays" if len(self.partial) == 1 else "stay"
            lines.append(
                f"{_count_partial(self)} may have rows to keep, and {stays} whole: {keys}."
            )
        return "\n".join(lines)


def _count_partial(found: Retained) -> str:
    return format_count(len(found.partial), "other partition")


def retain(
    state: TableState, run: Callable[[Statement], int] | None, keep: str, rows: bool
) -> Retained:
    """Drop the partitions in which `keep` is false for every row; without `run` only find them.

    Rows for which it is NULL, such as a row without a date, stay. With `rows` it also deletes the
    rows for which it is false from other partitions.
    """
    schema = state.properties.schema
    text = resolve_relative_times(keep, schema, datetime.now(UTC))
    bind_predicate(text, schema)
    where = f"NOT ({text})"
    expired = bind_predicate(where, schema)
    if not rows:
        _check_prunable(state, expired, keep)
    if run is None:
        return _find_expired(
            state, expired, where, _count_partial_rows(state, where) if rows else None, True
        )
    found: Retained | None = None

    def statement(target: Target) -> int:
        nonlocal found
        found = _find_expired(target.state, expired, where, None, False)
        chosen = choose_partitions(target.state, expired)
        target.depend_on(lambda now: _find_versions(now, expired), replaced=False)
        target.drop(chosen.whole, REPEAT_CALL)
        if not rows:
            return 0
        return target.apply(list(plan_deletions(target.state, expired)), "delete", REPEAT_CALL)

    deleted = run(statement)
    assert found is not None
    return Retained(
        where,
        found.dropped,
        found.partial,
        found.total_partitions,
        deleted if rows else None,
        False,
    )


def _find_versions(state: TableState, expired: Predicate) -> dict[str, int | None]:
    chosen = choose_partitions(state, expired)
    return versions_of(chosen.whole) | versions_of(chosen.partial)


def _find_expired(
    state: TableState, expired: Predicate, where: str, rows: int | None, dry_run: bool
) -> Retained:
    chosen = choose_partitions(state, expired)
    whole, partial = (
        tuple(
            ExpiredPartition(key, state.root.leaf(location).uri)
            for number, some in leaves.items()
            for key, (location, _) in zip(
                read_keys(state.leaf_keys(number, some)),
                list_leaf_versions(some),
                strict=True,
            )
        )
        for leaves in (chosen.whole, chosen.partial)
    )
    return Retained(where, whole, partial, state.total_partitions, rows, dry_run)


def _count_partial_rows(state: TableState, where: str) -> int:
    """Count the matching rows of partitions that match in part."""
    scans = make_scan(state, where, None, None).leaf_scans()
    return sum(
        map_parallel(LeafScan.count_rows, [each for each in scans if each.predicate != TRUE])
    )


def _check_prunable(state: TableState, expired: Predicate, keep: str) -> None:
    """Refuse a predicate on no partition source: it would never drop a partition."""
    properties = state.properties
    sources = {
        path[0]
        for spec in properties.specs.values()
        for field in bind_fields(spec, properties.schema)
        for path in field.sources
        if path is not None
    }
    read = {path[0] for path in find_predicate_columns(expired)}
    if read and not read & sources:
        by = properties.spec.label(properties.schema) or "nothing"
        raise InvalidPredicate(
            f"Cannot retain partitions by {keep!r}: the table is partitioned by {by}, which does "
            "not decide it. Delete rows instead: with rows=True (--rows in the shell), or delete()."
        )
