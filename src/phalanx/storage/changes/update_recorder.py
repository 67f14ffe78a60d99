"""Records the updates of a transaction statement by statement, and writes them at its commit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lance.fragment import FragmentMetadata

from phalanx.storage.changes.row_positions import (
    RowOffsets,
    RowPositions,
    data_file_of,
    read_live_offsets,
)
from phalanx.storage.changes.updates import Updates
from phalanx.storage.commit.writing import LeafWrite, RowReplacement
from phalanx.storage.lance.location import Location

# The leaf number of rows that replace none.
_NO_LEAF = -1


class UpdateRecorder:
    """Pairs of rows in the base snapshot of a transaction and the new rows replacing them."""

    def __init__(self) -> None:
        self._updates = Updates.empty()
        # Files with rows that the transaction added.
        self._added: set[str] = set()
        self._statements = 0
        # Old and new positions of rows that were rewritten on top of another snapshot.
        self._moves: list[tuple[RowPositions, RowPositions]] = []
        self._name: str | None = None

    def add(self, writes: Sequence[LeafWrite]) -> None:
        """Record the writes of a statement, before or after they are staged."""
        self._statements += 1
        known = {write.object_id: write for write in writes}
        found = [
            _pair_rows(replacement, known) for write in writes for replacement in write.replacements
        ]
        if found:
            self._updates = self._updates.combine_with(Updates.concat(found), self._added)
            self._name = None
        for write in writes:
            replaced = [each.fragments for each in write.replacements]
            for fragments in (write.fragments, *replaced):
                self._added.update(map(data_file_of, fragments))

    def begin_attempt(self) -> None:
        """Begin an attempt to commit, on top of the newest snapshot."""
        if self._moves:
            self._moves, self._name = [], None

    def record_rebase(
        self, source: Location, staged: int, target: Location, current: int, version: int
    ) -> None:
        """Record that a staged version of a leaf was rebased on top of a current one.

        Files that could not be reused were rewritten, with their rows in the same order.
        """
        if not len(self._updates):
            return
        before, now = source.open_leaf(staged), target.open_leaf(version)
        reused = {data_file_of(each.metadata) for each in now.get_fragments()}
        current_files = {
            data_file_of(each.metadata) for each in target.open_leaf(current).get_fragments()
        }
        rewritten = [
            each.metadata
            for each in before.get_fragments()
            if (file := data_file_of(each.metadata)) in self._added and file not in reused
        ]
        if not rewritten:
            return
        staged_files = {data_file_of(each.metadata) for each in before.get_fragments()}
        added = [
            each.metadata
            for each in now.get_fragments()
            if data_file_of(each.metadata) not in current_files | staged_files
        ]
        rows = [read_live_offsets(before, fragment) for fragment in rewritten]
        positions = RowPositions(
            tuple(map(data_file_of, rewritten)),
            np.repeat(np.arange(len(rewritten), dtype=np.int64), [len(each) for each in rows]),
            np.concatenate(rows),
        )
        self._moves.append((positions, RowPositions.from_new_files(added)))
        self._name = None

    def write(self, root: Location, leaves: Iterable[tuple[Location, int]]) -> str | None:
        """Write the updates to a file and return its name; None if there are no updates.

        `leaves` are those that the transaction has staged.
        """
        if not len(self._updates):
            return None
        if self._name is None:
            found = self._updates
            if self._statements > 1:
                # Rows that a later statement removed are not updates.
                found = found.keep_live(self._read_live_rows(leaves))
            for source, target in self._moves:
                found = found.relocate(source, target)
            if not len(found):
                return None
            self._name = found.write(root)
        return self._name

    def _read_live_rows(
        self, leaves: Iterable[tuple[Location, int]]
    ) -> dict[str, RowOffsets | None]:
        """Return the final files of the transaction and their live rows (None: all)."""
        wanted = set(self._updates.new.files)
        found: dict[str, RowOffsets | None] = {}
        for location, version in leaves:
            dataset = location.open_leaf(version)
            for fragment in (each.metadata for each in dataset.get_fragments()):
                if (file := data_file_of(fragment)) in wanted:
                    has_all = fragment.deletion_file is None
                    found[file] = None if has_all else read_live_offsets(dataset, fragment)
        return found


def _pair_rows(replacement: RowReplacement, writes: dict[str, LeafWrite]) -> Updates:
    """Pair the rows of new files with the rows that they replace."""
    old = replacement.old
    numbers = pc.fill_null(old.column("leaf"), _NO_LEAF).to_numpy()
    addresses = pc.fill_null(old.column("address").cast(pa.uint64()), 0).to_numpy()
    new = RowPositions.from_new_files(replacement.fragments)
    found = []
    for number in np.unique(numbers[numbers != _NO_LEAF]).tolist():
        write = writes[replacement.leaves[number]]
        chosen = np.flatnonzero(numbers == number)
        before = RowPositions.from_addresses(
            _list_fragments(write.location.open_leaf(write.version)), addresses[chosen]
        )
        found.append(Updates(before, new.take(chosen)))
    return Updates.concat(found)


def _list_fragments(dataset: lance.LanceDataset) -> list[FragmentMetadata]:
    return [each.metadata for each in dataset.get_fragments()]
