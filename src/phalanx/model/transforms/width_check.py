"""Check that equal numbers of any width share a partition (format: Partition Expression)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from phalanx.errors import SchemaMismatch
from phalanx.model.transforms.transform import Transform

_SIGNED = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_UNSIGNED = (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
_FLOATS = (pa.float16(), pa.float32(), pa.float64())
_WHOLE_SAMPLES = (0, 1, -1, 2, 5, -7, 10, 34, 100, 127, -128, 255, 1000, 32767, -32768, 10**6)
# The long one is the float32 0.1, exact as float64 too.
_FLOAT_SAMPLES = (0.0, 0.5, -1.5, 0.10000000149011612, 2.0, 3.25, 1e4, -1e4, math.inf, math.nan)


def find_width_conflict(derivation: Transform, sources: Sequence[pa.DataType]) -> str | None:
    """Describe a number whose partition depends on its width; None if no sample shows one.

    Evaluate samples in every width that can represent them.
    """
    alone = [(position,) for position in range(len(sources))]
    alike = [tuple(n for n, kind in enumerate(sources) if kind == one) for one in sources]
    for positions in dict.fromkeys([*alone, *alike]):
        source = sources[positions[0]]
        for other in _list_other_widths(source):
            samples = list(_list_samples(source, other))
            pairs = zip(
                _apply_or_none(derivation, sources, positions, pa.array(samples, source)),
                _apply_or_none(derivation, sources, positions, pa.array(samples, other)),
                strict=True,
            )
            for sample, (one, two) in zip(samples, pairs, strict=True):
                # A value for which only the narrower type fails cannot be written in that type.
                lost = two is None and other.bit_width > source.bit_width
                if one is not None and (lost or (two is not None and str(one) != str(two))):
                    return (
                        f"{sample} as {source} gives {one} but as {other} gives "
                        f"{'an error' if two is None else two}, "
                        "and equal numbers must fall in one partition"
                    )
    return None


def _list_other_widths(source: pa.DataType) -> Iterator[pa.DataType]:
    for family in (_SIGNED, _UNSIGNED, _FLOATS):
        if source in family:
            # Columns are never narrowed to float16, which DataFusion compares incorrectly.
            yield from (kind for kind in family if kind not in (source, pa.float16()))
    if pt.is_decimal(source):
        # A decimal column is never narrowed.
        wider = (pa.decimal64(18, source.scale), pa.decimal128(38, source.scale))
        for kind in wider:
            if kind.bit_width >= source.bit_width and kind.precision > source.precision:
                yield kind


def _list_samples(source: pa.DataType, other: pa.DataType) -> Iterator[Any]:
    """Yield values that both types represent exactly."""
    extremes = (2 ** (kind.bit_width - sign) - 1 for kind in (source, other) for sign in (0, 1))
    whole: tuple[Any, ...] = (*_WHOLE_SAMPLES, *extremes)
    if pt.is_decimal(source):
        whole = (*whole, *(Decimal(sample).scaleb(-source.scale) for sample in _WHOLE_SAMPLES))
    for sample in _FLOAT_SAMPLES if pt.is_floating(source) else whole:
        try:
            value = pa.scalar(sample, source).as_py()
            if repr(pa.scalar(value, other).as_py()) == repr(value):
                yield value
        except (pa.ArrowInvalid, OverflowError):
            continue


def _apply_or_none(
    derivation: Transform,
    sources: Sequence[pa.DataType],
    positions: Sequence[int],
    samples: pa.Array,
) -> list[pa.Scalar | None]:
    """Compute the partition values of samples in some sources; None where evaluation fails."""
    fillers = (_make_filler(source, len(samples)) for source in sources)
    columns = [
        samples if position in positions else filler for position, filler in enumerate(fillers)
    ]
    try:
        return list(derivation.apply(*columns))
    except SchemaMismatch:
        if len(samples) == 1:
            return [None]
    singles = (samples.slice(index, 1) for index in range(len(samples)))
    return [
        value for one in singles for value in _apply_or_none(derivation, sources, positions, one)
    ]


def _make_filler(source: pa.DataType, rows: int) -> pa.Array:
    for plain in (1, "a", b"a", True):
        try:
            return pa.array([plain] * rows, source)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
            continue
    return pa.nulls(rows, source)
