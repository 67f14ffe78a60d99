"""Vector search: vector columns, query vectors and distances."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from phalanx.errors import (
    InvalidArgument,
    InvalidSchema,
    SchemaMismatch,
    format_value,
)
from phalanx.model.schema.rows import select_schema
from phalanx.model.schema.schema import Schema

Vectors = npt.NDArray[Any]
Distances = npt.NDArray[np.float32]
_ELEMENTS: Mapping[pa.DataType, type] = {
    pa.float16(): np.float16,
    pa.float32(): np.float32,
    pa.float64(): np.float64,
    pa.uint8(): np.uint8,
}
_FLOAT_METRICS, _BYTE_METRICS = ("l2", "cosine", "dot"), ("hamming",)
METRICS = (*_FLOAT_METRICS, *_BYTE_METRICS)
# The smallest possible distances; other metrics have none, or reach it only by rounding.
_MIN_DISTANCES = {"l2": 0.0, "hamming": 0.0}


def is_vector(kind: pa.DataType) -> bool:
    """Return whether a column of this type can be searched by a vector."""
    return pt.is_fixed_size_list(kind) and kind.value_type in _ELEMENTS


def resolve_search_column(name: object, schema: Schema) -> pa.Field:
    """Return the column with this name, or a struct field, named by its whole path."""
    if not isinstance(name, str):
        raise InvalidArgument(f"Cannot search the column {name!r}: expected a name.")
    try:
        path = schema.resolve((name,))
    except InvalidSchema as error:
        raise SchemaMismatch(f"Cannot search the column {name!r}: {error}") from None
    return select_schema(schema, (".".join(path),)).field(0)


def metrics_of(kind: pa.DataType) -> tuple[str, ...]:
    """Return Lance's metrics for vectors of this type; the first is the default."""
    return _BYTE_METRICS if kind.value_type == pa.uint8() else _FLOAT_METRICS


def resolve_metric(metric: object, column: pa.Field) -> str:
    """Return the name of a metric that this column supports; refuse others."""
    known = metrics_of(column.type)
    text = metric.lower() if isinstance(metric, str) else metric
    text = "l2" if text == "euclidean" else text
    if text not in known:
        raise InvalidArgument(
            f"Cannot measure column {column.name!r} ({column.type}) by the metric {metric!r}: "
            f"expected {' or '.join(map(repr, known))}."
        )
    return str(text)


def min_distance_of(metric: str) -> float:
    """Return the smallest possible distance."""
    return _MIN_DISTANCES.get(metric, -np.inf)


def to_query_vector(query: object, column: pa.Field, metric: str) -> Vectors:
    """Convert a query to a vector with elements of the column's type, as Lance does."""
    given = _to_array(query, column)
    size, element = column.type.list_size, _ELEMENTS[column.type.value_type]
    if given.shape != (size,):
        raise InvalidArgument(
            f"Cannot search column {column.name!r} by a vector of "
            f"{' × '.join(map(str, given.shape)) or 'no'} numbers: expected {size}."
        )
    if element is np.uint8:
        if not np.array_equal(given, given.astype(np.uint8)):
            raise InvalidArgument(
                f"Cannot search column {column.name!r} ({column.type}) by {format_value(query)}: "
                "expected whole numbers from 0 to 255."
            )
    elif not np.isfinite(given).all():
        raise InvalidArgument(
            f"Cannot search column {column.name!r} by {format_value(query)}: expected numbers, all "
            "of them finite."
        )
    with np.errstate(over="ignore"):
        vector: Vectors = given.astype(element)
    if element is not np.uint8 and not np.isfinite(vector).all():
        raise InvalidArgument(
            f"Cannot search column {column.name!r} by {format_value(query)}: some numbers are too "
            f"large for {column.type.value_type}."
        )
    if metric == "cosine" and not vector.any():
        raise InvalidArgument(
            f"Cannot search column {column.name!r} by cosine for a vector of zeros: it has no "
            "direction. Use another vector or the metric 'l2'."
        )
    return vector


def to_query_vectors(queries: pa.Array, column: pa.Field, metric: str) -> Vectors:
    """Convert queries without NULL to vectors, one per row, checked like a single one."""
    size = column.type.list_size
    lengths = pc.list_value_length(queries)
    fits = pc.all(pc.equal(lengths, size)).as_py()
    values = queries.flatten()
    if fits and not values.null_count and size:
        given = values.to_numpy(zero_copy_only=False).reshape(-1, size)
        good = np.isfinite(given).all(axis=1)
        if metric == "cosine":
            good &= given.any(axis=1)
        element = _ELEMENTS[column.type.value_type]
        with np.errstate(over="ignore", invalid="ignore"):
            found: Vectors = given.astype(element)
        good &= np.isfinite(found).all(axis=1)
        if element is np.uint8:
            good &= (found == given).all(axis=1)
        if good.all():
            return found
    # Some vector is invalid: convert one by one for an error that names it.
    return np.array([to_query_vector(each, column, metric) for each in queries.to_pylist()])


def _to_array(query: object, column: pa.Field) -> Vectors:
    if isinstance(query, pa.Scalar):
        query = query.as_py()
    if isinstance(query, pa.Array | pa.ChunkedArray):
        query = query.to_pylist()
    try:
        given = np.asarray(query)
    except ValueError:
        given = np.asarray(None)
    if given.dtype.kind not in "iuf":
        raise InvalidArgument(
            f"Cannot search column {column.name!r} ({column.type}) by {format_value(query)}: "
            "expected a vector of numbers."
        )
    return given


def to_vectors(array: pa.FixedSizeListArray) -> tuple[Vectors, npt.NDArray[np.bool_] | None]:
    """Return the complete vectors of a column, one per row, and a mask of them (None: all).

    A vector that is NULL, or contains NULL, has no distance.
    """
    size, kind = array.type.list_size, array.type.value_type
    present = None
    if array.null_count:
        present = array.is_valid()
        array = array.filter(present)
    values = array.flatten()
    if values.null_count:
        whole = ~values.is_null().to_numpy(zero_copy_only=False).reshape(-1, size).any(axis=1)
        values = pc.fill_null(values, pa.scalar(0, kind))
        rows = np.flatnonzero(whole)
        mask = np.ones(len(whole), bool) if present is None else present.to_numpy(False)
        mask[np.flatnonzero(mask)] = whole
        return values.to_numpy().reshape(-1, size)[rows], mask
    found = values.to_numpy().reshape(-1, size)
    return found, None if present is None else present.to_numpy(zero_copy_only=False)


def compute_distances(vectors: Vectors, query: Vectors, metric: str) -> Distances:
    """Compute the distance of each vector from the query; NaN where it is undefined.

    As in Lance, l2 is squared, and cosine and dot are one minus the product. Each row is summed on
    its own in a fixed order, so that equal vectors have equal distances wherever they are stored.
    """
    found: Any
    if metric == "hamming":
        found = np.bitwise_count(vectors ^ query).sum(axis=1)
        return np.asarray(found, np.float32)
    wide = np.float64 if vectors.dtype == np.float64 else np.float32
    rows: Any = vectors.astype(wide, copy=False)
    one: Any = query.astype(wide)
    with np.errstate(all="ignore"):
        if metric == "l2":
            apart = rows - one
            found = np.einsum("ij,ij->i", apart, apart)
        else:
            found = np.einsum("ij,j->i", rows, one)
            if metric == "cosine":
                lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows))
                found = found / (lengths * np.sqrt(one @ one))
            found = 1 - found
        return np.asarray(found, np.float32)
