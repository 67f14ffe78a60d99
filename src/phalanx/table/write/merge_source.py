"""The rows that a merge brings: valid, each key once, and at hand by their places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from phalanx.errors import InvalidSchema, SchemaMismatch
from phalanx.model.schema.grouping import group, positions
from phalanx.model.schema.rows import conformed, one_batch, plain_schema, readable, reader_of
from phalanx.model.schema.schema import Schema
from phalanx.model.sql.literals import one_form
from phalanx.storage.streams.spill_buffer import Shelf, parked

Places = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class MergeSource:
    """The rows, and their keys in the form in which equal ones are the same.

    `keyed` are the places of the rows whose keys have no NULL: others match nothing.
    """

    batches: tuple[pa.RecordBatch, ...]
    starts: Places
    on: tuple[str, ...]
    keys: pa.Table
    keyed: Places
    schema: pa.Schema

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return int(self.starts[-1])

    def key_rows(self) -> pa.RecordBatch:
        """The columns of the keys, of the rows that have one, as the table has them."""
        picked = [batch.select(list(self.on)) for batch in self.batches]
        schema = pa.schema([self.schema.field(name) for name in self.on])
        return one_batch(picked, schema).take(pa.array(self.keyed))

    def take(self, places: Places) -> pa.RecordBatch:
        """The rows at these places."""
        if len(self.batches) == 1:
            return readable(self.batches[0].take(pa.array(places)))
        order = np.argsort(places, kind="stable")
        sought = places[order]
        ends = np.searchsorted(sought, self.starts[1:])
        parts = []
        first = 0
        for batch, start, end in zip(self.batches, self.starts, ends.tolist(), strict=False):
            if end > first:
                parts.append(batch.take(pa.array(sought[first:end] - start)))
            first = end
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        return readable(one_batch(parts, self.schema).take(pa.array(back)))

    def matches(self, rows: pa.RecordBatch, among: Places, on: Sequence[str]) -> Places:
        """For each row the place of the source row with its key, of some; −1 where none has it.

        `on` are the columns in which these may differ: the rows have the others as they have.
        """
        columns = comparable_keys(rows, on)
        wanted = self.keys.select(list(on))
        if len(among) < self.rows:
            wanted = wanted.take(pa.array(among))
        likely = np.ones(rows.num_rows, dtype=bool)
        for name in on:
            column = columns.column(name).combine_chunks()
            if column.null_count:
                likely &= column.is_valid().to_numpy(zero_copy_only=False)
            if _is_plain(column.type):
                known = pc.is_in(column, value_set=wanted.column(name).combine_chunks())
                likely &= known.to_numpy(zero_copy_only=False)
        found = np.full(rows.num_rows, -1, dtype=np.int64)
        candidates = np.flatnonzero(likely)
        if len(candidates):
            places = positions(columns.take(pa.array(candidates)), wanted)
            found[candidates] = np.where(places < 0, -1, among[places])
        return found


def merge_source(data: Any, on: str | Sequence[str], schema: Schema, shelf: Shelf) -> MergeSource:
    """The rows of some data; a key that is there twice is refused with an example."""
    names = key_columns(on, schema)
    plain = plain_schema(schema)
    held = parked(shelf, plain, conformed(reader_of(data), schema.arrow))
    batches = [batch for batch in held.batches() if batch.num_rows]
    if held.is_in_memory:
        table = pa.Table.from_batches(batches, plain).combine_chunks()
        batches = [readable(batch) for batch in table.to_batches()]
    sizes = [batch.num_rows for batch in batches]
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    key_batches = [batch.select(list(names)) for batch in batches]
    whole = one_batch(key_batches, pa.schema([plain.field(name) for name in names]))
    keys = comparable_keys(whole, names)
    present = np.ones(keys.num_rows, dtype=bool)
    for column in keys.columns:
        if column.null_count:
            present &= column.is_valid().to_numpy()
    keyed = np.flatnonzero(present)
    source = MergeSource(tuple(batches), starts, names, keys, keyed, plain)
    _check_once(source)
    return source


def key_columns(on: str | Sequence[str], schema: Schema) -> tuple[str, ...]:
    """The columns that `on` names, each once."""
    names = [on] if isinstance(on, str) else list(on) if isinstance(on, Sequence) else []
    if not names or not all(isinstance(name, str) for name in names):
        raise SchemaMismatch(f"Cannot merge on {on!r}: expected a column, or a list of columns.")
    found = []
    for name in names:
        try:
            path = schema.resolve(name)
        except InvalidSchema as error:
            raise SchemaMismatch(f"Cannot merge on {name!r}: {error}") from None
        kind = schema.arrow.field(path[0]).type
        if len(path) > 1 or pt.is_nested(kind) or pt.is_null(kind):
            what = f"it is inside {path[0]!r}" if len(path) > 1 else f"it is {kind}"
            raise SchemaMismatch(
                f"Cannot merge on {name!r}: {what}, and keys are whole columns of numbers, text, "
                "bytes, dates or times. Give it a column of its own."
            )
        found.append(path[0])
    return tuple(dict.fromkeys(found))


def comparable_keys(rows: pa.RecordBatch, on: Sequence[str]) -> pa.Table:
    """The keys with equal values in one form: one zero, one NaN, no dictionaries."""
    return pa.table({name: one_form(rows.column(name)) for name in on})


def _is_plain(kind: pa.DataType) -> bool:
    """Whether Arrow finds values of the type in a set."""
    return not (pt.is_floating(kind) or pt.is_duration(kind) or pt.is_decimal(kind))


def _check_once(source: MergeSource) -> None:
    keys = source.keys.take(pa.array(source.keyed))
    found = group(keys, keys.num_rows)
    if found.count == keys.num_rows:
        return
    counts = np.bincount(found.codes)
    code = int(found.codes[np.flatnonzero(counts[found.codes] > 1)[0]])
    values = found.keys.slice(code, 1).to_pylist()[0]
    key = ", ".join(f"{name} = {value!r}" for name, value in values.items())
    raise SchemaMismatch(
        f"Cannot merge: {counts[code]} rows of the data have the key {key}, and "
        f"{int((counts > 1).sum())} keys are there more than once; expected each once. Keep one "
        "row for each key."
    )
