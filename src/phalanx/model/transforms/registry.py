"""All well-known transforms, by the names the format gives them."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from phalanx.errors import InvalidSpec
from phalanx.model.transforms.buckets import Bucket, MultiBucket
from phalanx.model.transforms.calendar_parts import DATE_CHAIN
from phalanx.model.transforms.transform import IDENTITY, Transform
from phalanx.model.transforms.truncate import Truncate


def transform_from_json(obj: object) -> Transform:
    """The transform a `transform` object describes; `InvalidSpec` for anything else."""
    if not isinstance(obj, dict) or not isinstance(obj.get("type"), str):
        raise InvalidSpec(f"Cannot read the transform {obj!r}: expected an object with a type.")
    # Some writers spell out what is not there.
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
        wanted = ", ".join(sorted(expected)) or "none"
        raise InvalidSpec(f"Cannot read the transform {obj!r}: {kind} has parameters: {wanted}.")
    if transform is not None:
        return transform
    make, parameter = _WITH_PARAMETER[kind]
    return make(obj[parameter])


def transform_from_ducklake(text: str, source: pa.DataType) -> Transform:
    """The transform of the format that means what a DuckLake catalog says of a column.

    `InvalidSpec` where there is none: its buckets and parts since 1970 have other values.
    """
    transform = _WITHOUT_PARAMETERS.get(text)
    if transform is not None:
        transform.ducklake_name(source)
        return transform
    raise InvalidSpec(
        f"Cannot read DuckLake's transform {text!r} as one of the format: expected "
        f"{', '.join(_WITHOUT_PARAMETERS)}. Others have other values there; "
        "phalanx.ducklake.open plans by them, and an import spreads the rows anew."
    )


_WITHOUT_PARAMETERS: dict[str, Transform] = {
    transform.name: transform for transform in (IDENTITY, *DATE_CHAIN)
}
_WITH_PARAMETER: dict[str, tuple[Callable[[int], Transform], str]] = {
    "bucket": (Bucket, "num_buckets"),
    "multi_bucket": (MultiBucket, "num_buckets"),
    "truncate": (Truncate, "width"),
}
