"""The distinct partition values of the files of a table, and conditions on them in SQL.

Each distinct text is cast once to its type, and tested once against a predicate. The SQL of the
catalog then compares texts, which is fast and means the same in every database.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from phalanx.errors import InvalidCatalog
from phalanx.foreign.ducklake.connection import CatalogReader, quote_text
from phalanx.foreign.ducklake.specs import UNPARTITIONED, Partitionings
from phalanx.model.predicates.evaluation import match_arrays
from phalanx.model.predicates.predicate import (
    Always,
    And,
    Opaque,
    Or,
    Predicate,
    find_predicate_columns,
)

# Longer lists are not pushed down; the rows that the catalog returns are filtered instead.
_MAX_TEXTS = 1_000


@dataclass(frozen=True, slots=True, eq=False)
class StoredValues:
    """The distinct values of a partition key, NULL included, as texts and in their type."""

    texts: pa.Array
    values: pa.Array


def read_stored_values(
    reader: CatalogReader,
    table_id: int,
    file_condition: str,
    partitionings: Partitionings,
    label: str,
) -> Mapping[int, tuple[StoredValues, ...]]:
    """Return, for each partitioning, the values of each of its keys.

    `file_condition` is SQL that selects the files `f` of the table at its snapshot. Raises
    `InvalidCatalog` for a file of an unknown partitioning, a missing value, or a value of the
    wrong type.
    """
    files = _count_files_by_spec(reader, file_condition, partitionings, label)
    rows, ever = _read_single_spec_values(reader, table_id, partitionings)
    if rows is not None:
        files = ever
    else:
        rows = reader.fetch_arrow(
            "SELECT f.partition_id, v.partition_key_index AS index, v.partition_value AS text, "
            f"count(*) AS files FROM {reader.qualify('ducklake_file_partition_value')} v "
            f"JOIN {reader.qualify('ducklake_data_file')} f ON f.data_file_id = v.data_file_id "
            f"WHERE v.table_id = {table_id} AND f.partition_id IS NOT NULL AND {file_condition} "
            "GROUP BY ALL"
        )
    found: dict[int, tuple[StoredValues, ...]] = {}
    for spec_id, spec in partitionings.specs.items():
        keys = []
        own = rows.filter(pc.equal(rows.column("partition_id"), spec_id))
        for index, field in enumerate(spec.fields):
            values = own.filter(pc.equal(own.column("index"), index))
            where = f"{label}, partitioning {spec_id}, partition key {index}"
            counted = pc.sum(values.column("files"), min_count=0).as_py()
            if int(counted) != files.get(spec_id, 0):
                raise InvalidCatalog(
                    f"{where}: {files.get(spec_id, 0):,} data files, but "
                    f"ducklake_file_partition_value has {int(counted):,} values. "
                    "The catalog is damaged."
                )
            cast = partitionings.casts[spec_id][index]
            keys.append(_cast_values(reader, values, cast, field.result_type, where))
        found[spec_id] = tuple(keys)
    return found


def _read_single_spec_values(
    reader: CatalogReader, table_id: int, partitionings: Partitionings
) -> tuple[pa.Table | None, dict[int, int]]:
    """Return the values of all files that ever existed, and their number, if there is one spec.

    This is the common case and needs no join. Returns None in other cases.
    """
    partitioned = [spec_id for spec_id, spec in partitionings.specs.items() if spec.fields]
    if len(partitioned) != 1:
        return None, {}
    (spec_id,) = partitioned
    rows = reader.fetch_arrow(
        f"SELECT {spec_id} AS partition_id, v.partition_key_index AS index, "
        "v.partition_value AS text, count(*) AS files "
        f"FROM {reader.qualify('ducklake_file_partition_value')} v "
        f"WHERE v.table_id = {table_id} GROUP BY ALL"
    )
    ever = reader.fetch_rows(
        f"SELECT count(*) FROM {reader.qualify('ducklake_data_file')} f "
        f"WHERE f.table_id = {table_id} AND f.partition_id = {spec_id}"
    )
    files = int(ever[0][0])
    values = pc.sum(rows.column("files"), min_count=0).as_py()
    expected = files * len(partitionings.specs[spec_id].fields)
    return (rows if int(values) == expected else None), {spec_id: files}


def _count_files_by_spec(
    reader: CatalogReader, file_condition: str, partitionings: Partitionings, label: str
) -> dict[int, int]:
    rows = reader.fetch_rows(
        "SELECT f.partition_id, count(*), min(f.data_file_id) "
        f"FROM {reader.qualify('ducklake_data_file')} f WHERE {file_condition} GROUP BY 1"
    )
    for partition_id, _, file_id in rows:
        if partition_id is not None and int(partition_id) not in partitionings.specs:
            raise InvalidCatalog(
                f"{label}: data file {file_id} in ducklake_data_file is of partitioning "
                f"{partition_id}, which ducklake_partition_info does not list. "
                "The catalog is damaged."
            )
    return {int(partition_id or UNPARTITIONED): int(count) for partition_id, count, _ in rows}


def _cast_values(
    reader: CatalogReader, rows: pa.Table, cast: str, kind: pa.DataType, where: str
) -> StoredValues:
    texts = rows.column("text").combine_chunks().cast(pa.string())
    reader.connection.register("texts", pa.table({"text": texts}))
    typed = reader.fetch_arrow(f"SELECT text, TRY_CAST(text AS {cast}) AS value FROM texts")
    stored = StoredValues(
        typed.column("text").combine_chunks(),
        typed.column("value").cast(kind).combine_chunks(),
    )
    if (wrong := find_invalid_text(stored)) is not None:
        raise InvalidCatalog(
            f"{where}: ducklake_file_partition_value has the value {wrong!r}, which is no valid "
            f"{kind}. The catalog is damaged."
        )
    return stored


def render_condition(
    predicate: Predicate, keys: Mapping[str, tuple[str, StoredValues]]
) -> str | None:
    """Return SQL that is true wherever the predicate is; None if there is no such condition.

    `keys` has, for each column of the predicate, the SQL of its text and the stored values.
    """
    match predicate:
        case Always(value=value):
            return None if value else "FALSE"
        case Opaque():
            return None
        case And(parts=parts):
            known = [text for part in parts if (text := render_condition(part, keys)) is not None]
            return " AND ".join(known) or None
        case Or(parts=parts):
            texts = [render_condition(part, keys) for part in parts]
            if None in texts:
                return None
            return f"({' OR '.join(f'({text})' for text in texts)})"
    (path,) = find_predicate_columns(predicate)
    column, stored = keys[path[0]]
    return _render_atom(column, stored, predicate, path[0])


def _render_atom(column: str, stored: StoredValues, atom: Predicate, name: str) -> str | None:
    """Return SQL that a text is one of those whose values satisfy the atom."""
    matching = stored.texts.filter(match_arrays(atom, {name: stored.values}, len(stored.values)))
    if len(matching) == len(stored.texts) or len(matching) > _MAX_TEXTS:
        return None
    texts = [quote_text(text) for text in matching.drop_null().to_pylist()]
    parts = [f"{column} IN ({', '.join(texts)})"] if texts else []
    if matching.null_count:
        parts.append(f"{column} IS NULL")
    return f"({' OR '.join(parts)})" if parts else "FALSE"


def find_invalid_text(stored: StoredValues) -> str | None:
    """Return a text that is not a value of its type; None if all are."""
    wrong = stored.texts.filter(pc.and_(stored.values.is_null(), stored.texts.is_valid()))
    return wrong[0].as_py() if len(wrong) else None
