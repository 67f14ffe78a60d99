"""Edits of leaves: find rows, compute their new values and write them, without committing.

A row that stays in its partition is written to a new file of the same leaf, which has only such
rows. A row whose partition values change is buffered together with its origin, so that the
statement can write it to its new leaf.
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
from phalanx.model.schema.rows import make_readable
from phalanx.storage.commit.writing import LeafWrite, RowReplacement
from phalanx.storage.leaf import leaf
from phalanx.storage.leaf.leaf import OFFSET_BITS, FragmentChange
from phalanx.storage.manifest.rows import RowAddresses
from phalanx.storage.streams.shuffle import resize_for_writing
from phalanx.storage.streams.spill_buffer import SpillBudget, SpillBuffer

# The origin of moved rows; no column of a table has a dot in its name.
ORIGIN_LEAF, ORIGIN_ADDRESS = ".leaf", ".address"
_NO_ADDRESSES = np.empty(0, np.uint64)


@dataclass(frozen=True, slots=True)
class EditedBatch:
    """The addresses of rows to remove and, in the same order, their new rows (None: deleted).

    `is_moved` says which new rows belong to another partition (None: no row does).
    """

    addresses: RowAddresses
    rows: pa.RecordBatch | None = None
    is_moved: npt.NDArray[np.bool_] | None = None


# Computes the edits of a leaf, in some fragments or in all.
Editor = Callable[[lance.LanceDataset, list[lance.LanceFragment] | None], Iterator[EditedBatch]]


def with_origin_columns(schema: pa.Schema) -> pa.Schema:
    """Return the schema of moved rows: the columns of the table, and their origin."""
    return pa.schema([*schema, (ORIGIN_LEAF, pa.int32()), (ORIGIN_ADDRESS, pa.uint64())])


@dataclass(frozen=True, slots=True)
class LeafEdit:
    """A planned edit of a leaf; `number` identifies the leaf within the statement."""

    number: int
    write: LeafWrite
    editor: Editor
    schema: pa.Schema

    def run(self, dataset: lance.LanceDataset, budget: SpillBudget) -> EditedLeaf:
        """Find the rows in a version of the leaf, and write those that stay in it."""
        return self._run(dataset, SpillBuffer(budget, with_origin_columns(self.schema)), None)

    def rerun(
        self, dataset: lance.LanceDataset, before: EditedLeaf, moved_files: Collection[str]
    ) -> EditedLeaf:
        """Run the edit again on a later version, after other writers changed the leaf.

        Moved rows stay moved. `moved_files` contain rows that this statement moved to the leaf;
        they are not edited again.
        """
        fragments = [
            each
            for each in dataset.get_fragments()
            if not any(file.path in moved_files for file in each.metadata.files)
        ]
        before.check_moved(dataset)
        found = self._run(dataset, None, fragments)
        return replace(
            found,
            moved_out=before.moved_out,
            moved_rows=before.moved_rows,
            fragments_before=before.fragments_before,
        )

    def _run(
        self,
        dataset: lance.LanceDataset,
        moved: SpillBuffer | None,
        fragments: list[lance.LanceFragment] | None,
    ) -> EditedLeaf:
        edited: list[RowAddresses] = []
        moved_out: list[RowAddresses] = []
        failure: list[BaseException] = []

        def edit_rows() -> Iterator[pa.RecordBatch]:
            for batch in self.editor(dataset, fragments):
                is_moved = batch.is_moved
                if is_moved is None or not is_moved.any():
                    edited.append(batch.addresses)
                    if batch.rows is not None:
                        yield batch.rows
                    continue
                assert batch.rows is not None
                if moved is not None:
                    moved_out.append(batch.addresses[is_moved])
                    moved.add(self._with_origins(batch))
                stays = ~is_moved
                if stays.any():
                    edited.append(batch.addresses[stays])
                    yield make_readable(batch.rows).filter(pa.array(stays))

        def capture_errors() -> Iterator[pa.RecordBatch]:
            # Lance would replace any error by one of its own.
            try:
                names = dataset.schema.names
                yield from resize_for_writing(rows.select(names) for rows in edit_rows())
            except BaseException as error:
                failure.append(error)
                raise

        written = _write_files(dataset, self.write, capture_errors(), failure)
        return EditedLeaf(
            self,
            int(dataset.version),
            _concatenate(edited),
            written,
            _concatenate(moved_out),
            moved,
            {each.fragment_id: each.metadata for each in dataset.get_fragments()}
            if moved_out
            else {},
        )

    def _with_origins(self, batch: EditedBatch) -> pa.RecordBatch:
        assert batch.rows is not None
        assert batch.is_moved is not None
        rows = make_readable(batch.rows).filter(pa.array(batch.is_moved))
        origins = [
            pa.repeat(pa.scalar(self.number, pa.int32()), rows.num_rows),
            pa.array(batch.addresses[batch.is_moved]),
        ]
        return pa.RecordBatch.from_arrays(
            [*rows.columns, *origins], schema=with_origin_columns(self.schema)
        )


@dataclass(frozen=True, slots=True)
class EditedLeaf:
    """The result of an edit on one version of a leaf.

    Rows at `edited` are deleted or replaced by the rows in `fragments`, in the same order. Rows at
    `moved_out` are replaced by `moved_rows`. `fragments_before` has the fragments of the version if
    rows moved.
    """

    edit: LeafEdit
    version: int
    edited: RowAddresses
    fragments: tuple[FragmentMetadata, ...]
    moved_out: RowAddresses
    moved_rows: SpillBuffer | None
    fragments_before: dict[int, FragmentMetadata]

    @property
    def rows_removed(self) -> int:
        """The number of rows removed from the leaf."""
        return len(self.edited) + len(self.moved_out)

    def to_leaf_write(self, moved_files: Collection[str]) -> LeafWrite:
        """Return the write that applies the edit, given the files with rows moved to the leaf."""
        replacements: tuple[RowReplacement, ...] = ()
        if self.fragments:
            old = pa.table(
                {
                    "leaf": pa.repeat(pa.scalar(0, pa.int32()), len(self.edited)),
                    "address": pa.array(self.edited),
                }
            )
            replacements = (RowReplacement(self.fragments, (self.edit.write.object_id,), old),)
        return replace(
            self.edit.write,
            deletion=lambda dataset: self.to_change(dataset, moved_files),
            is_edit=True,
            moves_rows_out=len(self.moved_out) > 0,
            replacements=replacements,
        )

    def to_change(
        self, dataset: lance.LanceDataset, moved_files: Collection[str]
    ) -> FragmentChange:
        """Return the files to add and the rows to remove on top of a version."""
        found = self
        if dataset.version != self.version:
            found = self.edit.rerun(dataset, self, moved_files)
        gone = np.concatenate([found.edited, found.moved_out])
        return replace(leaf.write_deletions_at(dataset, gone), new=found.fragments)

    def check_moved(self, dataset: lance.LanceDataset) -> None:
        """Refuse to continue if another writer changed fragments that rows were moved out of."""
        now = {each.fragment_id: each.metadata for each in dataset.get_fragments()}
        for number in np.unique(self.moved_out >> OFFSET_BITS).tolist():
            before = self.fragments_before[number]
            if number in now and now[number] == before:
                continue
            raise CommitConflict(
                f"Another writer changed rows of {self.edit.write.location} while they were moved "
                "to other partitions: their old versions are still there, too."
            )


def _write_files(
    dataset: lance.LanceDataset,
    write: LeafWrite,
    batches: Iterator[pa.RecordBatch],
    failure: Sequence[BaseException],
) -> tuple[FragmentMetadata, ...]:
    """Write the rows to files of the leaf; no files if there are no rows."""
    first = next(batches, None)
    if first is None:
        return ()
    reader = pa.RecordBatchReader.from_batches(first.schema, itertools.chain([first], batches))
    try:
        return leaf.write_files(dataset, write.location, reader)
    except (OSError, ValueError):
        if failure:
            raise failure[0] from None
        raise


def _concatenate(parts: Sequence[RowAddresses]) -> RowAddresses:
    return np.concatenate([_NO_ADDRESSES, *parts])
