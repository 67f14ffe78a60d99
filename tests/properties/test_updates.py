"""Combined updates of several statements equal those of a dictionary of rows."""

from __future__ import annotations

import tempfile

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from phalanx.storage.changes.row_positions import RowPositions
from phalanx.storage.changes.updates import UpdateIndex, Updates
from phalanx.storage.lance.location import Location

Place = tuple[str, int]


def places(rows: list[Place]) -> RowPositions:
    return RowPositions.of([file for file, _ in rows], [row for _, row in rows])


def pairs(updates: Updates) -> dict[Place, Place]:
    sides = [
        [(side.files[code], int(row)) for code, row in zip(side.codes, side.offsets, strict=True)]
        for side in (updates.old, updates.new)
    ]
    found = dict(zip(*sides, strict=True))
    assert len(found) == len(updates)
    return found


@given(st.data())
def test_statements_of_one_transaction(data: st.DataObject) -> None:
    """Rows of the table are in `t`, those that each statement writes in files of its own."""
    there: dict[Place, Place | None] = {("t", row): ("t", row) for row in range(6)}
    found, added = Updates.empty(), set[str]()
    for number in range(data.draw(st.integers(0, 4))):
        chosen = data.draw(st.permutations(sorted(there)))[: data.draw(st.integers(0, 6))]
        files = data.draw(st.lists(st.sampled_from("xy"), min_size=6, max_size=6))
        new = [(f"{file}{number}", row) for row, file in enumerate(files)][: len(chosen)]
        found = found.combine_with(Updates(places(chosen), places(new)), added)
        for old, place in zip(chosen, new, strict=True):
            there[place] = there.pop(old)
        inserted = (f"i{number}", 0)
        there[inserted] = None
        added |= {place[0] for place in there} - {"t"}
    # An unmoved row is no update; a row that the transaction inserted has no origin.
    assert pairs(found) == {
        origin: place for place, origin in there.items() if origin is not None and origin != place
    }
    live = {file: {row for f, row in there if f == file} for file, _ in there}
    gone = data.draw(st.sets(st.sampled_from(sorted(there))))
    kept = found.keep_live(
        {
            file: np.array([row for row in sorted(rows) if (file, row) not in gone], np.uint32)
            for file, rows in live.items()
        }
    )
    assert pairs(kept) == {a: b for a, b in pairs(found).items() if b not in gone}
    left = data.draw(st.sets(st.sampled_from(sorted({file for file, _ in there}))))
    source = [place for place in sorted(there) if place[0] in left]
    moved = kept.relocate(places(source), places([("z", n) for n in range(len(source))]))
    assert pairs(moved) == {
        a: ("z", source.index(b)) if b in source else b for a, b in pairs(kept).items()
    }
    with tempfile.TemporaryDirectory() as folder:
        root = Location.of(folder)
        stored = Updates.read(root, moved.write(root))
    assert pairs(stored) == pairs(moved)
    old, new_side = UpdateIndex.of(stored.old), UpdateIndex.of(stored.new)
    for before, after in pairs(moved).items():
        numbers = [
            links.find_pairs(file, np.array([row], np.uint32)).tolist()
            for links, (file, row) in ((old, before), (new_side, after))
        ]
        assert numbers[0] == numbers[1] != [-1]
    assert old.find_pairs("nowhere", np.array([0], np.uint32)).tolist() == [-1]
