"""murmur3 of Arrow columns: x86, 32 bits, seed 0, as a signed int32, NULL for NULL.

| type                                       | bytes hashed                                |
| ------------------------------------------ | ------------------------------------------- |
| bool, integers, dates as days, times as µs | the value as int64, little-endian           |
| timestamp of any unit and zone             | µs since the epoch as int64, little-endian  |
| float16, float32, float64                  | the float64 bits, with one zero and one NaN |
| string and binary of any layout            | the bytes                                   |
| decimal of any width                       | the unscaled value in two's complement,     |
|                                            | big-endian, in as few bytes as hold it      |
| dictionary                                 | those of its values                         |

Nanoseconds floor to µs. A uint64 past the int64 range, and a timestamp in s or ms whose µs are
past it, wrap modulo 2**64 and never raise.
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
_Octets: TypeAlias = npt.NDArray[np.uint8]
_Int64s: TypeAlias = npt.NDArray[np.int64]
_Rows: TypeAlias = slice | npt.NDArray[np.intp]

_CHUNK = 1 << 15  # rows, or words of one row, whose temporaries stay in the cache
_BATCH = 1 << 21  # rows of one column, whose offsets are widened
_JOINED_BATCH = 1 << 18  # rows of several columns, whose bytes are copied
_LONG = 512  # bytes: longer values are hashed apart, with others about as long
_FEW = 64  # long values: fewer hash faster in plain integers than through NumPy

_STRING_TYPES = (pa.string(), pa.large_string(), pa.string_view())
_BINARY_TYPES = (pa.binary(), pa.large_binary(), pa.binary_view())
_MICROSECONDS_PER = {"s": 1_000_000, "ms": 1_000}
_DIVISORS = {"ns": 1_000, "day": 86_400_000}  # date64 counts milliseconds
_NEGATIVE_ZERO_BITS, _NAN_BITS = -(2**63), 0x7FF8000000000000
_LOW_BYTES = np.array([0, 0xFF, 0xFFFF, 0xFFFFFF], np.uint32)
# a magnitude below the n-th limit takes n bytes with its sign
_BYTE_LIMITS = np.array([1 << bits for bits in range(7, 64, 8)], np.uint64)


def is_hashable(data_type: pa.DataType) -> bool:
    """Whether `murmur3` takes a column of this type."""
    if pa.types.is_dictionary(data_type):
        return is_hashable(data_type.value_type)
    return (
        data_type in (pa.null(), *_STRING_TYPES, *_BINARY_TYPES)
        or pa.types.is_fixed_size_binary(data_type)
        or pa.types.is_decimal(data_type)
        or _is_hashed_as_int64(data_type)
    )


def murmur3(array: pa.Array | pa.ChunkedArray) -> pa.Int32Array:
    """The hash of each value, NULL for NULL; raises `InvalidSpec` for a type it cannot hash."""
    _refuse_unhashable(array.type)
    if isinstance(array, pa.ChunkedArray):
        return pa.concat_arrays([pa.array([], pa.int32()), *map(murmur3, array.chunks)])
    if pa.types.is_dictionary(array.type):
        return murmur3(array.dictionary).take(array.indices)
    if not _is_hashed_as_int64(array.type):
        return murmur3_multi(array)
    hashes = np.zeros(len(array), np.uint32)
    scratch = np.empty((2, min(len(array), _CHUNK)), np.uint32)
    for rows in _ranges(len(array), _CHUNK):
        _hash_int64(_int64_values(array[rows]), hashes[rows], *scratch)
    return _null_unless(array.is_valid(), pa.array(hashes.view(np.int32)))


def murmur3_multi(*arrays: pa.Array | pa.ChunkedArray) -> pa.Int32Array:
    """The hash of each row's non-NULL values end to end; NULL only where all are NULL."""
    if not arrays:
        raise InvalidSpec("Cannot hash no columns: murmur3_multi takes at least one.")
    for array in arrays:
        _refuse_unhashable(array.type)
    lengths = [len(array) for array in arrays]
    if len(set(lengths)) > 1:
        raise ValueError(f"Cannot hash columns of different lengths together: {lengths}.")
    table = pa.table(list(arrays), names=[str(index) for index in range(len(arrays))])
    nothing = pa.scalar(b"", pa.large_binary())
    hashed = [pa.array([], pa.int32())]
    for batch in table.to_batches(max_chunksize=_JOINED_BATCH if len(arrays) > 1 else _BATCH):
        columns = [hashed_bytes(column) for column in batch.columns]
        joined = columns[0]
        if len(columns) > 1:
            # "skip" would drop the rows that are all NULL
            joined = pc.binary_join_element_wise(*columns, nothing, null_handling="replace")
        any_valid = reduce(pc.or_, [column.is_valid() for column in columns])
        hashed.append(_null_unless(any_valid, pa.array(_hash_bytes(joined).view(np.int32))))
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


def _ranges(length: int, step: int) -> Iterator[slice]:
    return (slice(first, min(first + step, length)) for first in range(0, length, step))


def _null_unless(valid: pa.BooleanArray, array: pa.Array) -> pa.Array:
    return pc.if_else(valid, array, pa.scalar(None, array.type))


def _stored(array: pa.Array, dtype: str, per_row: int = 1, extra: int = 0) -> npt.NDArray[Any]:
    """What the second buffer holds for the array's rows, whatever lies under NULL included."""
    offset = array.offset * per_row * np.dtype(dtype).itemsize
    return np.frombuffer(array.buffers()[1], dtype, len(array) * per_row + extra, offset)


def _int64_values(array: pa.Array) -> _Int64s:
    """The integers whose eight bytes are hashed for numbers, booleans, dates and times."""
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.int8())
    width = array.type.bit_width // 8
    if pa.types.is_floating(array.type):
        return _float64_bits(_stored(array, f"f{width}"))
    sign = "u" if pa.types.is_unsigned_integer(array.type) else "i"
    values: _Int64s = _stored(array, f"{sign}{width}").astype(np.int64, copy=False)
    unit = "day" if pa.types.is_date64(array.type) else getattr(array.type, "unit", None)
    if unit in _MICROSECONDS_PER:
        return values * _MICROSECONDS_PER[unit]
    return values // _DIVISORS[unit] if unit in _DIVISORS else values


def _float64_bits(values: npt.NDArray[np.floating[Any]]) -> _Int64s:
    with np.errstate(invalid="ignore"):  # widening a signalling NaN
        bits = values.astype(np.float64).view(np.int64)
    bits[bits == _NEGATIVE_ZERO_BITS] = 0
    bits[np.isnan(values)] = _NAN_BITS
    return bits


def hashed_bytes(array: pa.Array) -> pa.LargeBinaryArray:
    """The bytes to hash for each value."""
    if pa.types.is_dictionary(array.type):
        return hashed_bytes(array.dictionary).take(array.indices)
    if pa.types.is_decimal(array.type):
        encoded = _decimal_bytes(array)
    elif _is_hashed_as_int64(array.type):
        encoded = pa.array(_int64_values(array)).view(pa.binary(8)).cast(pa.large_binary())
    else:
        return array.cast(pa.large_binary())
    return _null_unless(array.is_valid(), encoded) if array.null_count else encoded


def _decimal_bytes(array: pa.Array) -> pa.LargeBinaryArray:
    """The unscaled values, whatever lies under NULL included."""
    per_row = max(array.type.byte_width // 8, 1)
    dtype = f"i{array.type.byte_width // per_row}"
    parts = _stored(array, dtype, per_row).astype(np.int64).reshape(len(array), per_row)
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


def _hash_int64(values: _Int64s, hashes: _Words, word: _Words, spare: _Words) -> None:
    """Turn zeros into the hashes of the eight bytes of each value, with two arrays of scratch."""
    word, spare = word[: len(values)], spare[: len(values)]
    for half in (0, 1):
        word[:] = values.view(np.uint32)[half::2]
        _scramble(word, spare)
        _stir(hashes, word, spare)
    hashes ^= np.uint32(8)
    _finish(hashes, spare)


def _hash_bytes(array: pa.LargeBinaryArray) -> _Words:
    """The hash of each value, whatever lies under NULL included."""
    offsets = _stored(array, "i8", extra=1)
    data = np.frombuffer(array.buffers()[2] or b"", np.uint8)
    if len(data) < 4:
        data = np.append(data, np.zeros(4, np.uint8))
    sizes = np.diff(offsets)
    groups: list[_Rows] = list(_ranges(len(sizes), _CHUNK))
    if sizes.max(initial=0) > _LONG:
        short, long = np.flatnonzero(sizes <= _LONG), np.flatnonzero(sizes > _LONG)
        long = long[np.argsort(sizes[long])]
        groups = [rows[some] for rows in (short, long) for some in _ranges(len(rows), _CHUNK)]
    hashes = np.empty(len(sizes), np.uint32)
    for rows in groups:
        hashes[rows] = _hash_spans(data, offsets[:-1][rows], sizes[rows])
    return hashes


def _hash_spans(data: _Octets, starts: _Int64s, sizes: _Int64s) -> _Words:
    """The hash of so many bytes from each start; the data is of four bytes at least."""
    hashes = np.zeros(len(sizes), np.uint32)
    left = sizes
    for width_bits in (4, 2):
        counts = left >> width_bits
        if counts.max() > 0:
            _stir_runs(hashes, data, starts, counts, 1 << width_bits)
            starts, left = starts + (counts << width_bits), left & ((1 << width_bits) - 1)
    # the last word is read no further than the data goes
    readable = np.minimum(starts, len(data) - 4)
    word = _overlapping(data, 4)[readable].view(np.uint32)
    word >>= (8 * (starts - readable)).astype(np.uint32)
    word &= _LOW_BYTES.take(left)
    spare = np.empty_like(hashes)
    _scramble(word, spare)
    hashes ^= word
    hashes ^= sizes.astype(np.uint32)
    _finish(hashes, spare)
    return hashes


def _stir_runs(hashes: _Words, data: _Octets, starts: _Int64s, counts: _Int64s, width: int) -> None:
    """Take so many runs of so many bytes from each start into its hash."""
    # rows leave at the front as their runs end; NumPy sorts small integers by radix
    order = np.argsort(counts.astype(np.uint8) if counts.max() < 256 else counts, kind="stable")
    starts, counts, stirred = starts.take(order), counts.take(order), hashes.take(order)
    spare = np.empty_like(hashes)
    runs = _overlapping(data, width)
    first = 0
    for index in range(counts[-1]):
        if counts[first] == index:
            first = int(np.searchsorted(counts, index, "right"))
        if index >= _FEW > len(counts) - first:
            for row in range(first, len(counts)):
                rest = data[starts[row] + width * index : starts[row] + width * counts[row]]
                stirred[row] = _stir_one(int(stirred[row]), rest.view(np.uint32))
            break
        words = runs[width * index :][starts[first:]].view(np.uint32)
        _scramble(words, np.empty_like(words))
        for word in words.reshape(-1, width // 4).T:
            _stir(stirred[first:], word, spare[first:])
    hashes[order] = stirred


def _overlapping(data: _Octets, width: int) -> npt.NDArray[np.void]:
    """The runs of so many bytes that start at every position."""
    return np.ndarray(len(data) - width + 1, f"V{width}", data, strides=1)


def _stir_one(hashed: int, words: _Words) -> int:
    """`_scramble` and `_stir` of many words into one hash."""
    for some in _ranges(len(words), _CHUNK):
        word = words[some].copy()
        _scramble(word, np.empty_like(word))
        for scrambled in word.tolist():
            hashed ^= scrambled
            hashed = ((hashed << 13 | hashed >> 19) * 5 + 0xE6546B64) & 0xFFFFFFFF
    return hashed


def _stir(hashes: _Words, scrambled: _Words, spare: _Words) -> None:
    """Take one more word into each hash."""
    hashes ^= scrambled
    _rotate_left(hashes, 13, spare)
    hashes *= np.uint32(5)
    hashes += np.uint32(0xE6546B64)


def _scramble(word: _Words, spare: _Words) -> None:
    word *= np.uint32(0xCC9E2D51)
    _rotate_left(word, 15, spare)
    word *= np.uint32(0x1B873593)


def _rotate_left(word: _Words, bits: int, spare: _Words) -> None:
    np.right_shift(word, np.uint32(32 - bits), out=spare)
    word <<= np.uint32(bits)
    word |= spare


def _finish(hashes: _Words, spare: _Words) -> None:
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        np.right_shift(hashes, np.uint32(shift), out=spare)
        hashes ^= spare
        hashes *= np.uint32(factor)
