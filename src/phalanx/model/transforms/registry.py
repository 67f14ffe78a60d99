"""The well-known transforms by their names in the format and in DuckLake catalogs."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from phalanx.errors import InvalidSpec
from phalanx.model.transforms.buckets import Bucket, MultiBucket
from phalanx.model.transforms.calendar_parts import DATE_CHAIN
from phalanx.model.transforms.transform import IDENTITY, Transform
from phalanx.model.transforms.truncate import Truncate


def transform_from_json(obj: object) -> Transform:
    """Return the transform that a `transform` object describes; raise `InvalidSpec` otherwise."""
    if not isinstance(obj, dict) or not isinstance(obj.get("type"), str):
        raise InvalidSpec(f"Cannot read the transform {obj!r}: expected an object with a type.")
    # Some writers store absent keys as null.
    obj = {key: value for key, value in obj.items() if value is not None}
    kind = obj["type"]
    if (transform := _WITHOUT_PARAMETERS.get(kind)) is not None:
        expected: set[str] = set()
    elif kind in _WITH_PARAMETER:
        expected = {_WITH_PARAMETER[kind][1]}
    else:
        known = ", ".join([*_WITHOUT_PARAMETERS, *_WITH_PARAMETER])
        raise InvalidSpec(f"Unknown transform type {kind!r}: expected one of {known}.")
    if set(obj) - {"type"} != expected:
        names = ", ".join(sorted(expected)) or "none"
        raise InvalidSpec(f"Cannot read the transform {obj!r}: {kind} has parameters: {names}.")
    if transform is not None:
        return transform
    make, parameter = _WITH_PARAMETER[kind]
    return make(obj[parameter])


def transform_from_ducklake(text: str, source: pa.DataType) -> Transform:
    """Return the format's transform for the name of a transform in a DuckLake catalog.

    Raise `InvalidSpec` if the format has none: DuckLake's buckets and parts since 1970 differ.
    """
    transform = _WITHOUT_PARAMETERS.get(text)
    if transform is not None:
        transform.ducklake_name(source)
        return transform
    raise InvalidSpec(
        f"Cannot convert DuckLake's transform {text!r} to the format: expected "
        f"{', '.join(_WITHOUT_PARAMETERS)}. Other transforms have different values in DuckLake. "
        "Use phalanx.ducklake.open to plan with them, or import the table to repartition the rows."
    )


_WITHOUT_PARAMETERS: dict[str, Transform] = {
    transform.name: transform for transform in (IDENTITY, *DATE_CHAIN)
}
_WITH_PARAMETER: dict[str, tuple[Callable[[int], Transform], str]] = {
    "bucket": (Bucket, "num_buckets"),
    "multi_bucket": (MultiBucket, "num_buckets"),
    "truncate": (Truncate, "width"),
}
