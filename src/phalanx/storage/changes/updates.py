"""Updates: which row became which, written down beside the snapshot that did it.

One file for each commit that updates rows, in a folder of the root. The snapshot's row names it;
a file that no snapshot names is debris, which vacuum removes.
"""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa

from phalanx.storage.changes.row_positions import Codes, Mask, Places, Rows
from phalanx.storage.lance.failures import reading
from phalanx.storage.lance.fault_points import Step, reach
from phalanx.storage.lance.files import store_of, telling
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.ownership import check_in_place

FOLDER = "_phalanx_updates"
_FILE = re.compile(rf"{FOLDER}/(?P<name>[0-9a-f]{{32}})\.arrow")
_reading = threading.Lock()
_NAMES = pa.dictionary(pa.int32(), pa.string())
_SCHEMA = pa.schema(
    [
        ("old_file", _NAMES),
        ("old_row", pa.uint32()),
        ("new_file", _NAMES),
        ("new_row", pa.uint32()),
    ]
)


@dataclass(frozen=True, slots=True, eq=False)
class Updates:
    """Rows before and after, in pairs: `old[i]` became `new[i]`. No row is in two pairs."""

    old: Places
    new: Places

    def __post_init__(self) -> None:
        assert len(self.old) == len(self.new)

    def __len__(self) -> int:
        return len(self.old)

    @classmethod
    def none(cls) -> Updates:
        """No pairs."""
        return cls(Places.none(), Places.none())

    @classmethod
    def all_of(cls, parts: Iterable[Updates]) -> Updates:
        """The pairs of several, which update different rows."""
        found = list(parts)
        return cls(
            Places.all_of(each.old for each in found), Places.all_of(each.new for each in found)
        )

    def then(self, later: Updates, added: Iterable[str]) -> Updates:
        """These pairs followed by others in the same transaction, as one step.

        A row that was updated twice is one pair. A row of a file that the transaction itself
        has `added` was not there before: it is no update, but comes as it is at last.
        """
        if not len(later):
            return self
        places = later.old.positions_in(self.new)
        again = places >= 0
        kept = np.ones(len(self), np.bool_)
        kept[places[again]] = False
        fresh = ~again & ~later.old.are_in(added)
        return Updates.all_of(
            [
                self.take(kept),
                Updates(self.old.take(places[again]), later.new.take(again)),
                later.take(fresh),
            ]
        )

    def take(self, chosen: Codes | Mask) -> Updates:
        """Some of the pairs."""
        return Updates(self.old.take(chosen), self.new.take(chosen))

    def moved(self, source: Places, target: Places) -> Updates:
        """The pairs after new rows were written anew: what was at `source[i]` is at `target[i]`.

        Of a file that was left, rows that are in no other now are gone.
        """
        places = self.new.positions_in(source)
        there = places >= 0
        stayed = ~there & ~self.new.are_in(source.files)
        return Updates.all_of(
            [
                self.take(stayed),
                Updates(self.old.take(there), target.take(places[there])),
            ]
        )

    def still_there(self, live: Mapping[str, Rows | None]) -> Updates:
        """The pairs whose new rows are there: by file the places that are, None for all."""
        kept = self.new.are_in(live)
        for code, file in enumerate(self.new.files):
            if (places := live.get(file)) is not None:
                mine = np.flatnonzero(self.new.codes == code)
                kept[mine] = np.isin(self.new.rows[mine], places)
        return self if kept.all() else self.take(kept)

    def write(self, root: Location) -> str:
        """Write them to a file of their own; its name, which nobody knows yet."""
        pairs = self.take(self.old.order())
        name = uuid.uuid4().hex
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.ipc.new_file(sink, _SCHEMA, options=options) as writer:
            writer.write_table(pairs._table())
        place = root.own(path_of(name))
        with telling(f"write the updates {place}"):
            if place.is_local:
                # Nobody looks at it before the commit that names it.
                path = Path(place.uri.removeprefix("file://"))
                check_in_place(root.own(FOLDER).uri, root.uri)
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(sink.getvalue())
            else:
                store_of(root).put(path_of(name), sink.getvalue().to_pybytes())
        reach(Step.UPDATES_WRITTEN)
        return name

    @classmethod
    def read(cls, root: Location, name: str) -> Updates:
        """The pairs of a file."""
        place = root.own(path_of(name))
        with reading(f"read the updates {place}"):
            data = store_of(root).get(path_of(name)).bytes()
            table = pa.ipc.open_file(pa.py_buffer(data)).read_all().combine_chunks()
            if table.schema != _SCHEMA:
                raise ValueError(f"its columns are {table.schema.names}")
            table.validate(full=True)
        sides = [
            Places(
                tuple(_chunk(table, f"{side}_file").dictionary.to_pylist()),
                _chunk(table, f"{side}_file").indices.to_numpy().astype(np.int64),
                _chunk(table, f"{side}_row").to_numpy(),
            )
            for side in ("old", "new")
        ]
        return cls(*sides)

    def _table(self) -> pa.Table:
        columns: list[pa.Array] = []
        for side in (self.old, self.new):
            codes = pa.array(side.codes.astype(np.int32))
            columns += [
                pa.DictionaryArray.from_arrays(codes, pa.array(side.files, pa.string())),
                pa.array(side.rows),
            ]
        return pa.table(columns, schema=_SCHEMA)


def _chunk(table: pa.Table, name: str) -> pa.Array:
    column = table.column(name)
    return column.chunk(0) if column.num_chunks else pa.array([], column.type)


def path_of(name: str) -> str:
    """Where in the root the updates of a name are."""
    return f"{FOLDER}/{name}.arrow"


def name_at(path: str) -> str | None:
    """The name of the updates at a path in the root; None where something else is."""
    found = _FILE.fullmatch(path)
    return None if found is None else found["name"]


@dataclass(frozen=True, slots=True, eq=False)
class Links:
    """One side of updates, to be looked up: by file its rows, each with the number of its pair."""

    places: Places
    # The pairs, those of each file together, and where each file's begin.
    order: Codes
    starts: Codes
    numbered: Mapping[str, int]

    @classmethod
    def of(cls, places: Places) -> Links:
        """What links rows to their other sides."""
        order = places.order_by(np.arange(len(places.files), dtype=np.int64))
        ends = np.cumsum(np.bincount(places.codes, minlength=len(places.files)))
        numbered = {file: code for code, file in enumerate(places.files)}
        return cls(places, order, np.concatenate([[0], ends]), numbered)

    def numbers(self, file: str, rows: Rows) -> Codes:
        """For each row of a file the number of its pair; -1 where it has none."""
        code = self.numbered.get(file)
        if code is None:
            return np.full(len(rows), -1, np.int64)
        mine = self.order[self.starts[code] : self.starts[code + 1]]
        if not len(mine):
            return np.full(len(rows), -1, np.int64)
        known = self.places.rows[mine]
        found = np.minimum(np.searchsorted(known, rows), len(known) - 1)
        return np.where(known[found] == rows, mine[found], -1).astype(np.int64)


def links_of(root: Location, name: str) -> tuple[Links, Links]:
    """The links of the old rows and of the new ones; all rows of a snapshot are told in a row."""
    # Several threads need the same at once: one of them reads it.
    with _reading:
        return _links(root, name)


@lru_cache(maxsize=2)
def _links(root: Location, name: str) -> tuple[Links, Links]:
    found = Updates.read(root, name)
    return Links.of(found.old), Links.of(found.new)
