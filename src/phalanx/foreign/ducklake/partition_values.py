"""The different partition values that the files of a table have, each cast once to its type."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from phalanx.errors import InvalidCatalog
from phalanx.foreign.ducklake.connection import CatalogReading
from phalanx.foreign.ducklake.specs import UNPARTITIONED, Partitionings
from phalanx.foreign.ducklake_filter import StoredValues, damaged


def read_stored(
    reading: CatalogReading,
    table_id: int,
    standing: str,
    partitionings: Partitionings,
    place: str,
) -> Mapping[int, tuple[StoredValues, ...]]:
    """For each partitioning the values of each of its keys.

    `standing` is the condition on files `f` of the table at its snapshot. `InvalidCatalog` for a
    file under no known partitioning, for one that lacks a value, and for a value of another type.
    """
    files = _files(reading, standing, partitionings, place)
    rows, ever = _of_the_only_one(reading, table_id, partitionings)
    if rows is not None:
        files = ever
    else:
        rows = reading.arrow(
            "SELECT f.partition_id, v.partition_key_index AS index, v.partition_value AS text, "
            f"count(*) AS files FROM {reading.table('ducklake_file_partition_value')} v "
            f"JOIN {reading.table('ducklake_data_file')} f ON f.data_file_id = v.data_file_id "
            f"WHERE v.table_id = {table_id} AND f.partition_id IS NOT NULL AND {standing} "
            "GROUP BY ALL"
        )
    found: dict[int, tuple[StoredValues, ...]] = {}
    for spec_id, spec in partitionings.specs.items():
        keys = []
        own = rows.filter(pc.equal(rows.column("partition_id"), spec_id))
        for index, field in enumerate(spec.fields):
            values = own.filter(pc.equal(own.column("index"), index))
            where = f"{place}, partitioning {spec_id}, partition key {index}"
            counted = pc.sum(values.column("files"), min_count=0).as_py()
            if int(counted) != files.get(spec_id, 0):
                raise InvalidCatalog(
                    f"{where}: {files.get(spec_id, 0):,} data files, but "
                    f"ducklake_file_partition_value has {int(counted):,} values. "
                    "The catalog is damaged."
                )
            cast = partitionings.casts[spec_id][index]
            keys.append(_typed(reading, values, cast, field.result_type, where))
        found[spec_id] = tuple(keys)
    return found


def _of_the_only_one(
    reading: CatalogReading, table_id: int, partitionings: Partitionings
) -> tuple[pa.Table | None, dict[int, int]]:
    """The values of all files that ever were, and how many these are, if all are of one spec.

    This is the common case, and takes no join. None where it is another.
    """
    partitioned = [spec_id for spec_id, spec in partitionings.specs.items() if spec.fields]
    if len(partitioned) != 1:
        return None, {}
    (spec_id,) = partitioned
    rows = reading.arrow(
        f"SELECT {spec_id} AS partition_id, v.partition_key_index AS index, "
        "v.partition_value AS text, count(*) AS files "
        f"FROM {reading.table('ducklake_file_partition_value')} v "
        f"WHERE v.table_id = {table_id} GROUP BY ALL"
    )
    ever = reading.rows(
        f"SELECT count(*) FROM {reading.table('ducklake_data_file')} f "
        f"WHERE f.table_id = {table_id} AND f.partition_id = {spec_id}"
    )
    files = int(ever[0][0])
    values = pc.sum(rows.column("files"), min_count=0).as_py()
    expected = files * len(partitionings.specs[spec_id].fields)
    return (rows if int(values) == expected else None), {spec_id: files}


def _files(
    reading: CatalogReading, standing: str, partitionings: Partitionings, place: str
) -> dict[int, int]:
    rows = reading.rows(
        "SELECT f.partition_id, count(*), min(f.data_file_id) "
        f"FROM {reading.table('ducklake_data_file')} f WHERE {standing} GROUP BY 1"
    )
    for partition_id, _, file_id in rows:
        if partition_id is not None and int(partition_id) not in partitionings.specs:
            raise InvalidCatalog(
                f"{place}: data file {file_id} in ducklake_data_file is of partitioning "
                f"{partition_id}, which ducklake_partition_info does not list. "
                "The catalog is damaged."
            )
    return {int(partition_id or UNPARTITIONED): int(count) for partition_id, count, _ in rows}


def _typed(
    reading: CatalogReading, rows: pa.Table, cast: str, kind: pa.DataType, where: str
) -> StoredValues:
    texts = rows.column("text").combine_chunks().cast(pa.string())
    reading.connection.register("texts", pa.table({"text": texts}))
    typed = reading.arrow(f"SELECT text, TRY_CAST(text AS {cast}) AS value FROM texts")
    stored = StoredValues(
        typed.column("text").combine_chunks(),
        typed.column("value").cast(kind).combine_chunks(),
    )
    if (wrong := damaged(stored)) is not None:
        raise InvalidCatalog(
            f"{where}: ducklake_file_partition_value has the value {wrong!r}, which is no {kind}. "
            "The catalog is damaged."
        )
    return stored
