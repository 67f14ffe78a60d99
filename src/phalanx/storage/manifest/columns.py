"""The columns of a manifest: what the format calls them, and the types that Phalanx reads them in.

Other writers store them in other types (`large_utf8`, dictionaries, `int64`), and leave out those
that are optional. Whoever reads rows of a manifest gets the types that are named here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from phalanx.errors import InvalidManifest, shown

OBJECT_ID, METADATA = "object_id", "metadata"
READ_VERSION, READ_BRANCH, READ_TAG = "read_version", "read_branch", "read_tag"
TYPES: Mapping[str, pa.DataType] = {
    OBJECT_ID: pa.string(),
    "object_type": pa.string(),
    "location": pa.string(),
    METADATA: pa.string(),
    READ_VERSION: pa.uint64(),
    READ_BRANCH: pa.string(),
    READ_TAG: pa.string(),
}
PIN_COLUMNS = tuple(pa.field(name, TYPES[name]) for name in (READ_VERSION, READ_BRANCH, READ_TAG))
# Without them nothing is listed.
_REQUIRED = ("object_id", "object_type", "location")


def check_columns(names: Sequence[str], root: object) -> None:
    """Refuse a manifest that lacks a column without which nothing can be read from it."""
    for name in _REQUIRED:
        if name not in names:
            raise InvalidManifest(
                f"The manifest of {root} has no column {name!r}: expected "
                f"{', '.join(_REQUIRED)} at least. Something else has written it. Restore the "
                "column."
            )


def plain(rows: pa.Table, root: object) -> pa.Table:
    """The rows with the columns that the format names in the types that are named here."""
    for place, field in enumerate(rows.schema):
        kind = TYPES.get(field.name)
        if kind is not None and field.type != kind:
            column = converted(rows.column(place), kind, field.name, root)
            rows = rows.set_column(place, pa.field(field.name, kind, field.nullable), column)
    return rows


def completed(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """The rows with these columns, in this order; NULL in those that the manifest lacks."""
    columns = [
        rows.column(name)
        if name in rows.column_names
        else pa.chunked_array([pa.nulls(rows.num_rows, TYPES.get(name, pa.null()))])
        for name in names
    ]
    return pa.table(columns, names=list(names))


def converted(
    column: pa.ChunkedArray, kind: pa.DataType, name: str, root: object
) -> pa.ChunkedArray:
    """The values of a column in another type; a value that the type does not have is refused."""
    if column.type == kind:
        return column
    try:
        return column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise InvalidManifest(
            f"The manifest of {root} has {column.type} in the column {name!r}, with values that "
            f"are no {kind} ({shown(str(error).splitlines()[0])}). Something else has written it. "
            "Correct the column."
        ) from None


def check_tables(rows: pa.Table, root: object) -> None:
    """Refuse rows of tables that do not say which table is where, or say it twice.

    Both would be read and written as one of the two.
    """
    names, locations = rows.column("object_id"), rows.column("location")
    if names.null_count:
        place = pc.index(names.is_null(), True).as_py()
        raise InvalidManifest(
            f"The manifest of {root} lists a table without an object id, at "
            f"{locations[place].as_py()!r}: expected the path of its namespaces, such as "
            "v1$<partition>$dataset. Set the id, or remove the row."
        )
    if locations.null_count:
        place = pc.index(locations.is_null(), True).as_py()
        raise InvalidManifest(
            f"The manifest row {names[place].as_py()!r} of {root} lists a table without a "
            "location: expected the path of its Lance table. Set the location, or remove the row."
        )
    for column, what in ((names, "the object id"), (locations, "the location")):
        counts = column.value_counts() if pc.count_distinct(column).as_py() < len(column) else ()
        for each in counts:
            if each["counts"].as_py() > 1:
                raise InvalidManifest(
                    f"The manifest of {root} lists {what} {each['values'].as_py()!r} "
                    f"{each['counts']} times: expected one row for each table. Remove the rows "
                    "that are too many; to see them, read its __manifest with lance.dataset."
                )
