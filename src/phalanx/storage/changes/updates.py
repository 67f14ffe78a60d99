"""Updates: the pairs of old and new rows of a snapshot, stored in a file beside it.

Each commit that updates rows writes one file to a folder of the root, and the snapshot's row names
it (FORMAT.md, section 6). Vacuum removes files that no snapshot names.
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

from phalanx.storage.changes.row_positions import Codes, RowMask, RowOffsets, RowPositions
from phalanx.storage.lance.failures import translate_read_errors
from phalanx.storage.lance.fault_points import FaultPoint, fault_point
from phalanx.storage.lance.files import open_store, translate_store_errors
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.ownership import check_no_links

UPDATES_FOLDER = "_phalanx_updates"
_FILE = re.compile(rf"{UPDATES_FOLDER}/(?P<name>[0-9a-f]{{32}})\.arrow")
_read_lock = threading.Lock()
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
    """Pairs of rows: `new[i]` replaced `old[i]`. No row is in two pairs."""

    old: RowPositions
    new: RowPositions

    def __post_init__(self) -> None:
        assert len(self.old) == len(self.new)

    def __len__(self) -> int:
        return len(self.old)

    @classmethod
    def empty(cls) -> Updates:
        """Return no pairs."""
        return cls(RowPositions.empty(), RowPositions.empty())

    @classmethod
    def concat(cls, parts: Iterable[Updates]) -> Updates:
        """Concatenate pairs that update different rows."""
        found = list(parts)
        return cls(
            RowPositions.concat(each.old for each in found),
            RowPositions.concat(each.new for each in found),
        )

    def combine_with(self, later: Updates, added: Iterable[str]) -> Updates:
        """Combine these pairs with later ones of the same transaction into one step.

        A row that was updated twice is one pair. A row of a file that the transaction itself
        `added` is not updated, but inserted with its final values.
        """
        if not len(later):
            return self
        indices = later.old.find_in(self.new)
        again = indices >= 0
        kept = np.ones(len(self), np.bool_)
        kept[indices[again]] = False
        fresh = ~again & ~later.old.is_in_files(added)
        return Updates.concat(
            [
                self.take(kept),
                Updates(self.old.take(indices[again]), later.new.take(again)),
                later.take(fresh),
            ]
        )

    def take(self, chosen: Codes | RowMask) -> Updates:
        """Return the chosen pairs."""
        return Updates(self.old.take(chosen), self.new.take(chosen))

    def relocate(self, source: RowPositions, target: RowPositions) -> Updates:
        """Return the pairs after new rows were rewritten from `source[i]` to `target[i]`.

        Drop the pairs of rows in the source files that were not rewritten.
        """
        indices = self.new.find_in(source)
        is_found = indices >= 0
        stayed = ~is_found & ~self.new.is_in_files(source.files)
        return Updates.concat(
            [
                self.take(stayed),
                Updates(self.old.take(is_found), target.take(indices[is_found])),
            ]
        )

    def keep_live(self, live: Mapping[str, RowOffsets | None]) -> Updates:
        """Return the pairs whose new rows are live, given live offsets by file (None: all)."""
        kept = self.new.is_in_files(live)
        for code, file in enumerate(self.new.files):
            if (offsets := live.get(file)) is not None:
                inside = np.flatnonzero(self.new.codes == code)
                kept[inside] = np.isin(self.new.offsets[inside], offsets)
        return self if kept.all() else self.take(kept)

    def write(self, root: Location) -> str:
        """Write the pairs to a new file; return its name."""
        pairs = self.take(self.old.argsort())
        name = uuid.uuid4().hex
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.ipc.new_file(sink, _SCHEMA, options=options) as writer:
            writer.write_table(pairs._to_arrow())
        location = root.subfolder(updates_path(name))
        with translate_store_errors(f"write the updates {location}"):
            if location.is_local:
                # No reader opens it before the commit that names it.
                path = Path(location.uri.removeprefix("file://"))
                check_no_links(root.subfolder(UPDATES_FOLDER).uri, root.uri)
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(sink.getvalue())
            else:
                open_store(root).put(updates_path(name), sink.getvalue().to_pybytes())
        fault_point(FaultPoint.UPDATES_WRITTEN)
        return name

    @classmethod
    def read(cls, root: Location, name: str) -> Updates:
        """Read the pairs of a file."""
        location = root.subfolder(updates_path(name))
        with translate_read_errors(f"read the updates {location}"):
            data = open_store(root).get(updates_path(name)).bytes()
            table = pa.ipc.open_file(pa.py_buffer(data)).read_all().combine_chunks()
            if table.schema != _SCHEMA:
                raise ValueError(f"its columns are {table.schema.names}")
            table.validate(full=True)
        sides = [
            RowPositions(
                tuple(_get_chunk(table, f"{side}_file").dictionary.to_pylist()),
                _get_chunk(table, f"{side}_file").indices.to_numpy().astype(np.int64),
                _get_chunk(table, f"{side}_row").to_numpy(),
            )
            for side in ("old", "new")
        ]
        return cls(*sides)

    def _to_arrow(self) -> pa.Table:
        columns: list[pa.Array] = []
        for side in (self.old, self.new):
            codes = pa.array(side.codes.astype(np.int32))
            columns += [
                pa.DictionaryArray.from_arrays(codes, pa.array(side.files, pa.string())),
                pa.array(side.offsets),
            ]
        return pa.table(columns, schema=_SCHEMA)


def _get_chunk(table: pa.Table, name: str) -> pa.Array:
    column = table.column(name)
    return column.chunk(0) if column.num_chunks else pa.array([], column.type)


def updates_path(name: str) -> str:
    """Return the path of a file of updates in the root."""
    return f"{UPDATES_FOLDER}/{name}.arrow"


def parse_updates_path(path: str) -> str | None:
    """Return the name of the updates at a path in the root; None for other files."""
    found = _FILE.fullmatch(path)
    return None if found is None else found["name"]


@dataclass(frozen=True, slots=True, eq=False)
class UpdateIndex:
    """One side of updates, indexed by file and offset to find the number of a row's pair."""

    positions: RowPositions
    # The numbers of the pairs grouped by file, and where each file begins.
    order: Codes
    starts: Codes
    file_codes: Mapping[str, int]

    @classmethod
    def of(cls, positions: RowPositions) -> UpdateIndex:
        """Build the index."""
        order = positions.argsort_by(np.arange(len(positions.files), dtype=np.int64))
        ends = np.cumsum(np.bincount(positions.codes, minlength=len(positions.files)))
        numbered = {file: code for code, file in enumerate(positions.files)}
        return cls(positions, order, np.concatenate([[0], ends]), numbered)

    def find_pairs(self, file: str, offsets: RowOffsets) -> Codes:
        """Return the number of the pair of each row of a file; -1 if it has none."""
        code = self.file_codes.get(file)
        if code is None:
            return np.full(len(offsets), -1, np.int64)
        pairs = self.order[self.starts[code] : self.starts[code + 1]]
        if not len(pairs):
            return np.full(len(offsets), -1, np.int64)
        known = self.positions.offsets[pairs]
        found = np.minimum(np.searchsorted(known, offsets), len(known) - 1)
        return np.where(known[found] == offsets, pairs[found], -1).astype(np.int64)


def read_update_indexes(root: Location, name: str) -> tuple[UpdateIndex, UpdateIndex]:
    """Read the indexes of the old and of the new rows; cached, as a snapshot is read in one go."""
    # If several threads need the same file at once, one of them reads it.
    with _read_lock:
        return _read_indexes(root, name)


@lru_cache(maxsize=2)
def _read_indexes(root: Location, name: str) -> tuple[UpdateIndex, UpdateIndex]:
    found = Updates.read(root, name)
    return UpdateIndex.of(found.old), UpdateIndex.of(found.new)
