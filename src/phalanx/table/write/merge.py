"""Merges: rows that are there by their key are changed, others are added."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from phalanx.errors import PhalanxError
from phalanx.model.predicates.predicate import TRUE
from phalanx.model.schema.rows import plain_schema
from phalanx.model.specs.partition_key import keyed
from phalanx.model.specs.spec import PartitionSpec
from phalanx.planning.pruning.fields import source_columns
from phalanx.planning.pruning.key_routing import identity_columns, route
from phalanx.storage.commit.leaf_edits import Addresses, Edited, Editor, LeafEdit
from phalanx.storage.commit.writing import LeafWrite, leaf_writes
from phalanx.storage.leaf.path_values import PathValues, path_values
from phalanx.storage.leaf.reading import addressed
from phalanx.storage.state.table_state import LeafListing
from phalanx.storage.streams.shuffle import Shuffled, shuffle
from phalanx.storage.streams.spill_buffer import Shelf
from phalanx.table.write.incoming_rows import LocalRows, Target
from phalanx.table.write.merge_source import MergeSource, Places, merge_source
from phalanx.table.write.operations import REPEAT, Run
from phalanx.table.write.row_edits import changing_fields, committed, edited, moves

_MATCHED = ("update", "ignore", "delete")
_NOT_MATCHED = ("insert", "ignore")
# So many rows of a leaf are looked up at once, and so many new ones made.
_LOOKED_UP = 1 << 20
_MADE = 1 << 16
_ONCE_ONLY = (
    "Some of it is done, and the same call again would not give the same: look at the table, and "
    "merge only what is missing."
)


@dataclass(frozen=True, slots=True)
class MergeCounts:
    """How many rows a merge added, changed and removed."""

    inserted: int = 0
    updated: int = 0
    deleted: int = 0

    def __str__(self) -> str:
        return f"{self.inserted:,} inserted, {self.updated:,} updated, {self.deleted:,} deleted"


def merge(
    manifest: LeafListing,
    run: Run,
    data: Any,
    on: str | Sequence[str],
    when_matched: str,
    when_not_matched: str,
) -> MergeCounts:
    """Change the rows that have the key of a row of the data, and add the others.

    Only leaves that can hold one of the keys are opened, and of these the keys are read first.
    """
    check_choices(when_matched, when_not_matched)
    with Shelf() as shelf:
        source = merge_source(data, on, manifest.properties.schema, shelf)
        inserted = 0

        def statement(target: Target) -> int:
            nonlocal inserted
            inserts = when_not_matched == "insert"
            footprint = functools.partial(_footprint, source)
            target.depend_on(footprint, replaced=inserts)
            met = np.zeros(source.rows, dtype=bool)
            with Shelf() as moving:
                edits = list(_edits(target.manifest, source, when_matched, met))
                done = edited(target, edits, moving)
                with done.moved, _others(target.manifest, source, met, inserts) as new:
                    inserted = new.rows
                    # What moved, or was both removed and added, is not the same a second time.
                    again = not done.moved.rows and not (when_matched == "delete" and inserts)
                    repair = REPEAT if again else _ONCE_ONLY
                    return committed(target, done, LocalRows(new), "merge", repair)

        changed = 0
        if source.rows and (when_matched, when_not_matched) != ("ignore", "ignore"):
            changed = run(statement)
    if when_matched == "delete":
        return MergeCounts(inserted, 0, changed)
    return MergeCounts(inserted, changed, 0)


def check_choices(when_matched: str, when_not_matched: str) -> None:
    """Refuse what a merge cannot do."""
    _check_choice("when_matched", when_matched, _MATCHED)
    _check_choice("when_not_matched", when_not_matched, _NOT_MATCHED)


def _check_choice(name: str, given: str, choices: Sequence[str]) -> None:
    if given not in choices:
        expected = " or ".join(map(repr, choices))
        raise PhalanxError(f"Cannot merge with {name}={given!r}: expected {expected}.")


def _footprint(source: MergeSource, manifest: LeafListing) -> dict[str, int | None]:
    return {write.object_id: write.version for write, *_ in _planned(manifest, source)}


def _planned(
    manifest: LeafListing, source: MergeSource
) -> Iterator[tuple[LeafWrite, PartitionSpec, PathValues | None, Places]]:
    """Every leaf that may hold some of the keys, and which."""
    properties = manifest.properties
    keys = source.key_rows()
    for spec_id, leaves in manifest.leaves().items():
        spec = properties.specs[spec_id]
        routes = route(keys, source.keyed, spec, properties.schema, leaves)
        kept = np.flatnonzero(routes.kept)
        chosen = leaves.take(pa.array(kept))
        writes = leaf_writes(manifest, spec_id, chosen, [None] * len(kept))
        paths = path_values(chosen, manifest.path_columns)
        for place, write, path in zip(kept.tolist(), writes, paths, strict=True):
            yield write, spec, path, routes.keys_of(place)


def _edits(
    manifest: LeafListing, source: MergeSource, when_matched: str, met: npt.NDArray[np.bool_]
) -> Iterator[LeafEdit]:
    schema = manifest.properties.schema
    for number, (write, spec, path, keys) in enumerate(_planned(manifest, source)):
        merge_leaf = _LeafMerge(manifest, source, when_matched, met, spec, path, keys)
        yield LeafEdit(number, write, merge_leaf.editor(), plain_schema(schema))


@dataclass(frozen=True, slots=True)
class _LeafMerge:
    """The merge of some keys into one leaf; `met` gets to know those that are there."""

    manifest: LeafListing
    source: MergeSource
    when_matched: str
    met: npt.NDArray[np.bool_]
    spec: PartitionSpec
    path: PathValues | None
    keys: Places

    def editor(self) -> Editor:
        """What becomes of the leaf's rows."""
        schema = self.manifest.properties.schema
        others = frozenset(schema.names) - frozenset(self.source.on)
        fields = changing_fields(self.spec, schema, others)
        # What the partition has in its values need not be read.
        known = identity_columns(self.spec, schema)
        on = [name for name in self.source.on if name not in known] or [self.source.on[0]]
        columns = list(on)
        if fields and self.when_matched == "update":
            columns += [n for n in source_columns(self.spec, schema) if n not in columns]

        def edit(
            dataset: lance.LanceDataset, fragments: list[lance.LanceFragment] | None
        ) -> Iterator[Edited]:
            found = addressed(dataset, TRUE, schema, columns, self.path, fragments)
            for addresses, rows in _gathered(found):
                places = self.source.matches(rows, self.keys, on)
                matched = np.flatnonzero(places >= 0)
                self.met[places[matched]] = True
                if self.when_matched == "ignore" or not len(matched):
                    continue
                if self.when_matched == "delete":
                    yield Edited(addresses[matched])
                    continue
                for start in range(0, len(matched), _MADE):
                    some = matched[start : start + _MADE]
                    new = self.source.take(places[some])
                    old = rows.take(pa.array(some)) if fields else rows
                    yield Edited(addresses[some], new, moves(fields, schema, old, new))

        return edit


def _gathered(
    batches: Iterator[tuple[Addresses, pa.RecordBatch]],
) -> Iterator[tuple[Addresses, pa.RecordBatch]]:
    """The same rows, more of them at once."""
    held: list[tuple[Addresses, pa.RecordBatch]] = []
    rows = 0
    for piece in batches:
        held.append(piece)
        rows += len(piece[0])
        if rows >= _LOOKED_UP:
            yield _together(held)
            held, rows = [], 0
    if held:
        yield _together(held)


def _together(
    held: Sequence[tuple[Addresses, pa.RecordBatch]],
) -> tuple[Addresses, pa.RecordBatch]:
    addresses = np.concatenate([piece[0] for piece in held])
    return addresses, pa.concat_batches([piece[1] for piece in held])


def _others(
    manifest: LeafListing, source: MergeSource, met: npt.NDArray[np.bool_], wanted: bool
) -> Shuffled:
    """The rows of the data whose key no row has, by their partitions."""
    properties = manifest.properties
    schema, spec = properties.schema, properties.spec
    places = np.flatnonzero(~met) if wanted else np.empty(0, np.int64)
    return shuffle(
        (source.take(places[start : start + _MADE]) for start in range(0, len(places), _MADE)),
        plain_schema(schema),
        lambda rows: keyed(spec, rows, schema),
        in_memory=False,
    )
