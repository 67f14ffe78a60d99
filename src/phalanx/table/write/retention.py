"""Retention: partitions that are outside of what is to be kept go, whole and without a look."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from phalanx.errors import InvalidPredicate
from phalanx.model.predicates.binding import bind
from phalanx.model.predicates.predicate import TRUE, Predicate, columns_of
from phalanx.model.predicates.relative_times import with_moments
from phalanx.model.specs.partition_key import PartitionKey, json_value, keys_of
from phalanx.planning.pruning.fields import bound_fields
from phalanx.planning.pruning.scan_plan import counted, located
from phalanx.storage.commit.writing import named
from phalanx.storage.lance.parallel import in_parallel
from phalanx.storage.leaf.reading import LeafScan
from phalanx.storage.state.table_state import LeafListing
from phalanx.table.read.scan import scan_of
from phalanx.table.write.incoming_rows import Statement, Target
from phalanx.table.write.operations import REPEAT, deletions, versions_of, whole_partitions


@dataclass(frozen=True, slots=True)
class OutsidePartition:
    """A partition with rows outside of what is kept, and where it is."""

    key: PartitionKey
    location: str

    def to_dict(self) -> dict[str, Any]:
        """The partition as JSON has it."""
        values = [json_value(value) for value in self.key.values]
        return {"spec_id": self.key.spec_id, "values": values, "location": self.location}


@dataclass(frozen=True, slots=True)
class Retained:
    """What a retention dropped; or what it would drop, where it was only asked.

    `where` is what all rows that go match. The `dropped` partitions have no other rows. Those in
    `partial` may have some, and `rows` of theirs were deleted (None: they stay as they are).
    """

    where: str
    dropped: tuple[OutsidePartition, ...]
    partial: tuple[OutsidePartition, ...]
    total_partitions: int
    rows: int | None
    dry_run: bool

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON has it."""
        return {
            "dry_run": self.dry_run,
            "where": self.where,
            "total_partitions": self.total_partitions,
            "dropped": [each.to_dict() for each in self.dropped],
            "partial": [each.to_dict() for each in self.partial],
            "rows": self.rows,
        }

    def __str__(self) -> str:
        total = counted(self.total_partitions, "partition")
        lines = [f"{'Would drop' if self.dry_run else 'Dropped'} {len(self.dropped):,} of {total}."]
        if self.rows is not None:
            verb = "Would delete" if self.dry_run else "Deleted"
            lines.append(f"{verb} {counted(self.rows, 'row')} of {_others(self)}.")
        elif self.partial:
            keys = named([each.key for each in self.partial])
            stays = "stays" if len(self.partial) == 1 else "stay"
            lines.append(f"{_others(self)} may have rows to keep, and {stays} whole: {keys}.")
        return "\n".join(lines)


def _others(found: Retained) -> str:
    return counted(len(found.partial), "other partition")


def retain(
    manifest: LeafListing, run: Callable[[Statement], int] | None, keep: str, rows: bool
) -> Retained:
    """Drop the partitions in which `keep` is false for every row; without `run` only say which.

    Where it is NULL, as for a row without a date, nobody knows: such rows stay. With `rows` also
    the rows for which it is false in other partitions are deleted.
    """
    schema = manifest.properties.schema
    text = with_moments(keep, schema, datetime.now(UTC))
    bind(text, schema)
    where = f"NOT ({text})"
    gone = bind(where, schema)
    if not rows:
        _check_decided(manifest, gone, keep)
    if run is None:
        return _found(manifest, gone, where, _rows_in(manifest, where) if rows else None, True)
    found: Retained | None = None

    def statement(target: Target) -> int:
        nonlocal found
        found = _found(target.manifest, gone, where, None, False)
        chosen = whole_partitions(target.manifest, gone)
        target.depend_on(lambda now: _looked_at(now, gone), replaced=False)
        target.drop(chosen.whole, REPEAT)
        if not rows:
            return 0
        return target.commit(list(deletions(target.manifest, gone)), "delete", REPEAT)

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


def _looked_at(manifest: LeafListing, gone: Predicate) -> dict[str, int | None]:
    chosen = whole_partitions(manifest, gone)
    return versions_of(chosen.whole) | versions_of(chosen.partial)


def _found(
    manifest: LeafListing, gone: Predicate, where: str, rows: int | None, dry_run: bool
) -> Retained:
    chosen = whole_partitions(manifest, gone)
    whole, partial = (
        tuple(
            OutsidePartition(key, manifest.root.child(location).uri)
            for number, some in leaves.items()
            for key, (location, _) in zip(
                keys_of(manifest.keys_of_leaves(number, some)), located(some), strict=True
            )
        )
        for leaves in (chosen.whole, chosen.partial)
    )
    return Retained(where, whole, partial, manifest.total_partitions, rows, dry_run)


def _rows_in(manifest: LeafListing, where: str) -> int:
    """How many rows match in partitions that have others, too."""
    scans = scan_of(manifest, where, None, None).leaf_scans()
    return sum(in_parallel(LeafScan.count_rows, [each for each in scans if each.predicate != TRUE]))


def _check_decided(manifest: LeafListing, gone: Predicate, keep: str) -> None:
    """Refuse what says nothing of partitions: nothing would ever go."""
    properties = manifest.properties
    sources = {
        path[0]
        for spec in properties.specs.values()
        for field in bound_fields(spec, properties.schema)
        for path in field.sources
        if path is not None
    }
    read = {path[0] for path in columns_of(gone)}
    if read and not read & sources:
        by = properties.spec.label(properties.schema) or "nothing"
        raise InvalidPredicate(
            f"Cannot retain partitions by {keep!r}: the table is partitioned by {by}, which says "
            "nothing of it. Delete rows instead: with rows=True (--rows in the shell), or delete()."
        )
