"""Columns that a leaf's path holds, and its files do not (Hive-style layout)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import lance
import pyarrow as pa

from phalanx.errors import SchemaMismatch
from phalanx.model.predicates.predicate import Predicate, all_of, columns_of, conjuncts
from phalanx.model.predicates.rendering import for_lance
from phalanx.model.schema.rows import plain_schema
from phalanx.model.schema.schema import Schema
from phalanx.storage.lance.location import Location


@dataclass(frozen=True, slots=True)
class PathValues:
    """The value that each of these columns has in every row of a leaf."""

    values: Mapping[str, pa.Scalar]

    def restored(self, rows: pa.RecordBatch, names: Iterable[str]) -> pa.RecordBatch:
        """The columns of these names: those of the rows, and from the path what they lack."""
        arrays = {
            name: pa.repeat(self.values[name], rows.num_rows)
            if name in self.values
            else rows.column(name)
            for name in names
        }
        return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


def path_values(leaves: pa.Table, columns: Mapping[str, str] | None) -> Iterator[PathValues | None]:
    """For each leaf the columns in its path, by the partition fields that hold them.

    None stands for a layout whose leaves hold all columns.
    """
    for place in range(leaves.num_rows):
        if columns is None:
            yield None
        else:
            yield PathValues({name: leaves.column(of)[place] for name, of in columns.items()})


def for_leaf(predicate: Predicate, path: PathValues | None) -> tuple[Predicate, Predicate]:
    """What Lance can filter in a leaf, and what is left: conditions on the path among it."""
    if path is None:
        return for_lance(predicate)
    inside: list[Predicate] = []
    outside: list[Predicate] = []
    for part in conjuncts(predicate):
        reads_path = any(column[0] in path.values for column in columns_of(part))
        (outside if reads_path else inside).append(part)
    inner, rest = for_lance(all_of(inside))
    return inner, all_of((rest, *outside))


def check_stored(
    dataset: lance.LanceDataset, schema: Schema, in_path: Collection[str], location: Location
) -> None:
    """Refuse a leaf without the table's columns; those in the path it may have as well."""
    found = dataset.schema
    for field in plain_schema(schema):
        place = found.get_field_index(field.name)
        if field.name in in_path and place < 0:
            continue
        if place < 0 or found.field(place).type != field.type:
            kind = "missing" if place < 0 else str(found.field(place).type)
            raise SchemaMismatch(
                f"Cannot use the partition at {location}: its column {field.name!r} is {kind}, "
                f"expected {field.type} as in the table's schema. All leaves of the hive layout "
                "have the same schema: write this one anew, or move it out of the table."
            )
    if extra := [name for name in found.names if name not in schema.names]:
        raise SchemaMismatch(
            f"Cannot use the partition at {location}: the table has no column {extra[0]!r}. "
            "All leaves of the hive layout have the same schema: drop it there."
        )
