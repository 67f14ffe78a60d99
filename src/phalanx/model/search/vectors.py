"""Vectors: what a column of them holds, what can be looked for there, and how far two are apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from phalanx.errors import InvalidSchema, PhalanxError, SchemaMismatch, shown
from phalanx.model.schema.rows import chosen_schema
from phalanx.model.schema.schema import Schema

Vectors = npt.NDArray[Any]
Distances = npt.NDArray[np.float32]
_ELEMENTS: Mapping[pa.DataType, type] = {
    pa.float16(): np.float16,
    pa.float32(): np.float32,
    pa.float64(): np.float64,
    pa.uint8(): np.uint8,
}
_OF_FLOATS, _OF_BYTES = ("l2", "cosine", "dot"), ("hamming",)
METRICS = (*_OF_FLOATS, *_OF_BYTES)
# No distance is smaller; those that are not named have no such end, or reach it by rounding only.
_LEAST = {"l2": 0.0, "hamming": 0.0}


def is_vector(kind: pa.DataType) -> bool:
    """Whether a column of this type can be searched by a vector."""
    return pt.is_fixed_size_list(kind) and kind.value_type in _ELEMENTS


def searched_column(name: object, schema: Schema) -> pa.Field:
    """The column of this name, or the field inside structs, which goes by its whole path."""
    if not isinstance(name, str):
        raise SchemaMismatch(f"Cannot search the column {name!r}: expected a name.")
    try:
        path = schema.resolve((name,))
    except InvalidSchema as error:
        raise SchemaMismatch(f"Cannot search the column {name!r}: {error}") from None
    return chosen_schema(schema, (".".join(path),)).field(0)


def metrics_of(kind: pa.DataType) -> tuple[str, ...]:
    """The metrics for vectors of this type, as Lance has them; the first is the usual one."""
    return _OF_BYTES if kind.value_type == pa.uint8() else _OF_FLOATS


def checked_metric(metric: object, column: pa.Field) -> str:
    """The metric by its name, if vectors of this column can be measured by it."""
    known = metrics_of(column.type)
    text = metric.lower() if isinstance(metric, str) else metric
    text = "l2" if text == "euclidean" else text
    if text not in known:
        raise PhalanxError(
            f"Cannot measure column {column.name!r} ({column.type}) by the metric {metric!r}: "
            f"expected {' or '.join(map(repr, known))}."
        )
    return str(text)


def least_distance(metric: str) -> float:
    """A distance that none is smaller than."""
    return _LEAST.get(metric, -np.inf)


def query_vector(query: object, column: pa.Field, metric: str) -> Vectors:
    """The vector to look for, with elements of the column's type as Lance takes it too."""
    given = _as_array(query, column)
    size, element = column.type.list_size, _ELEMENTS[column.type.value_type]
    if given.shape != (size,):
        raise PhalanxError(
            f"Cannot search column {column.name!r} by a vector of "
            f"{' × '.join(map(str, given.shape)) or 'no'} numbers: expected {size}."
        )
    if element is np.uint8:
        if not np.array_equal(given, given.astype(np.uint8)):
            raise PhalanxError(
                f"Cannot search column {column.name!r} ({column.type}) by {shown(query)}: expected "
                "whole numbers from 0 to 255."
            )
    elif not np.isfinite(given).all():
        raise PhalanxError(
            f"Cannot search column {column.name!r} by {shown(query)}: expected numbers, all of "
            "them finite."
        )
    with np.errstate(over="ignore"):
        vector: Vectors = given.astype(element)
    if element is not np.uint8 and not np.isfinite(vector).all():
        raise PhalanxError(
            f"Cannot search column {column.name!r} by {shown(query)}: some numbers are too large "
            f"for {column.type.value_type}."
        )
    if metric == "cosine" and not vector.any():
        raise PhalanxError(
            f"Cannot search column {column.name!r} by cosine for a vector of zeros: it has no "
            "direction. Use another vector or the metric 'l2'."
        )
    return vector


def query_vectors(queries: pa.Array, column: pa.Field, metric: str) -> Vectors:
    """Vectors to look for, none of them NULL: a row for each; checked as one of them is."""
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
    # Some vector is none: it is told alone.
    return np.array([query_vector(each, column, metric) for each in queries.to_pylist()])


def _as_array(query: object, column: pa.Field) -> Vectors:
    if isinstance(query, pa.Scalar):
        query = query.as_py()
    if isinstance(query, pa.Array | pa.ChunkedArray):
        query = query.to_pylist()
    try:
        given = np.asarray(query)
    except ValueError:
        given = np.asarray(None)
    if given.dtype.kind not in "iuf":
        raise PhalanxError(
            f"Cannot search column {column.name!r} ({column.type}) by {shown(query)}: expected a "
            "vector of numbers."
        )
    return given


def vectors_in(array: pa.FixedSizeListArray) -> tuple[Vectors, npt.NDArray[np.bool_] | None]:
    """The vectors of a column, a row for each that is whole, and which those are (None: all).

    One that is NULL, or has a NULL in it, is at no distance from anything.
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


def distances(vectors: Vectors, query: Vectors, metric: str) -> Distances:
    """How far each vector is from the query; NaN where that is not defined.

    As Lance has them: l2 is squared, cosine and dot are one minus the product. Each row is summed
    by itself and in its own order, so that equal vectors are equally far wherever they are.
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
