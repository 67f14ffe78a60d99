"""murmur3 of Arrow columns: x86, 32 bits, seed 0, as a signed int32; NULL hashes to NULL.

| type                                       | bytes hashed                                |
| ------------------------------------------ | ------------------------------------------- |
| bool, integers, dates as days, times as µs | the value as int64, little-endian           |
| timestamp of any unit and zone             | µs since the epoch as int64, little-endian  |
| float16, float32, float64                  | the float64 bits, with one zero and one NaN |
| string and binary of any layout            | the bytes                                   |
| decimal of any width                       | the unscaled value in two's complement,     |
|                                            | big-endian, in as few bytes as hold it      |
| dictionary                                 | the bytes of its values                     |

Nanoseconds are floored to µs. A uint64 above the int64 range, and a timestamp in s or ms whose µs
are out of that range, wrap modulo 2**64 and never raise.
"""

from collections.abc import Iterator
from functools import reduce
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from phalanx.errors import InvalidSpec

_Words: TypeAlias = npt.NDArray[np.uint32]
_Bytes: TypeAlias = npt.NDArray[np.uint8]
_Int64s: TypeAlias = npt.NDArray[np.int64]
_Rows: TypeAlias = slice | npt.NDArray[np.intp]

_CHUNK = 1 << 15  # rows, or words of one row, whose temporaries fit in the CPU cache
_BATCH = 1 << 21  # rows of one column, because offsets are widened
_JOINED_BATCH = 1 << 18  # rows of several columns, because bytes are copied
_LONG_VALUE = 512  # bytes: longer values are hashed separately, grouped by length
_FEW_LONG_VALUES = 64  # fewer long values hash faster in Python integers than in NumPy

_STRING_TYPES = (pa.string(), pa.large_string(), pa.string_view())
_BINARY_TYPES = (pa.binary(), pa.large_binary(), pa.binary_view())
_MICROSECONDS_PER = {"s": 1_000_000, "ms": 1_000}
_DIVISORS = {"ns": 1_000, "day": 86_400_000}  # date64 counts milliseconds
_NEGATIVE_ZERO_BITS, _NAN_BITS = -(2**63), 0x7FF8000000000000
_LOW_BYTES = np.array([0, 0xFF, 0xFFFF, 0xFFFFFF], np.uint32)
# A magnitude below the n-th limit takes n bytes, sign included.
_BYTE_LIMITS = np.array([1 << bits for bits in range(7, 64, 8)], np.uint64)


def is_hashable(data_type: pa.DataType) -> bool:
    """Return whether `murmur3` can hash a column of this type."""
    if pa.types.is_dictionary(data_type):
        return is_hashable(data_type.value_type)
    return (
        data_type in (pa.null(), *_STRING_TYPES, *_BINARY_TYPES)
        or pa.types.is_fixed_size_binary(data_type)
        or pa.types.is_decimal(data_type)
        or _is_hashed_as_int64(data_type)
    )


def murmur3(array: pa.Array | pa.ChunkedArray) -> pa.Int32Array:
    """Hash each value; NULL gives NULL. Raise `InvalidSpec` for a type it cannot hash."""
    _refuse_unhashable(array.type)
    if isinstance(array, pa.ChunkedArray):
        return pa.concat_arrays([pa.array([], pa.int32()), *map(murmur3, array.chunks)])
    if pa.types.is_dictionary(array.type):
        return murmur3(array.dictionary).take(array.indices)
    if not _is_hashed_as_int64(array.type):
        return murmur3_multi(array)
    hashes = np.zeros(len(array), np.uint32)
    scratch = np.empty((2, min(len(array), _CHUNK)), np.uint32)
    for rows in _split_range(len(array), _CHUNK):
        _hash_int64(_to_int64(array[rows]), hashes[rows], *scratch)
    return _null_where_invalid(array.is_valid(), pa.array(hashes.view(np.int32)))


def murmur3_multi(*arrays: pa.Array | pa.ChunkedArray) -> pa.Int32Array:
    """Hash the concatenated non-NULL values of each row; NULL only where all are NULL."""
    if not arrays:
        raise InvalidSpec("Cannot hash zero columns: murmur3_multi takes at least one.")
    for array in arrays:
        _refuse_unhashable(array.type)
    lengths = [len(array) for array in arrays]
    if len(set(lengths)) > 1:
        raise ValueError(f"Cannot hash columns of different lengths together: {lengths}.")
    table = pa.table(list(arrays), names=[str(index) for index in range(len(arrays))])
    nothing = pa.scalar(b"", pa.large_binary())
    hashed = [pa.array([], pa.int32())]
    for batch in table.to_batches(max_chunksize=_JOINED_BATCH if len(arrays) > 1 else _BATCH):
        columns = [encode_for_hash(column) for column in batch.columns]
        joined = columns[0]
        if len(columns) > 1:
            # "skip" would drop rows that are all NULL
            joined = pc.binary_join_element_wise(*columns, nothing, null_handling="replace")
        any_valid = reduce(pc.or_, [column.is_valid() for column in columns])
        hashed.append(_null_where_invalid(any_valid, pa.array(_hash_bytes(joined).view(np.int32))))
    return pa.concat_arrays(hashed)


def _refuse_unhashable(data_type: pa.DataType) -> None:
    if not is_hashable(data_type):
        raise InvalidSpec(
            f"Cannot hash a column of type {data_type}: murmur3 hashes numbers, booleans, "
            "strings, binary, dates, times, timestamps and decimals."
        )


def _is_hashed_as_int64(data_type: pa.DataType) -> bool:
    is_number = pa.types.is_integer(data_type) or pa.types.is_floating(data_type)
    is_clock = pa.types.is_time(data_type) or pa.types.is_timestamp(data_type)
    return bool(is_number or is_clock or data_type in (pa.bool_(), pa.date32(), pa.date64()))


def _split_range(length: int, step: int) -> Iterator[slice]:
    return (slice(first, min(first + step, length)) for first in range(0, length, step))


def _null_where_invalid(valid: pa.BooleanArray, array: pa.Array) -> pa.Array:
    return pc.if_else(valid, array, pa.scalar(None, array.type))


def _read_buffer(array: pa.Array, dtype: str, per_row: int = 1, extra: int = 0) -> npt.NDArray[Any]:
    """Return the second buffer of the array's rows, including undefined values under NULL."""
    offset = array.offset * per_row * np.dtype(dtype).itemsize
    return np.frombuffer(array.buffers()[1], dtype, len(array) * per_row + extra, offset)


def _to_int64(array: pa.Array) -> _Int64s:
    """Return the integers whose eight bytes are hashed for numbers, booleans, dates and times."""
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.int8())
    width = array.type.bit_width // 8
    if pa.types.is_floating(array.type):
        return _to_float64_bits(_read_buffer(array, f"f{width}"))
    sign = "u" if pa.types.is_unsigned_integer(array.type) else "i"
    values: _Int64s = _read_buffer(array, f"{sign}{width}").astype(np.int64, copy=False)
    unit = "day" if pa.types.is_date64(array.type) else getattr(array.type, "unit", None)
    if unit in _MICROSECONDS_PER:
        return values * _MICROSECONDS_PER[unit]
    return values // _DIVISORS[unit] if unit in _DIVISORS else values


def _to_float64_bits(values: npt.NDArray[np.floating[Any]]) -> _Int64s:
    with np.errstate(invalid="ignore"):  # from widening a signalling NaN
        bits = values.astype(np.float64).view(np.int64)
    bits[bits == _NEGATIVE_ZERO_BITS] = 0
    bits[np.isnan(values)] = _NAN_BITS
    return bits


def encode_for_hash(array: pa.Array) -> pa.LargeBinaryArray:
    """Return the bytes to hash for each value."""
    if pa.types.is_dictionary(array.type):
        return encode_for_hash(array.dictionary).take(array.indices)
    if pa.types.is_decimal(array.type):
        encoded = _encode_decimals(array)
    elif _is_hashed_as_int64(array.type):
        encoded = pa.array(_to_int64(array)).view(pa.binary(8)).cast(pa.large_binary())
    else:
        return array.cast(pa.large_binary())
    return _null_where_invalid(array.is_valid(), encoded) if array.null_count else encoded


def _encode_decimals(array: pa.Array) -> pa.LargeBinaryArray:
    """Encode the unscaled values, including undefined values under NULL."""
    per_row = max(array.type.byte_width // 8, 1)
    dtype = f"i{array.type.byte_width // per_row}"
    parts = _read_buffer(array, dtype, per_row).astype(np.int64).reshape(len(array), per_row)
    sign = parts[:, -1] >> 63
    sizes = np.ones(len(parts), np.int64)
    for index, part in enumerate(parts.T):
        magnitude = (part ^ sign).view(np.uint64)
        if magnitude.any():
            size = 8 * index + 1 + np.searchsorted(_BYTE_LIMITS, magnitude, "right")
            sizes = np.where(magnitude > 0, size, sizes)
    offsets = np.zeros(len(parts) + 1, np.int64)
    sizes.cumsum(out=offsets[1:])
    width = 8 * per_row
    big_endian = parts[:, ::-1].astype(">i8").view(np.uint8)
    data = big_endian[np.arange(width) >= width - sizes[:, np.newaxis]]
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_binary(), len(array), buffers)


def _hash_int64(values: _Int64s, hashes: _Words, word: _Words, scratch: _Words) -> None:
    """Hash the eight bytes of each value into `hashes`, which is zero; two arrays are scratch."""
    word, scratch = word[: len(values)], scratch[: len(values)]
    for half in (0, 1):
        word[:] = values.view(np.uint32)[half::2]
        _scramble(word, scratch)
        _mix(hashes, word, scratch)
    hashes ^= np.uint32(8)
    _finalize(hashes, scratch)


def _hash_bytes(array: pa.LargeBinaryArray) -> _Words:
    """Hash each value, including undefined values under NULL."""
    offsets = _read_buffer(array, "i8", extra=1)
    data = np.frombuffer(array.buffers()[2] or b"", np.uint8)
    if len(data) < 4:
        data = np.append(data, np.zeros(4, np.uint8))
    sizes = np.diff(offsets)
    groups: list[_Rows] = list(_split_range(len(sizes), _CHUNK))
    if sizes.max(initial=0) > _LONG_VALUE:
        short, long = np.flatnonzero(sizes <= _LONG_VALUE), np.flatnonzero(sizes > _LONG_VALUE)
        long = long[np.argsort(sizes[long])]
        groups = [rows[some] for rows in (short, long) for some in _split_range(len(rows), _CHUNK)]
    hashes = np.empty(len(sizes), np.uint32)
    for rows in groups:
        hashes[rows] = _hash_spans(data, offsets[:-1][rows], sizes[rows])
    return hashes


def _hash_spans(data: _Bytes, starts: _Int64s, sizes: _Int64s) -> _Words:
    """Hash `sizes` bytes from each start; the data has at least four bytes."""
    hashes = np.zeros(len(sizes), np.uint32)
    left = sizes
    for width_bits in (4, 2):
        counts = left >> width_bits
        if counts.max() > 0:
            _mix_runs(hashes, data, starts, counts, 1 << width_bits)
            starts, left = starts + (counts << width_bits), left & ((1 << width_bits) - 1)
    # Do not read the last word beyond the end of the data.
    readable = np.minimum(starts, len(data) - 4)
    word = _view_overlapping(data, 4)[readable].view(np.uint32)
    word >>= (8 * (starts - readable)).astype(np.uint32)
    word &= _LOW_BYTES.take(left)
    scratch = np.empty_like(hashes)
    _scramble(word, scratch)
    hashes ^= word
    hashes ^= sizes.astype(np.uint32)
    _finalize(hashes, scratch)
    return hashes


def _mix_runs(hashes: _Words, data: _Bytes, starts: _Int64s, counts: _Int64s, width: int) -> None:
    """Mix `counts` runs of `width` bytes from each start into its hash."""
    # Sorted by count, finished rows are a prefix. NumPy sorts small integers by radix.
    order = np.argsort(counts.astype(np.uint8) if counts.max() < 256 else counts, kind="stable")
    starts, counts, mixed = starts.take(order), counts.take(order), hashes.take(order)
    scratch = np.empty_like(hashes)
    runs = _view_overlapping(data, width)
    first = 0
    for index in range(counts[-1]):
        if counts[first] == index:
            first = int(np.searchsorted(counts, index, "right"))
        if index >= _FEW_LONG_VALUES > len(counts) - first:
            for row in range(first, len(counts)):
                rest = data[starts[row] + width * index : starts[row] + width * counts[row]]
                mixed[row] = _mix_one(int(mixed[row]), rest.view(np.uint32))
            break
        words = runs[width * index :][starts[first:]].view(np.uint32)
        _scramble(words, np.empty_like(words))
        for word in words.reshape(-1, width // 4).T:
            _mix(mixed[first:], word, scratch[first:])
    hashes[order] = mixed


def _view_overlapping(data: _Bytes, width: int) -> npt.NDArray[np.void]:
    """View the runs of `width` bytes that start at every position."""
    return np.ndarray(len(data) - width + 1, f"V{width}", data, strides=1)


def _mix_one(hashed: int, words: _Words) -> int:
    """Scramble many words and mix them into one hash."""
    for some in _split_range(len(words), _CHUNK):
        word = words[some].copy()
        _scramble(word, np.empty_like(word))
        for scrambled in word.tolist():
            hashed ^= scrambled
            hashed = ((hashed << 13 | hashed >> 19) * 5 + 0xE6546B64) & 0xFFFFFFFF
    return hashed


def _mix(hashes: _Words, scrambled: _Words, scratch: _Words) -> None:
    """Mix one scrambled word into each hash."""
    hashes ^= scrambled
    _rotate_left(hashes, 13, scratch)
    hashes *= np.uint32(5)
    hashes += np.uint32(0xE6546B64)


def _scramble(word: _Words, scratch: _Words) -> None:
    word *= np.uint32(0xCC9E2D51)
    _rotate_left(word, 15, scratch)
    word *= np.uint32(0x1B873593)


def _rotate_left(word: _Words, bits: int, scratch: _Words) -> None:
    np.right_shift(word, np.uint32(32 - bits), out=scratch)
    word <<= np.uint32(bits)
    word |= scratch


def _finalize(hashes: _Words, scratch: _Words) -> None:
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        np.right_shift(hashes, np.uint32(shift), out=scratch)
        hashes ^= scratch
        hashes *= np.uint32(factor)
