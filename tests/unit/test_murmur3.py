import datetime as dt
import itertools
import math
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any, NamedTuple

import mmh3
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.errors import InvalidSpec
from phalanx.model import murmur3 as module
from phalanx.model.murmur3 import is_hashable, murmur3, murmur3_multi

# --- what is expected, value by value, from mmh3 -------------------------------------------------


class Kind(NamedTuple):
    """Values of one type: how to draw them, lay them out in Arrow, and which bytes they hash as."""

    type: pa.DataType
    values: st.SearchStrategy[Any]
    array: Callable[[list[Any]], pa.Array]
    encoded: Callable[[Any], bytes]


def eight_bytes(number: int) -> bytes:
    return (number % 2**64).to_bytes(8, "little")


def float_bytes(number: float) -> bytes:
    if math.isnan(number):
        return bytes.fromhex("000000000000f87f")
    return struct.pack("<d", number or 0.0)


def shortest_bytes(number: int) -> bytes:
    magnitude = number if number >= 0 else ~number
    return number.to_bytes(magnitude.bit_length() // 8 + 1, "big", signed=True)


def plain(
    arrow_type: pa.DataType, values: st.SearchStrategy[Any], encoded: Callable[[Any], bytes]
) -> Kind:
    return Kind(arrow_type, values, lambda items: pa.array(items, arrow_type), encoded)


def integer(arrow_type: pa.DataType) -> Kind:
    width = arrow_type.bit_width
    low = 0 if pa.types.is_unsigned_integer(arrow_type) else -(2 ** (width - 1))
    return plain(arrow_type, st.integers(low, low + 2**width - 1), eight_bytes)


def temporal_kind(
    arrow_type: pa.DataType, stored: Callable[[int], int], below: int | None = None
) -> Kind:
    """A temporal type, by the integers that Arrow stores."""
    integers = pa.int32() if arrow_type.bit_width == 32 else pa.int64()
    limit = 2 ** (arrow_type.bit_width - 1)
    return Kind(
        arrow_type,
        st.integers(0 if below else -limit, below - 1 if below else limit - 1),
        lambda items: pa.array(items, integers).cast(arrow_type),
        lambda count: eight_bytes(stored(count)),
    )


def decimal(arrow_type: pa.DataType) -> Kind:
    limit = 10**arrow_type.precision - 1
    edges = [2 ** (8 * size - 1) + step for size in range(1, 33) for step in (-2, -1, 0, 1)]
    edges += [-edge for edge in edges] + [0, limit, -limit]
    in_range = st.sampled_from([edge for edge in edges if abs(edge) <= limit])

    def as_decimal(number: int) -> Decimal:
        return Decimal((number < 0, tuple(map(int, str(abs(number)))), -arrow_type.scale))

    return Kind(
        arrow_type,
        st.integers(-limit, limit) | in_range,
        lambda items: pa.array([n if n is None else as_decimal(n) for n in items], arrow_type),
        shortest_bytes,
    )


DAY = 86_400
KINDS = [
    plain(pa.null(), st.none(), bytes),
    plain(pa.bool_(), st.booleans(), lambda value: eight_bytes(int(value))),
    *map(integer, [pa.int8(), pa.int16(), pa.int32(), pa.int64()]),
    *map(integer, [pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]),
    plain(
        pa.float16(), st.floats(width=16).map(np.float16), lambda value: float_bytes(float(value))
    ),
    plain(pa.float32(), st.floats(width=32), float_bytes),
    plain(pa.float64(), st.floats(), float_bytes),
    temporal_kind(pa.date32(), lambda days: days),
    temporal_kind(pa.date64(), lambda milliseconds: milliseconds // (1000 * DAY)),
    temporal_kind(pa.time32("s"), lambda count: count * 10**6, below=DAY),
    temporal_kind(pa.time32("ms"), lambda count: count * 10**3, below=DAY * 10**3),
    temporal_kind(pa.time64("us"), lambda count: count, below=DAY * 10**6),
    temporal_kind(pa.time64("ns"), lambda count: count // 10**3, below=DAY * 10**9),
    *(
        temporal_kind(pa.timestamp(unit, zone), stored)
        for zone in (None, "UTC", "Asia/Tokyo")
        for unit, stored in (
            ("s", lambda count: count * 10**6),
            ("ms", lambda count: count * 10**3),
            ("us", lambda count: count),
            ("ns", lambda count: count // 10**3),
        )
    ),
    *(
        plain(arrow_type, st.text(max_size=40), str.encode)
        for arrow_type in (pa.string(), pa.large_string(), pa.string_view())
    ),
    *(
        plain(arrow_type, st.binary(max_size=40), bytes)
        for arrow_type in (pa.binary(), pa.large_binary(), pa.binary_view())
    ),
    *(
        plain(pa.binary(width), st.binary(min_size=width, max_size=width), bytes)
        for width in (0, 1, 3, 4, 16, 21)
    ),
    *map(decimal, [pa.decimal32(1, 0), pa.decimal32(9, 2), pa.decimal64(18, 4)]),
    *map(decimal, [pa.decimal128(9, 2), pa.decimal128(38, 10), pa.decimal128(20, -3)]),
    *map(decimal, [pa.decimal256(20, 0), pa.decimal256(76, 38)]),
]


class Column(NamedTuple):
    array: pa.Array
    encoded: list[bytes | None]


@st.composite
def columns(draw: st.DrawFn, rows: int | None = None) -> Column:
    """An array of any hashable type with NULLs, often a slice or a dictionary, and its bytes."""
    kind = draw(st.sampled_from(KINDS))
    size = {} if rows is None else {"min_size": rows, "max_size": rows}
    items = draw(st.lists(st.none() | kind.values, **size))
    array = kind.array(items)
    if draw(st.booleans()):
        before, after = (
            draw(st.lists(kind.values, max_size=9)),
            draw(st.lists(kind.values, max_size=9)),
        )
        array = kind.array([*before, *items, *after])[len(before) : len(before) + len(items)]
    if items and draw(st.booleans()):
        picked = draw(
            st.lists(
                st.none() | st.integers(0, len(items) - 1),
                min_size=len(items),
                max_size=len(items),
            )
        )
        array = pa.DictionaryArray.from_arrays(pa.array(picked, pa.int16()), array)
        items = [None if index is None else items[index] for index in picked]
    return Column(array, [None if item is None else kind.encoded(item) for item in items])


def compute_expected(*encoded: list[bytes | None]) -> list[int | None]:
    rows = [[part for part in row if part is not None] for row in zip(*encoded, strict=True)]
    return [mmh3.hash(b"".join(row)) if row else None for row in rows]


def strings(lengths: list[int]) -> list[bytes]:
    noise = np.random.default_rng(7).integers(0, 256, max(lengths, default=0) + 256, np.uint8)
    return [noise[row % 251 :][:length].tobytes() for row, length in enumerate(lengths)]


# --- one column ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("array", "hashed"),
    [
        (pa.array([34], pa.int32()), 2017239379),
        (pa.array([34], pa.int64()), 2017239379),
        (pa.array([0]), 1669671676),
        (pa.array([5]), 1740791543),
        (pa.array([dt.date(2017, 11, 16)]), -653330422),
        (pa.array([dt.datetime(2017, 11, 16, 22, 31, 8)]), -2047944441),
        (pa.array([dt.time(22, 31, 8)]), -662762989),
        (pa.array(["iceberg"]), 1210000089),
        (pa.array(["US"]), -629525236),
        (pa.array([""]), 0),
        (pa.array([bytes([0, 1, 2, 3])]), -188683207),
        (pa.array([Decimal("14.20")]), -500754589),
        (pa.array([True]), 1392991556),
        (pa.array([1.0]), -142385009),
    ],
    ids=str,
)
def test_known_values(array: pa.Array, hashed: int) -> None:
    assert murmur3(array).equals(pa.array([hashed], pa.int32()))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind.type))
@given(data=st.data())
def test_each_type_hashes_as_mmh3_hashes_its_bytes(kind: Kind, data: st.DataObject) -> None:
    items = data.draw(st.lists(st.none() | kind.values, min_size=1))
    encoded = [None if item is None else kind.encoded(item) for item in items]
    assert is_hashable(kind.type)
    assert kind.array(items).type == kind.type
    assert murmur3(kind.array(items)).to_pylist() == compute_expected(encoded)


@given(columns())
def test_slices_and_dictionaries_hash_as_their_values(column: Column) -> None:
    hashes = murmur3(column.array)
    hashes.validate(full=True)
    assert hashes.type == pa.int32()
    assert hashes.to_pylist() == compute_expected(column.encoded)


@given(columns(), st.data())
def test_chunks_hash_as_one_array(column: Column, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(column.array)), max_size=4)))
    bounds = itertools.pairwise([0, *cuts, len(column.array)])
    chunks = [column.array[start:stop] for start, stop in bounds]
    hashes = murmur3(pa.chunked_array(chunks, column.array.type))
    assert isinstance(hashes, pa.Int32Array)
    assert hashes.equals(murmur3(column.array))


@given(columns())
def test_a_value_alone_hashes_as_among_others(column: Column) -> None:
    alone = [murmur3(column.array[row : row + 1]) for row in range(len(column.array))]
    assert pa.concat_arrays([pa.array([], pa.int32()), *alone]).equals(murmur3(column.array))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind.type))
def test_nothing_hashes_to_nothing(kind: Kind) -> None:
    nothing = pa.array([], pa.int32())
    in_dictionary = pa.DictionaryArray.from_arrays(pa.array([], pa.int8()), kind.array([]))
    for array in (kind.array([]), pa.chunked_array([], kind.type), in_dictionary):
        assert murmur3(array).equals(nothing)
        assert murmur3_multi(array, array).equals(nothing)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind.type))
def test_null_hashes_to_null(kind: Kind) -> None:
    in_dictionary = pa.DictionaryArray.from_arrays(pa.nulls(3, pa.int8()), kind.array([]))
    for array in (pa.nulls(3, kind.type), in_dictionary):
        assert murmur3(array).equals(pa.nulls(3, pa.int32()))
        assert murmur3_multi(array, array).equals(pa.nulls(3, pa.int32()))


def test_every_float16_hashes_as_its_float64() -> None:
    bits = np.arange(2**16, dtype=np.uint16)
    halves = bits.view(np.float16)
    encoded = [float_bytes(float(half)) for half in halves]
    assert murmur3(pa.array(halves)).to_pylist() == compute_expected(encoded)


@pytest.mark.parametrize(
    ("bits", "dtype"),
    [
        ([0x7FF0000000000001, 0x7FF8000000000000, 0x7FFFFFFFFFFFFFFF, 2**64 - 1], np.uint64),
        ([0x7F800001, 0x7FC00000, 0x7FFFFFFF, 2**32 - 1], np.uint32),
        ([0x7C01, 0x7E00, 0x7FFF, 2**16 - 1], np.uint16),
    ],
)
def test_every_nan_hashes_alike(bits: list[int], dtype: type) -> None:
    floats = {np.uint64: np.float64, np.uint32: np.float32, np.uint16: np.float16}[dtype]
    hashes = murmur3(pa.array(np.array(bits, dtype).view(floats)))
    assert set(hashes.to_pylist()) == {mmh3.hash(float_bytes(math.nan))}


@pytest.mark.parametrize("floats", [np.float16, np.float32, np.float64])
def test_both_zeros_hash_alike(floats: type) -> None:
    hashes = murmur3(pa.array(np.array([0.0, -0.0], floats)))
    assert hashes.to_pylist() == [1669671676, 1669671676]


@pytest.mark.parametrize("size", range(9))
def test_nothing_is_read_past_the_data(size: int) -> None:
    whole = bytes(range(1, size + 1))
    for cut in range(size + 1):
        offsets = np.array([0, cut, size, size], np.int32)
        array = pa.Array.from_buffers(
            pa.binary(), 3, [None, pa.py_buffer(offsets), pa.py_buffer(whole)]
        )
        assert murmur3(array).to_pylist() == compute_expected([whole[:cut], whole[cut:], b""])


@pytest.mark.parametrize(
    ("arrow_type", "width"),
    [
        *((pa.binary(), 0), (pa.binary(16), 16), (pa.decimal128(38, 2), 16)),
        *((pa.int64(), 8), (pa.timestamp("s"), 8), (pa.float32(), 4), (pa.decimal32(9, 2), 4)),
    ],
    ids=str,
)
@given(st.binary(min_size=64, max_size=64), st.binary(min_size=64, max_size=64))
def test_bytes_under_null_do_not_matter(
    arrow_type: pa.DataType, width: int, one: bytes, other: bytes
) -> None:
    def hash_rows(noise: bytes) -> list[list[int | None]]:
        """The hashes of four rows, of which the first and the third are not NULL."""
        data = bytearray(noise)
        offsets = [row * width for row in range(5)] if width else [0, 3, 24, 30, 64]
        for row in (0, 2):
            data[offsets[row] : offsets[row + 1]] = b"x" * (offsets[row + 1] - offsets[row])
        buffers = [pa.py_buffer(bytes([0b0101])), pa.py_buffer(bytes(data))]
        if not width:
            buffers.insert(1, pa.py_buffer(np.array(offsets, np.int32)))
        array = pa.Array.from_buffers(arrow_type, 4, buffers)
        numbers = pa.array([7, 8, 9, None])
        return [murmur3(array).to_pylist(), murmur3_multi(numbers, array, array).to_pylist()]

    assert hash_rows(one) == hash_rows(other)


@pytest.mark.parametrize(
    "lengths",
    [
        [*range(600)],
        [*range(600), 100_000],
        [100_000, *[3] * 5000, 70_001, *[512, 513] * 40, 5],
        [*[2000] * 63, 2001, 9000],
        [*range(1000, 1200), *range(3000, 3040)],
        [1_000_003],
        [],
    ],
    ids=lambda lengths: f"{len(lengths)} values",
)
@pytest.mark.parametrize("arrow_type", [pa.binary(), pa.large_binary(), pa.binary_view()], ids=str)
def test_short_and_long_values_mix(lengths: list[int], arrow_type: pa.DataType) -> None:
    values = strings(lengths)
    assert murmur3(pa.array(values, arrow_type)).to_pylist() == compute_expected(values)


@pytest.mark.parametrize("sizes", [(1, 1, 1), (4, 8, 16), (7, 1000, 3)], ids=str)
def test_chunks_and_batches_do_not_show(
    sizes: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = [*range(40), *[600] * 70, 5, 700, 0]
    values = [None if row % 9 == 4 else value for row, value in enumerate(strings(lengths))]
    numbers = [None if row % 5 == 2 else row**9 for row in range(len(lengths))]
    encoded = [n if n is None else shortest_bytes(n) for n in numbers]
    decimals = pa.array(numbers, pa.decimal128(38, 0))
    for name, size in zip(("_CHUNK", "_BATCH", "_JOINED_BATCH"), sizes, strict=True):
        monkeypatch.setattr(module, name, size)
    assert murmur3(pa.array(values)).to_pylist() == compute_expected(values)
    assert murmur3(decimals).to_pylist() == compute_expected(encoded)
    assert murmur3(pa.array(range(50))).to_pylist() == compute_expected(
        [*map(eight_bytes, range(50))]
    )
    assert murmur3_multi(decimals, pa.array(values)).to_pylist() == compute_expected(
        encoded, values
    )


def test_many_rows() -> None:
    numbers = np.random.default_rng(3).integers(-(2**63), 2**63 - 1, 150_000)
    texts = [str(number) for number in numbers]
    encoded_numbers = [*map(eight_bytes, map(int, numbers))]
    encoded_texts = [*map(str.encode, texts)]
    assert murmur3(pa.array(numbers)).to_pylist() == compute_expected(encoded_numbers)
    assert murmur3(pa.array(texts)).to_pylist() == compute_expected(encoded_texts)
    both = murmur3_multi(pa.array(texts), pa.array(numbers))
    assert both.to_pylist() == compute_expected(encoded_texts, encoded_numbers)


# --- several columns -----------------------------------------------------------------------------


@given(st.data(), st.integers(0, 12), st.integers(1, 4))
def test_several_columns_hash_as_mmh3_hashes_their_bytes(
    data: st.DataObject, rows: int, count: int
) -> None:
    drawn = [data.draw(columns(rows)) for _ in range(count)]
    hashes = murmur3_multi(*(column.array for column in drawn))
    hashes.validate(full=True)
    assert isinstance(hashes, pa.Int32Array)
    assert hashes.to_pylist() == compute_expected(*(column.encoded for column in drawn))


@given(columns())
def test_one_column_hashes_the_same_either_way(column: Column) -> None:
    assert murmur3_multi(column.array).equals(murmur3(column.array))


@given(columns())
def test_a_column_of_nulls_adds_nothing(column: Column) -> None:
    for nulls in (pa.nulls(len(column.array)), pa.nulls(len(column.array), pa.string())):
        assert murmur3_multi(column.array, nulls).equals(murmur3(column.array))
        assert murmur3_multi(nulls, column.array).equals(murmur3(column.array))


@given(st.lists(st.tuples(st.binary(), st.binary())))
def test_two_columns_hash_as_their_concatenation(pairs: list[tuple[bytes, bytes]]) -> None:
    first, second = (pa.array([pair[side] for pair in pairs], pa.binary()) for side in (0, 1))
    together = pa.array([before + after for before, after in pairs], pa.binary())
    assert murmur3_multi(first, second).equals(murmur3(together))


def test_columns_may_be_chunked_apart() -> None:
    numbers = pa.chunked_array([[1, 2], [], [None], [4]])
    texts = pa.chunked_array([["a"], [None, None, "dddd"]])
    mixed = murmur3_multi(numbers, texts, pa.array([1.5, 2.5, None, 4.5]))
    encoded = [
        [n if n is None else eight_bytes(n) for n in numbers.to_pylist()],
        [text and text.encode() for text in texts.to_pylist()],
        [float_bytes(1.5), float_bytes(2.5), None, float_bytes(4.5)],
    ]
    assert mixed.to_pylist() == compute_expected(*encoded)
    assert mixed[2].as_py() is None


def test_dictionaries_may_differ_by_chunk_and_hold_null() -> None:
    chunks = [
        pa.DictionaryArray.from_arrays(pa.array([0, 1, None]), pa.array(["a", None])),
        pa.DictionaryArray.from_arrays(pa.array([1, 0]), pa.array(["b", "a"])),
    ]
    column = pa.chunked_array(chunks)
    hashes = compute_expected([b"a", None, None, b"a", b"b"])
    assert murmur3(column).to_pylist() == hashes
    assert murmur3_multi(column, pa.nulls(5)).to_pylist() == hashes


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arrow_type",
    [
        pa.list_(pa.string()),
        pa.large_list(pa.int8()),
        pa.list_(pa.float32(), 4),
        pa.struct([pa.field("x", pa.int32())]),
        pa.map_(pa.string(), pa.int32()),
        pa.duration("us"),
        pa.month_day_nano_interval(),
        pa.dictionary(pa.int8(), pa.duration("s")),
        pa.run_end_encoded(pa.int32(), pa.string()),
        pa.uuid(),
    ],
    ids=str,
)
def test_other_types_are_refused(arrow_type: pa.DataType) -> None:
    assert not is_hashable(arrow_type)
    column = pa.chunked_array([], arrow_type)
    for refused in (
        murmur3,
        murmur3_multi,
        lambda array: murmur3_multi(pa.array([], "int8"), array),
    ):
        with pytest.raises(InvalidSpec) as error:
            refused(column)
        assert str(error.value) == (
            f"Cannot hash a column of type {arrow_type}: murmur3 hashes numbers, booleans, "
            "strings, binary, dates, times, timestamps and decimals."
        )


def test_no_columns_are_refused() -> None:
    with pytest.raises(InvalidSpec, match="at least one"):
        murmur3_multi()


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match=r"different lengths together: \[1, 2\]"):
        murmur3_multi(pa.array([1]), pa.array(["a", "b"]))
