"""Rows of a leaf that others replace: found, computed and written, and nothing is committed.

A row that stays in its partition is written to the same leaf, in a file for such rows only. A row
whose partition values change is put aside, with the place that it had, for whoever writes it where
it belongs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from lance.fragment import FragmentMetadata

from phalanx.errors import CommitConflict
from phalanx.model.schema.rows import readable
from phalanx.storage.commit.writing import LeafWrite, Replacement
from phalanx.storage.leaf import leaf
from phalanx.storage.leaf.leaf import OFFSET_BITS, Change
from phalanx.storage.streams.shuffle import for_writing
from phalanx.storage.streams.spill_buffer import Parked, Shelf

Addresses = npt.NDArray[np.uint64]
# Where rows that move came from; no column of a table has a dot in its name.
LEAF, ADDRESS = ".leaf", ".address"
_NOWHERE = np.empty(0, np.uint64)


@dataclass(frozen=True, slots=True)
class Edited:
    """Rows that go, and those that come in their place (None: none do), in the same order.

    `moves` tells which of them belong to another partition (None: none do).
    """

    addresses: Addresses
    rows: pa.RecordBatch | None = None
    moves: npt.NDArray[np.bool_] | None = None


# What becomes of rows of a leaf, of some fragments or all.
Editor = Callable[[lance.LanceDataset, list[lance.LanceFragment] | None], Iterator[Edited]]


def moved_schema(schema: pa.Schema) -> pa.Schema:
    """The columns of rows that move: the table's, and where they were."""
    return pa.schema([*schema, (LEAF, pa.int32()), (ADDRESS, pa.uint64())])


@dataclass(frozen=True, slots=True)
class LeafEdit:
    """A leaf that is planned to be edited; `number` tells it among those of the statement."""

    number: int
    write: LeafWrite
    editor: Editor
    schema: pa.Schema

    def run(self, dataset: lance.LanceDataset, shelf: Shelf) -> EditedLeaf:
        """Find the rows in a version of the leaf, and write those that stay in it."""
        return self._run(dataset, Parked(shelf, moved_schema(self.schema)), None)

    def again(
        self, dataset: lance.LanceDataset, before: EditedLeaf, ours: Collection[str]
    ) -> EditedLeaf:
        """The same in a later version, where others were first; what was moved stays moved.

        `ours` are the files that rows were moved to, which are not edited again.
        """
        fragments = [
            each
            for each in dataset.get_fragments()
            if not any(file.path in ours for file in each.metadata.files)
        ]
        before.check_moved(dataset)
        found = self._run(dataset, None, fragments)
        return replace(found, given=before.given, moved=before.moved, files=before.files)

    def _run(
        self,
        dataset: lance.LanceDataset,
        moved: Parked | None,
        fragments: list[lance.LanceFragment] | None,
    ) -> EditedLeaf:
        kept: list[Addresses] = []
        given: list[Addresses] = []
        failure: list[BaseException] = []

        def staying() -> Iterator[pa.RecordBatch]:
            for piece in self.editor(dataset, fragments):
                moves = piece.moves
                if moves is None or not moves.any():
                    kept.append(piece.addresses)
                    if piece.rows is not None:
                        yield piece.rows
                    continue
                assert piece.rows is not None
                if moved is not None:
                    given.append(piece.addresses[moves])
                    moved.add(self._with_places(piece))
                stays = ~moves
                if stays.any():
                    kept.append(piece.addresses[stays])
                    yield readable(piece.rows).filter(pa.array(stays))

        def told() -> Iterator[pa.RecordBatch]:
            # Lance would make any error one of its own.
            try:
                names = dataset.schema.names
                yield from for_writing(rows.select(names) for rows in staying())
            except BaseException as error:
                failure.append(error)
                raise

        written = _written(dataset, self.write, told(), failure)
        return EditedLeaf(
            self,
            int(dataset.version),
            _joined(kept),
            written,
            _joined(given),
            moved,
            {each.fragment_id: each.metadata for each in dataset.get_fragments()} if given else {},
        )

    def _with_places(self, piece: Edited) -> pa.RecordBatch:
        assert piece.rows is not None
        assert piece.moves is not None
        rows = readable(piece.rows).filter(pa.array(piece.moves))
        places = [
            pa.repeat(pa.scalar(self.number, pa.int32()), rows.num_rows),
            pa.array(piece.addresses[piece.moves]),
        ]
        return pa.RecordBatch.from_arrays(
            [*rows.columns, *places], schema=moved_schema(self.schema)
        )


@dataclass(frozen=True, slots=True)
class EditedLeaf:
    """What became of a leaf in one version of it.

    Rows at `kept` are gone, and unless they are deleted those in `fragments` stand for them, in
    the same order; rows at `given` are in `moved`. `files` are those of the leaf, if any moved.
    """

    edit: LeafEdit
    version: int
    kept: Addresses
    fragments: tuple[FragmentMetadata, ...]
    given: Addresses
    moved: Parked | None
    files: dict[int, FragmentMetadata]

    @property
    def rows(self) -> int:
        """How many rows are gone."""
        return len(self.kept) + len(self.given)

    def write(self, ours: Collection[str]) -> LeafWrite:
        """The change of the leaf, after rows that move here came in these files."""
        replacements: tuple[Replacement, ...] = ()
        if self.fragments:
            old = pa.table(
                {
                    "leaf": pa.repeat(pa.scalar(0, pa.int32()), len(self.kept)),
                    "address": pa.array(self.kept),
                }
            )
            replacements = (Replacement(self.fragments, (self.edit.write.object_id,), old),)
        return replace(
            self.edit.write,
            deletion=lambda dataset: self.change(dataset, ours),
            edits=True,
            gives=len(self.given) > 0,
            replacements=replacements,
        )

    def change(self, dataset: lance.LanceDataset, ours: Collection[str]) -> Change:
        """The files that come, and the rows that go, in one commit on top of a version."""
        found = self
        if dataset.version != self.version:
            found = self.edit.again(dataset, self, ours)
        gone = np.concatenate([found.kept, found.given])
        return replace(leaf.deletion_by_address(dataset, gone), new=found.fragments)

    def check_moved(self, dataset: lance.LanceDataset) -> None:
        """Refuse to go on where rows that were moved are not where they were."""
        now = {each.fragment_id: each.metadata for each in dataset.get_fragments()}
        for number in np.unique(self.given >> OFFSET_BITS).tolist():
            before = self.files[number]
            if number in now and now[number] == before:
                continue
            raise CommitConflict(
                f"Another writer changed rows of {self.edit.write.location} while they were moved "
                "to other partitions: they are there as they were before, too."
            )


def _written(
    dataset: lance.LanceDataset,
    write: LeafWrite,
    batches: Iterator[pa.RecordBatch],
    failure: Sequence[BaseException],
) -> tuple[FragmentMetadata, ...]:
    """The rows in files of the leaf; none if there are no rows."""
    first = next(batches, None)
    if first is None:
        return ()
    reader = pa.RecordBatchReader.from_batches(first.schema, itertools.chain([first], batches))
    try:
        return leaf.write(dataset, write.location, reader)
    except (OSError, ValueError):
        if failure:
            raise failure[0] from None
        raise


def _joined(parts: Sequence[Addresses]) -> Addresses:
    return np.concatenate([_NOWHERE, *parts])
