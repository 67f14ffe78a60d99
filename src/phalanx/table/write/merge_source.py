"""The source of a merge: validated rows with unique keys, accessible by index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from phalanx.errors import InvalidArgument, InvalidSchema, SchemaMismatch
from phalanx.model.schema.grouping import find_positions, group_rows
from phalanx.model.schema.rows import (
    combine_batches,
    conform_rows,
    make_readable,
    to_reader,
    to_row_schema,
)
from phalanx.model.schema.schema import Schema
from phalanx.model.sql.literals import normalize_values
from phalanx.storage.streams.spill_buffer import SpillBudget, buffer_batches

RowIndices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class MergeSource:
    """The rows, and their keys normalized so that equal keys are identical.

    `keyed` has the indices of the rows whose keys contain no NULL: others match nothing.
    """

    batches: tuple[pa.RecordBatch, ...]
    starts: RowIndices
    on: tuple[str, ...]
    keys: pa.Table
    keyed: RowIndices
    schema: pa.Schema

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return int(self.starts[-1])

    def take_keys(self) -> pa.RecordBatch:
        """Return the key columns of the keyed rows, in the table's types."""
        picked = [batch.select(list(self.on)) for batch in self.batches]
        schema = pa.schema([self.schema.field(name) for name in self.on])
        return combine_batches(picked, schema).take(pa.array(self.keyed))

    def take(self, places: RowIndices) -> pa.RecordBatch:
        """Return the rows at these indices."""
        if len(self.batches) == 1:
            return make_readable(self.batches[0].take(pa.array(places)))
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
        return make_readable(combine_batches(parts, self.schema).take(pa.array(back)))

    def find_matches(
        self, rows: pa.RecordBatch, among: RowIndices, on: Sequence[str]
    ) -> RowIndices:
        """Return for each row the index of the source row with its key, or −1.

        Considers only the source rows `among`, and compares only the columns `on`: all these rows
        agree in the other key columns.
        """
        columns = normalize_keys(rows, on)
        wanted = self.keys.select(list(on))
        if len(among) < self.rows:
            wanted = wanted.take(pa.array(among))
        likely = np.ones(rows.num_rows, dtype=bool)
        for name in on:
            column = columns.column(name).combine_chunks()
            if column.null_count:
                likely &= column.is_valid().to_numpy(zero_copy_only=False)
            if _is_searchable(column.type):
                known = pc.is_in(column, value_set=wanted.column(name).combine_chunks())
                likely &= known.to_numpy(zero_copy_only=False)
        found = np.full(rows.num_rows, -1, dtype=np.int64)
        candidates = np.flatnonzero(likely)
        if len(candidates):
            places = find_positions(columns.take(pa.array(candidates)), wanted)
            found[candidates] = np.where(places < 0, -1, among[places])
        return found


def read_merge_source(
    data: Any, on: str | Sequence[str], schema: Schema, budget: SpillBudget
) -> MergeSource:
    """Read the data, and refuse duplicate keys, with an example."""
    names = resolve_merge_keys(on, schema)
    plain = to_row_schema(schema)
    held = buffer_batches(budget, plain, conform_rows(to_reader(data), schema.arrow))
    batches = [batch for batch in held.read_batches() if batch.num_rows]
    if held.is_in_memory:
        table = pa.Table.from_batches(batches, plain).combine_chunks()
        batches = [make_readable(batch) for batch in table.to_batches()]
    sizes = [batch.num_rows for batch in batches]
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    key_batches = [batch.select(list(names)) for batch in batches]
    whole = combine_batches(key_batches, pa.schema([plain.field(name) for name in names]))
    keys = normalize_keys(whole, names)
    present = np.ones(keys.num_rows, dtype=bool)
    for column in keys.columns:
        if column.null_count:
            present &= column.is_valid().to_numpy()
    keyed = np.flatnonzero(present)
    source = MergeSource(tuple(batches), starts, names, keys, keyed, plain)
    _check_unique(source)
    return source


def resolve_merge_keys(on: str | Sequence[str], schema: Schema) -> tuple[str, ...]:
    """Return the distinct columns that `on` names."""
    names = [on] if isinstance(on, str) else list(on) if isinstance(on, Sequence) else []
    if not names or not all(isinstance(name, str) for name in names):
        raise InvalidArgument(f"Cannot merge on {on!r}: expected a column, or a list of columns.")
    found = []
    for name in names:
        try:
            path = schema.resolve(name)
        except InvalidSchema as error:
            raise SchemaMismatch(f"Cannot merge on {name!r}: {error}") from None
        kind = schema.arrow.field(path[0]).type
        if len(path) > 1 or pt.is_nested(kind) or pt.is_null(kind):
            what = f"it is inside {path[0]!r}" if len(path) > 1 else f"its type is {kind}"
            raise SchemaMismatch(
                f"Cannot merge on {name!r}: {what}; expected a top-level column of numbers, text, "
                "bytes, dates or times. Add such a column."
            )
        found.append(path[0])
    return tuple(dict.fromkeys(found))


def normalize_keys(rows: pa.RecordBatch, on: Sequence[str]) -> pa.Table:
    """Normalize keys so that equal values are identical: one zero, one NaN, no dictionaries."""
    return pa.table({name: normalize_values(rows.column(name)) for name in on})


def _is_searchable(kind: pa.DataType) -> bool:
    """Return whether Arrow's `is_in` supports the type."""
    return not (pt.is_floating(kind) or pt.is_duration(kind) or pt.is_decimal(kind))


def _check_unique(source: MergeSource) -> None:
    keys = source.keys.take(pa.array(source.keyed))
    found = group_rows(keys, keys.num_rows)
    if found.count == keys.num_rows:
        return
    counts = np.bincount(found.codes)
    code = int(found.codes[np.flatnonzero(counts[found.codes] > 1)[0]])
    values = found.keys.slice(code, 1).to_pylist()[0]
    key = ", ".join(f"{name} = {value!r}" for name, value in values.items())
    raise SchemaMismatch(
        f"Cannot merge: {counts[code]} rows of the data have the key {key}, and "
        f"{int((counts > 1).sum())} keys occur more than once; expected unique keys. Keep one row "
        "for each key."
    )
