"""The updates of one transaction, as they are found statement by statement, then written down."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lance.fragment import FragmentMetadata

from phalanx.storage.changes.row_positions import Places, Rows, file_of, live_places
from phalanx.storage.changes.updates import Updates
from phalanx.storage.commit.writing import LeafWrite, Replacement
from phalanx.storage.lance.location import Location

# The number of no leaf.
_NONE = -1


class Recording:
    """Which rows of the snapshot that a transaction began with became which of its own."""

    def __init__(self) -> None:
        self._updates = Updates.none()
        # Files with rows that the transaction has brought.
        self._added: set[str] = set()
        self._statements = 0
        # Where new rows went that had to be written anew, on top of another snapshot.
        self._moves: list[tuple[Places, Places]] = []
        self._name: str | None = None

    def add(self, writes: Sequence[LeafWrite]) -> None:
        """Note what a statement does, which is about to be staged or just was."""
        self._statements += 1
        known = {write.object_id: write for write in writes}
        found = [
            _pairs(replacement, known) for write in writes for replacement in write.replacements
        ]
        if found:
            self._updates = self._updates.then(Updates.all_of(found), self._added)
            self._name = None
        for write in writes:
            replaced = [each.fragments for each in write.replacements]
            for fragments in (write.fragments, *replaced):
                self._added.update(map(file_of, fragments))

    def begin(self) -> None:
        """An attempt to commit begins, on top of the snapshot that is the newest now."""
        if self._moves:
            self._moves, self._name = [], None

    def follow(
        self, source: Location, staged: int, target: Location, current: int, version: int
    ) -> None:
        """Note that a staged version of a leaf became a version on top of a current one.

        What could not be taken over as it is was written anew there, in the same order.
        """
        if not len(self._updates):
            return
        before, now = source.open_leaf(staged), target.open_leaf(version)
        kept = {file_of(each.metadata) for each in now.get_fragments()}
        there = {file_of(each.metadata) for each in target.open_leaf(current).get_fragments()}
        left = [
            each.metadata
            for each in before.get_fragments()
            if (file := file_of(each.metadata)) in self._added and file not in kept
        ]
        if not left:
            return
        known = {file_of(each.metadata) for each in before.get_fragments()}
        came = [
            each.metadata
            for each in now.get_fragments()
            if file_of(each.metadata) not in there | known
        ]
        rows = [live_places(before, fragment) for fragment in left]
        places = Places(
            tuple(map(file_of, left)),
            np.repeat(np.arange(len(left), dtype=np.int64), [len(each) for each in rows]),
            np.concatenate(rows),
        )
        self._moves.append((places, Places.written(came)))
        self._name = None

    def written(self, root: Location, leaves: Iterable[tuple[Location, int]]) -> str | None:
        """The name of the file that has the updates, as they are committed; None for none.

        `leaves` are those that the transaction has staged.
        """
        if not len(self._updates):
            return None
        if self._name is None:
            found = self._updates
            if self._statements > 1:
                # What a later statement removed was no update in the end.
                found = found.still_there(self._live(leaves))
            for source, target in self._moves:
                found = found.moved(source, target)
            if not len(found):
                return None
            self._name = found.write(root)
        return self._name

    def _live(self, leaves: Iterable[tuple[Location, int]]) -> dict[str, Rows | None]:
        """The files of the transaction that are there at last, and which of their rows."""
        wanted = set(self._updates.new.files)
        found: dict[str, Rows | None] = {}
        for location, version in leaves:
            dataset = location.open_leaf(version)
            for fragment in (each.metadata for each in dataset.get_fragments()):
                if (file := file_of(fragment)) in wanted:
                    all_there = fragment.deletion_file is None
                    found[file] = None if all_there else live_places(dataset, fragment)
        return found


def _pairs(replacement: Replacement, writes: dict[str, LeafWrite]) -> Updates:
    """The rows of written files, each with the one that it stands for."""
    old = replacement.old
    numbers = pc.fill_null(old.column("leaf"), _NONE).to_numpy()
    addresses = pc.fill_null(old.column("address").cast(pa.uint64()), 0).to_numpy()
    new = Places.written(replacement.fragments)
    found = []
    for number in np.unique(numbers[numbers != _NONE]).tolist():
        write = writes[replacement.leaves[number]]
        mine = np.flatnonzero(numbers == number)
        before = Places.at(_fragments(write.location.open_leaf(write.version)), addresses[mine])
        found.append(Updates(before, new.take(mine)))
    return Updates.all_of(found)


def _fragments(dataset: lance.LanceDataset) -> list[FragmentMetadata]:
    return [each.metadata for each in dataset.get_fragments()]
