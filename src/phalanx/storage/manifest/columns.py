"""The columns of a manifest: their names in the format, and the types that Phalanx uses.

Other writers store other types (`large_utf8`, dictionaries, `int64`) and leave out optional
columns. Reading a manifest always gives the types defined here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from phalanx.errors import InvalidManifest, format_value

OBJECT_ID, METADATA = "object_id", "metadata"
READ_VERSION, READ_BRANCH, READ_TAG = "read_version", "read_branch", "read_tag"
COLUMN_TYPES: Mapping[str, pa.DataType] = {
    OBJECT_ID: pa.string(),
    "object_type": pa.string(),
    "location": pa.string(),
    METADATA: pa.string(),
    READ_VERSION: pa.uint64(),
    READ_BRANCH: pa.string(),
    READ_TAG: pa.string(),
}
PIN_COLUMNS = tuple(
    pa.field(name, COLUMN_TYPES[name]) for name in (READ_VERSION, READ_BRANCH, READ_TAG)
)
# A manifest without these lists nothing.
_REQUIRED = ("object_id", "object_type", "location")


def check_required_columns(names: Sequence[str], root: object) -> None:
    """Refuse a manifest that lacks a required column."""
    for name in _REQUIRED:
        if name not in names:
            raise InvalidManifest(
                f"The manifest of {root} has no column {name!r}: expected "
                f"{', '.join(_REQUIRED)} at least. Another program wrote it. Restore the column."
            )


def normalize_types(rows: pa.Table, root: object) -> pa.Table:
    """Return the rows with the format's columns cast to `COLUMN_TYPES`."""
    for index, field in enumerate(rows.schema):
        kind = COLUMN_TYPES.get(field.name)
        if kind is not None and field.type != kind:
            column = cast_column(rows.column(index), kind, field.name, root)
            rows = rows.set_column(index, pa.field(field.name, kind, field.nullable), column)
    return rows


def select_columns(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return these columns in this order; those that the rows lack are NULL."""
    columns = [
        rows.column(name)
        if name in rows.column_names
        else pa.chunked_array([pa.nulls(rows.num_rows, COLUMN_TYPES.get(name, pa.null()))])
        for name in names
    ]
    return pa.table(columns, names=list(names))


def cast_column(
    column: pa.ChunkedArray, kind: pa.DataType, name: str, root: object
) -> pa.ChunkedArray:
    """Cast a column; refuse values that the type cannot represent."""
    if column.type == kind:
        return column
    try:
        return column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        reason = format_value(str(error).splitlines()[0])
        raise InvalidManifest(
            f"The manifest of {root} has {column.type} in the column {name!r}, with values that "
            f"are not {kind} ({reason}). Another program wrote it. Correct the column."
        ) from None


def check_table_rows(rows: pa.Table, root: object) -> None:
    """Refuse `table` rows without an id or a location, and duplicates of either.

    Duplicates would be read and written as one table.
    """
    names, locations = rows.column("object_id"), rows.column("location")
    if names.null_count:
        index = pc.index(names.is_null(), True).as_py()
        raise InvalidManifest(
            f"The manifest of {root} lists a table without an object id, at "
            f"{locations[index].as_py()!r}: expected the path of its namespaces, such as "
            "v1$<partition>$dataset. Set the id, or remove the row."
        )
    if locations.null_count:
        index = pc.index(locations.is_null(), True).as_py()
        raise InvalidManifest(
            f"The manifest row {names[index].as_py()!r} of {root} lists a table without a "
            "location: expected the path of its Lance table. Set the location, or remove the row."
        )
    for column, what in ((names, "the object id"), (locations, "the location")):
        counts = column.value_counts() if pc.count_distinct(column).as_py() < len(column) else ()
        for each in counts:
            if each["counts"].as_py() > 1:
                raise InvalidManifest(
                    f"The manifest of {root} lists {what} {each['values'].as_py()!r} "
                    f"{each['counts']} times: expected one row for each table. Remove the "
                    "duplicate rows; to see them, read its __manifest with lance.dataset."
                )
