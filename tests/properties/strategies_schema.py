"""Random Arrow types, fields and schemas: everything that the schema JSON can hold."""

import pyarrow as pa
from hypothesis import strategies as st

UNITS = st.sampled_from(["s", "ms", "us", "ns"])
INTEGERS = st.sampled_from(
    [f() for f in (pa.int8, pa.int16, pa.int32, pa.int64)]
    + [f() for f in (pa.uint8, pa.uint16, pa.uint32, pa.uint64)]
)
TEXT = st.text(max_size=6)
NAMES = st.text(
    st.characters(exclude_characters=".", exclude_categories=["Cs"]), min_size=1, max_size=6
)
METADATA = st.just({}) | st.dictionaries(TEXT, TEXT, max_size=2)


def decimals() -> st.SearchStrategy[pa.DataType]:
    widths = [(pa.decimal32, 9), (pa.decimal64, 18), (pa.decimal128, 38), (pa.decimal256, 76)]
    return st.one_of(
        st.builds(make, st.integers(1, digits), st.integers(-128, 127)) for make, digits in widths
    )


def plain_types() -> st.SearchStrategy[pa.DataType]:
    """Types with no fields inside."""
    simple = [pa.bool_(), pa.float16(), pa.float32(), pa.float64(), pa.date32(), pa.date64()]
    text = [pa.utf8(), pa.large_utf8(), pa.binary(), pa.large_binary()]
    times = [pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")]
    return st.one_of(
        st.sampled_from([pa.null(), *simple, *text, *times]),
        INTEGERS,
        decimals(),
        st.builds(pa.timestamp, UNITS, st.none() | st.text(min_size=1, max_size=12)),
        st.builds(pa.duration, UNITS),
        st.builds(pa.binary, st.integers(0, 2**31 - 1)),
    )


@st.composite
def fields_of(
    draw: st.DrawFn,
    types: st.SearchStrategy[pa.DataType],
    names: st.SearchStrategy[str] = NAMES,
) -> pa.Field:
    arrow_type = draw(types)
    # In Arrow, a column of type null must be nullable.
    nullable = arrow_type == pa.null() or draw(st.booleans())
    return pa.field(draw(names), arrow_type, nullable, draw(METADATA))


@st.composite
def maps_of(draw: st.DrawFn, types: st.SearchStrategy[pa.DataType]) -> pa.DataType:
    key_name, value_name = draw(st.sampled_from([("key", "value"), ("k", "v"), ("ключ", "🗝")]))
    key_type = draw(types.map(lambda drawn: pa.utf8() if drawn == pa.null() else drawn))
    key = pa.field(key_name, key_type, nullable=False, metadata=draw(METADATA))
    value = draw(fields_of(types, st.just(value_name)))
    return pa.map_(key, value, keys_sorted=draw(st.booleans()))


def siblings_of(
    types: st.SearchStrategy[pa.DataType], min_size: int = 0
) -> st.SearchStrategy[list[pa.Field]]:
    return st.lists(
        fields_of(types), min_size=min_size, max_size=3, unique_by=lambda field: field.name
    )


def types() -> st.SearchStrategy[pa.DataType]:
    return st.recursive(
        plain_types(),
        lambda inner: st.one_of(
            siblings_of(inner).map(pa.struct),
            fields_of(inner, TEXT).map(pa.list_),
            fields_of(inner, TEXT).map(pa.large_list),
            st.builds(pa.list_, fields_of(inner, TEXT), st.integers(0, 2**31 - 1)),
            maps_of(inner),
            st.builds(pa.dictionary, INTEGERS, inner, st.booleans()),
        ),
        max_leaves=5,
    )


def schemas() -> st.SearchStrategy[pa.Schema]:
    """Schemas with names that Lance takes; at least one column."""
    return st.builds(pa.schema, siblings_of(types(), min_size=1), METADATA)
