"""Columns whose values are in a leaf's path and not in its files (Hive-style layout)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import lance
import pyarrow as pa

from phalanx.errors import SchemaMismatch
from phalanx.model.predicates.predicate import (
    Predicate,
    all_of,
    find_predicate_columns,
    split_conjuncts,
)
from phalanx.model.predicates.rendering import split_for_lance
from phalanx.model.schema.rows import to_row_schema
from phalanx.model.schema.schema import Schema
from phalanx.storage.lance.location import Location


@dataclass(frozen=True, slots=True)
class PathValues:
    """The value of each such column, which is the same in all rows of a leaf."""

    values: Mapping[str, pa.Scalar]

    def restore_columns(self, rows: pa.RecordBatch, names: Iterable[str]) -> pa.RecordBatch:
        """Return these columns, taking those that the rows lack from the path."""
        arrays = {
            name: pa.repeat(self.values[name], rows.num_rows)
            if name in self.values
            else rows.column(name)
            for name in names
        }
        return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


def list_path_values(
    leaves: pa.Table, columns: Mapping[str, str] | None
) -> Iterator[PathValues | None]:
    """Yield the path values of each leaf, given the partition field of each column.

    `columns` is None for a layout whose leaves contain all columns.
    """
    for position in range(leaves.num_rows):
        if columns is None:
            yield None
        else:
            yield PathValues({name: leaves.column(of)[position] for name, of in columns.items()})


def split_for_leaf(predicate: Predicate, path: PathValues | None) -> tuple[Predicate, Predicate]:
    """Split a predicate into the part that Lance can filter by, and the rest."""
    if path is None:
        return split_for_lance(predicate)
    inside: list[Predicate] = []
    outside: list[Predicate] = []
    for part in split_conjuncts(predicate):
        reads_path = any(column[0] in path.values for column in find_predicate_columns(part))
        (outside if reads_path else inside).append(part)
    inner, rest = split_for_lance(all_of(inside))
    return inner, all_of((rest, *outside))


def check_stored_columns(
    dataset: lance.LanceDataset, schema: Schema, path_columns: Collection[str], location: Location
) -> None:
    """Refuse a leaf without the table's columns; those in the path are optional."""
    found = dataset.schema
    for field in to_row_schema(schema):
        position = found.get_field_index(field.name)
        if field.name in path_columns and position < 0:
            continue
        if position < 0 or found.field(position).type != field.type:
            kind = "missing" if position < 0 else str(found.field(position).type)
            raise SchemaMismatch(
                f"Cannot use the partition at {location}: its column {field.name!r} is {kind}, "
                f"expected {field.type} as in the table's schema. All leaves of the hive layout "
                "have the same schema: rewrite this one, or move it out of the table."
            )
    if extra := [name for name in found.names if name not in schema.names]:
        raise SchemaMismatch(
            f"Cannot use the partition at {location}: the table has no column {extra[0]!r}. "
            "All leaves of the hive layout have the same schema: drop the column in this leaf."
        )
