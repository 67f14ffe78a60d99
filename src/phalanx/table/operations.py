"""What a table's writing methods do, whether their commits are seen at once or staged."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import lance
import pyarrow as pa
from lance.fragment import FragmentMetadata

from phalanx.errors import InvalidPredicate
from phalanx.model.binding import bind
from phalanx.model.evaluation import matches
from phalanx.model.partition_key import keyed
from phalanx.model.predicate import TRUE, Predicate, all_of, among
from phalanx.model.rows import conformed, plain_schema, reader_of
from phalanx.planning.fields import bound_fields
from phalanx.planning.pruning import prune
from phalanx.storage.location import Location
from phalanx.storage.manifest import Manifest
from phalanx.storage.shuffle import Shuffled, shuffle
from phalanx.storage.writing import (
    Footprint,
    LeafWrite,
    deleting,
    deleting_keys,
    leaf_writes,
    merged,
    write_rows,
)
from phalanx.table.scan import plan_of

# How to finish what reached only some partitions.
_REPEAT = "Call it again with the same arguments: that gives the same table as one whole call."
_APPEND_THE_REST = (
    "Append the rows of the partitions not written; where these partitions held no other rows, "
    "overwrite_partitions with the same data does it too."
)


class Target(Protocol):
    """Where leaves are changed: on their main branches, or within a transaction."""

    @property
    def manifest(self) -> Manifest:
        """The table as the next statement sees it."""

    @property
    def horizon(self) -> str:
        """What a vacuum changes: files written under another one may be gone."""

    def ensure_partitions(self, keys: pa.Table) -> None:
        """Create the partitions of the newest spec that are missing."""

    def open_leaf(self, location: Location, version: int | None) -> lance.LanceDataset:
        """A leaf to write files for, in the namespace's schema."""

    def depend_on(self, footprint: Footprint, replaced: bool) -> None:
        """Say which leaves a statement looked at, and whether rows of its own replace theirs."""

    def commit(self, writes: Sequence[LeafWrite], operation: str, repair: str) -> int:
        """Change the leaves; the number of rows removed."""


Statement = Callable[[Target], int]
# The files of a statement's rows by leaf, for each horizon under which it was tried.
Written = defaultdict[str, dict[str, tuple[FragmentMetadata, ...]]]
# Runs a statement, more than once where another writer's commit makes it look again.
Run = Callable[[Statement], int]


def append(manifest: Manifest, run: Run, data: Any) -> int:
    """Add rows, each to its partition under the newest spec; returns how many."""
    with _shuffled(manifest, data) as rows:
        if rows.rows:
            written: Written = defaultdict(dict)

            def statement(target: Target) -> int:
                target.ensure_partitions(rows.keys)
                known = written[target.horizon]
                writes = write_rows(target.manifest, rows, target.open_leaf, known)
                return target.commit(writes, "append", _APPEND_THE_REST)

            run(statement)
        return rows.rows


def overwrite(manifest: Manifest, run: Run, data: Any, where: str) -> int:
    """Replace the rows that match `where` by rows that match it too; returns how many came."""
    predicate = bind(where, manifest.properties.schema)
    with _shuffled(manifest, data, predicate, where) as rows:
        _replace(run, rows, lambda now: _deletions(now, predicate), "overwrite")
        return rows.rows


def overwrite_partitions(manifest: Manifest, run: Run, data: Any) -> int:
    """Replace the partitions (under the newest spec) that the data touches; how many rows came."""
    with _shuffled(manifest, data) as rows:
        if rows.rows:
            _replace(run, rows, lambda now: _replaced(now, rows.keys), "overwrite_partitions")
        return rows.rows


def _replace(
    run: Run, rows: Shuffled, removed: Callable[[Manifest], Iterable[LeafWrite]], operation: str
) -> None:
    written: Written = defaultdict(dict)

    def statement(target: Target) -> int:
        target.depend_on(functools.partial(_footprint, removed), replaced=True)
        target.ensure_partitions(rows.keys)
        manifest = target.manifest
        deletions = {write.location.uri: write for write in removed(manifest)}
        writes = write_rows(manifest, rows, target.open_leaf, written[target.horizon])
        return target.commit(merged(writes, deletions), operation, _REPEAT)

    run(statement)


def delete(manifest: Manifest, run: Run, where: str) -> int:
    """Remove the rows that match; returns how many."""
    predicate = bind(where, manifest.properties.schema)

    def statement(target: Target) -> int:
        removed = functools.partial(_deletions, predicate=predicate)
        target.depend_on(functools.partial(_footprint, removed), replaced=False)
        return target.commit(list(removed(target.manifest)), "delete", _REPEAT)

    return run(statement)


def _footprint(
    removed: Callable[[Manifest], Iterable[LeafWrite]], manifest: Manifest
) -> dict[str, int | None]:
    return {write.object_id: write.version for write in removed(manifest)}


def _shuffled(
    manifest: Manifest, data: Any, predicate: Predicate = TRUE, where: str = "true"
) -> Shuffled:
    """The rows by partition, every one of them valid; nothing is written yet."""
    schema, spec = manifest.properties.schema, manifest.properties.spec
    batches = conformed(reader_of(data), schema.arrow)
    if predicate != TRUE:
        batches = _all_matching(batches, predicate, where)
    return shuffle(
        batches,
        plain_schema(schema),
        lambda rows: keyed(spec, rows, schema),
        in_memory=isinstance(data, pa.Table | pa.RecordBatch),
    )


def _all_matching(
    batches: Iterator[pa.RecordBatch], predicate: Predicate, where: str
) -> Iterator[pa.RecordBatch]:
    done = 0
    for batch in batches:
        kept = matches(predicate, batch)
        if kept.true_count < batch.num_rows:
            row = kept.to_pylist().index(False)
            raise InvalidPredicate(
                f"Row {done + row} of the data does not match {where!r}, the rows to be replaced: "
                f"{batch.slice(row, 1).to_pylist()[0]}. Leave it out, or widen the predicate."
            )
        done += batch.num_rows
        yield batch


def _deletions(manifest: Manifest, predicate: Predicate) -> Iterator[LeafWrite]:
    """The removal of the matching rows from every leaf that may have some."""
    plan = plan_of(manifest, predicate)
    schema = manifest.properties.schema
    for number, leaves in plan.leaves.items():
        residuals = plan.residuals[number]
        removals = [deleting(each, schema) for each in residuals.predicates]
        yield from leaf_writes(
            manifest, number, leaves, [removals[place] for place in residuals.places.tolist()]
        )


def _replaced(manifest: Manifest, touched: pa.Table) -> Iterator[LeafWrite]:
    """The removal of the rows in these partitions of the newest spec, wherever they are."""
    properties = manifest.properties
    spec, schema = properties.spec, properties.schema
    places = manifest.places(touched)
    newest = manifest.leaves()[spec.id].take(pa.array(places[places >= 0]))
    everything = [deleting(TRUE, schema)] * newest.num_rows
    yield from leaf_writes(manifest, spec.id, newest, everything)
    older = {number: other for number, other in properties.specs.items() if number != spec.id}
    known = [
        among(field.term, touched.column(field.field.field_id).combine_chunks())
        for field in bound_fields(spec, schema)
        if field.term is not None
    ]
    pruning = prune(all_of(known), older, schema)
    leaves = manifest.leaves(pruning) if older else {}
    for number in older:
        removals = [deleting_keys(touched, spec, schema)] * leaves[number].num_rows
        yield from leaf_writes(manifest, number, leaves[number], removals)
