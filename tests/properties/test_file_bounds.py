"""No file with a matching row is left out by the bounds of its columns."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import example, given
from hypothesis import strategies as st

from phalanx.model.predicates.binding import bind_predicate
from phalanx.model.schema.schema import Schema
from phalanx.planning.pruning.file_bounds import FileBounds, find_matching_files
from properties.oracle import find_matches

SCHEMA = Schema.of(pa.schema([("i", pa.int64()), ("f", pa.float64()), ("s", pa.string())]))
VALUES = {
    "i": st.none() | st.integers(-3, 3),
    "f": st.none() | st.sampled_from([-1.5, -0.0, 0.0, 1.5, float("nan"), float("inf")]),
    "s": st.none() | st.sampled_from(["", "a", "ab", "b"]),
}


@st.composite
def files(draw: st.DrawFn) -> list[pa.RecordBatch]:
    return [
        pa.RecordBatch.from_pydict(
            {
                name: pa.array(draw(st.lists(VALUES[name], min_size=size, max_size=size)), kind)
                for name, kind in (("i", pa.int64()), ("f", pa.float64()), ("s", pa.string()))
            }
        )
        for size in draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    ]


@st.composite
def conditions(draw: st.DrawFn) -> str:
    operator = draw(st.sampled_from(["=", "<>", "<", "<=", ">", ">="]))
    match draw(st.integers(0, 5)):
        case 0:
            return f"i {operator} {draw(st.integers(-4, 4))}"
        case 1:
            return f"f {operator} {draw(st.sampled_from(['-1.5', '0.0', '-0.0', '2.0']))}"
        case 2:
            return f"s {operator} '{draw(st.sampled_from(['', 'a', 'aa', 'c']))}'"
        case 3:
            return f"{draw(st.sampled_from('ifs'))} IS {draw(st.sampled_from(['', 'NOT ']))}NULL"
        case 4:
            return f"i IN ({draw(st.integers(-4, 0))}, {draw(st.integers(0, 4))})"
        case _:
            return draw(st.sampled_from(["s LIKE 'a%'", "i + 1 = 2", "f = 'NaN'"]))


def bounds_of(batches: list[pa.RecordBatch], name: str, known: list[bool]) -> FileBounds:
    """What a catalog would keep of each file: NaN is in no bound, and both zeros are one."""
    columns = [batch.column(name) for batch in batches]
    numbers = [
        column.filter(pc.invert(pc.is_nan(column))) if name == "f" else column.drop_null()
        for column in columns
    ]
    extremes = [pc.min_max(column) for column in numbers]
    kind = columns[0].type

    def ends(end: str) -> pa.Array:
        found = [
            each[end].as_py() if ok else None for each, ok in zip(extremes, known, strict=True)
        ]
        return pa.array([0.0 if value == 0.0 and name == "f" else value for value in found], kind)

    nan = [name == "f" and bool(pc.any(pc.is_nan(column)).as_py()) for column in columns]
    return FileBounds(
        ends("min"),
        ends("max"),
        np.array([column.null_count > 0 for column in columns]),
        np.array([column.null_count < len(column) for column in columns]),
        np.array(nan),
    )


@given(
    batches=files(),
    first=conditions(),
    second=conditions(),
    joint=st.sampled_from(["AND", "OR"]),
    negated=st.booleans(),
    known=st.lists(st.booleans(), min_size=4, max_size=4),
)
@example(
    batches=[pa.RecordBatch.from_pydict({"i": pa.array([0]), "f": [-0.0], "s": ["a"]})],
    first="f < 0.0",
    second="i = 0",
    joint="AND",
    negated=False,
    known=[True] * 4,
)
def test_a_file_with_a_matching_row_is_kept(
    batches: list[pa.RecordBatch],
    first: str,
    second: str,
    joint: str,
    negated: bool,
    known: list[bool],
) -> None:
    where = f"{'NOT ' if negated else ''}({first}) {joint} ({second})"
    predicate = bind_predicate(where, SCHEMA)
    bounds = {(name,): bounds_of(batches, name, known[: len(batches)]) for name in VALUES}
    found = find_matching_files(predicate, bounds, len(batches))
    for batch, kept in zip(batches, found, strict=True):
        matches = find_matches(pa.table(batch), where)
        assert kept or not pc.any(matches).as_py()


def test_files_outside_the_bounds_are_left_out() -> None:
    bounds = {
        ("i",): FileBounds(
            pa.array([1, 5, None]),
            pa.array([4, 9, None]),
            np.array([False, True, True]),
            np.array([True, True, True]),
            np.zeros(3, dtype=bool),
        )
    }
    expected = {
        "i = 4": [True, False, True],
        "i IN (0, 9)": [False, True, True],
        "i < 5": [True, False, True],
        "i > 4": [False, True, True],
        "i IS NULL": [False, True, True],
        "i < 2 AND i > 8": [False, False, True],
        f"i IN ({', '.join(map(str, range(5, 100)))})": [False, True, True],
    }
    for where, kept in expected.items():
        assert find_matching_files(bind_predicate(where, SCHEMA), bounds, 3).tolist() == kept, where
