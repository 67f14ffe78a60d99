"""The rules of Iceberg's BinPackRewriteFilePlanner, as a table of cases checked by hand.

Sizes are in units of a hundredth of the target: below 75 a file is too small, above 180 too large.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from phalanx.errors import PhalanxError
from phalanx.planning.rewrite import JOB_ORDERS, RewriteOptions
from unit.rewrite_tables import File, build_specs, paths, planner

UNIT = 1000
TARGET = 100 * UNIT


@dataclass(frozen=True)
class Case:
    """Files of one partition, by size and deletes, and the groups of them that are expected."""

    name: str
    sizes: list[float]
    expected: list[str]
    options: dict[str, Any] = field(default_factory=dict)
    deletes: dict[str, tuple[int | None, ...]] = field(default_factory=dict)
    rows: int = 100
    candidates: str | None = None


CASES = [
    # A file is a candidate if its size is outside of [75, 180].
    Case("files of a good size are left alone", [75, 100, 180] * 3, [], candidates=""),
    Case("a byte too small", [75 - 0.001] * 5, ["abcde"]),
    Case("a byte too large", [180 + 0.001], ["a"]),
    Case("only the misfits of a partition", [100, 10, 100, 10, 10, 10, 10], ["bdefg"]),
    # A group counts if it has at least min_input_files, and more than one.
    Case("five small files", [1] * 5, ["abcde"]),
    Case("four small files", [1] * 4, [], candidates="abcd"),
    Case("four, where two are enough", [1] * 4, ["abcd"], {"min_input_files": 2}),
    Case("one, where one would be enough", [1], [], {"min_input_files": 1}, candidates="a"),
    Case("a lone small file", [10], [], candidates="a"),
    # Or if several files make more than a new one.
    Case("two files above the target", [50, 51], ["ab"]),
    Case("two files of just the target", [50, 50], [], candidates="ab"),
    Case("two files below the target", [50, 49], [], candidates="ab"),
    Case("three files above the target", [40, 30, 31], ["abc"]),
    # Or if it is more than the largest file.
    Case("a lone large file is split", [181], ["a"]),
    Case("large and small together", [400, 1], ["ab"]),
    # delete_file_threshold: so many delete files or more, whatever the size of the file.
    Case("delete files do not count by default", [100], [], deletes={"a": (0,) * 50}),
    Case(
        "as many delete files as the threshold",
        [100],
        ["a"],
        {"delete_file_threshold": 3},
        {"a": (0, 0, 0)},
    ),
    Case(
        "one delete file less",
        [100],
        [],
        {"delete_file_threshold": 3},
        {"a": (0, 0)},
        candidates="",
    ),
    Case(
        "a lone small file with delete files",
        [1],
        ["a"],
        {"delete_file_threshold": 1},
        {"a": (None,)},
    ),
    Case(
        "a file with deletes carries its group",
        [1, 1, 1],
        ["abc"],
        {"delete_file_threshold": 1},
        {"b": (None,)},
    ),
    Case(
        "but not files of a good size",
        [100, 100, 1],
        ["bc"],
        {"delete_file_threshold": 1},
        {"b": (None,)},
    ),
    Case("a threshold of zero takes every file", [100, 100], ["ab"], {"delete_file_threshold": 0}),
    # delete_ratio_threshold: so many deleted rows of all rows or more.
    Case("three tenths of the rows", [100], ["a"], deletes={"a": (30,)}),
    Case("almost three tenths", [100], [], deletes={"a": (29,)}, candidates=""),
    Case("three tenths in several delete files", [100], ["a"], deletes={"a": (10, 10, 10)}),
    Case("all rows", [100], ["a"], deletes={"a": (100,)}),
    Case("more deletes than rows", [100], ["a"], {"delete_ratio_threshold": 1.0}, {"a": (300,)}),
    Case("another ratio", [100], ["a"], {"delete_ratio_threshold": 0.05}, {"a": (5,)}),
    Case("below another ratio", [100], [], {"delete_ratio_threshold": 0.5}, {"a": (49,)}),
    Case("nobody knows how many rows", [100], [], deletes={"a": (None, None)}, candidates=""),
    Case("some are known", [100], ["a"], deletes={"a": (None, 30)}),
    Case("a file without rows", [100], [], deletes={"a": (0,)}, rows=0, candidates=""),
    Case("a ratio carries its group too", [1, 1], ["ab"], deletes={"b": (40,)}),
    # Groups of at most max_file_group_size_bytes, in order; a larger file is a group of its own.
    Case(
        "groups are filled in order",
        [70, 70, 70, 70],
        ["ab", "cd"],
        {"max_file_group_size_bytes": 140 * UNIT},
    ),
    Case(
        "a byte less, and each is alone",
        [70, 70, 70],
        [],
        {"max_file_group_size_bytes": 140 * UNIT - 1},
        candidates="abc",
    ),
    Case(
        "what is left over is too little",
        [60, 60, 60],
        ["ab"],
        {"max_file_group_size_bytes": 120 * UNIT},
        candidates="abc",
    ),
    Case(
        "a file above the limit is alone",
        [10, 10, 500, 10, 10],
        ["ab", "c", "de"],
        {"max_file_group_size_bytes": 200 * UNIT, "min_input_files": 2},
    ),
    Case(
        "empty files do not join a group that is too large",
        [500, 0, 0],
        ["a", "bc"],
        {"max_file_group_size_bytes": 200 * UNIT, "min_input_files": 2},
    ),
    # rewrite_all: all files, all groups.
    Case("all files", [100, 100, 1], ["abc"], {"rewrite_all": True}),
    Case("also a lone good file", [100], ["a"], {"rewrite_all": True}),
    Case(
        "all files in groups",
        [100, 100, 100],
        ["ab", "c"],
        {"rewrite_all": True, "max_file_group_size_bytes": 200 * UNIT},
    ),
    # The bounds can be given.
    Case("nothing is too small", [0, 1, 2] * 3, [], {"min_file_size_bytes": 0}, candidates=""),
    Case("a given smallest size", [49, 50] * 5, ["acegi"], {"min_file_size_bytes": 50 * UNIT}),
    Case("a given largest size", [120, 121], ["b"], {"max_file_size_bytes": 120 * UNIT}),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_rules_of_iceberg(case: Case) -> None:
    names = "abcdefghij"
    files = [
        File(name, ("DE",), round(size * UNIT), case.rows, case.deletes.get(name, ()))
        for name, size in zip(names, case.sizes, strict=False)
    ]
    options = {"target_file_size_bytes": TARGET} | case.options
    plan = planner(build_specs("country"), {1: files}, **options).plan()
    assert ["".join(group) for group in paths(plan)] == case.expected
    left = "".join(file.path for each in plan.left_out for file in each.files)
    if case.candidates is not None:
        assert sorted("".join(case.expected) + left) == sorted(case.candidates)
    assert plan.candidate_files == len("".join(case.expected) + left)


def test_the_defaults_are_those_of_iceberg() -> None:
    assert RewriteOptions().to_dict() == {
        "partition_filter": None,
        "case_sensitive": False,
        "strict": False,
        "target_file_size_bytes": 536_870_912,
        "min_file_size_bytes": 402_653_184,
        "max_file_size_bytes": 966_367_641,
        "min_input_files": 5,
        "delete_file_threshold": None,
        "delete_ratio_threshold": 0.3,
        "max_file_group_size_bytes": 107_374_182_400,
        "rewrite_job_order": "none",
        "rewrite_all": False,
        "max_files_to_rewrite": None,
    }


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("target_file_size_bytes", 0, "a positive integer"),
        ("target_file_size_bytes", 1.5, "a positive integer"),
        ("target_file_size_bytes", None, "a positive integer"),
        ("min_file_size_bytes", -1, "an integer of at least 0"),
        ("min_file_size_bytes", 512 << 20, "less than target_file_size_bytes, 536870912"),
        ("max_file_size_bytes", 512 << 20, "more than target_file_size_bytes, 536870912"),
        ("min_input_files", 0, "a positive integer"),
        ("min_input_files", True, "a positive integer"),
        ("delete_file_threshold", -1, "an integer of at least 0"),
        ("delete_ratio_threshold", 0, "a number above 0, at most 1"),
        ("delete_ratio_threshold", 1.01, "a number above 0, at most 1"),
        ("delete_ratio_threshold", float("nan"), "a number above 0, at most 1"),
        ("delete_ratio_threshold", "0.3", "a number above 0, at most 1"),
        ("max_file_group_size_bytes", 0, "a positive integer"),
        ("rewrite_job_order", "largest", "one of none, bytes-asc, bytes-desc, files-asc, files-"),
        ("rewrite_all", "yes", "True or False"),
        ("max_files_to_rewrite", 0, "a positive integer"),
    ],
)
def test_an_option_out_of_bounds_is_refused(option: str, value: object, expected: str) -> None:
    with pytest.raises(PhalanxError, match=f"Cannot rewrite with {option}=.*: expected {expected}"):
        RewriteOptions(**{option: value})


# --- order and limit ------------------------------------------------------------------------------

ORDERED = [
    *(File(f"a{n}", ("A",), 1) for n in range(7)),
    *(File(f"b{n}", ("B",), 100) for n in range(5)),
    *(File(f"c{n}", ("C",), 10) for n in range(6)),
    *(File(f"d{n}", ("D",), 10) for n in range(6)),
]


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("none", "abcd"),
        ("bytes-asc", "acdb"),
        ("bytes-desc", "bcda"),
        ("files-asc", "bcda"),
        ("files-desc", "acdb"),
    ],
)
def test_groups_come_in_the_order_that_is_asked_for(order: str, expected: str) -> None:
    plan = planner(build_specs("country"), {1: ORDERED}, rewrite_job_order=order).plan()
    assert "".join(group[0][0] for group in paths(plan)) == expected
    # An id goes by the key, not by the order.
    assert [group.id for group in plan.groups] == ["abcd".index(name) + 1 for name in expected]


def test_every_order_is_tested() -> None:
    assert JOB_ORDERS == ("none", "bytes-asc", "bytes-desc", "files-asc", "files-desc")


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (24, ["b0-b4", "c0-c5", "d0-d5", "a0-a6"]),
        (23, ["b0-b4", "c0-c5", "d0-d5", "a0-a5"]),
        (11, ["b0-b4", "c0-c5"]),
        (9, ["b0-b4", "c0-c3"]),
        # Rewriting a single small file has no benefit.
        (6, ["b0-b4"]),
        (2, ["b0-b1"]),
        (1, []),
    ],
)
def test_no_more_files_than_the_limit(limit: int, expected: list[str]) -> None:
    options = {"rewrite_job_order": "bytes-desc", "max_files_to_rewrite": limit}
    plan = planner(build_specs("country"), {1: ORDERED}, **options).plan()
    assert [f"{group[0]}-{group[-1]}" for group in paths(plan)] == expected
    assert plan.rewritten_files + sum(len(each.files) for each in plan.left_out) == 24
    assert {each.reason for each in plan.left_out} <= {f"max_files_to_rewrite={limit} is reached"}


def test_a_lone_file_at_the_limit_is_rewritten_if_it_would_be_alone_too() -> None:
    files = [File("a", ("A",), 1, 100, (50,)), *(File(f"b{n}", ("A",), 1) for n in range(5))]
    plan = planner(build_specs("country"), {1: files}, max_files_to_rewrite=1).plan()
    assert paths(plan) == [["a"]]


def test_what_is_left_out_says_why() -> None:
    files = [File("a", ("A",), 1), *(File(f"b{n}", ("B",), 1) for n in range(2))]
    plan = planner(build_specs("country"), {1: files}, target_file_size_bytes=100).plan()
    assert [(each.key.values, each.reason) for each in plan.left_out] == [
        (("A",), "alone, and not above max_file_size_bytes=180"),
        (
            ("B",),
            "fewer files than min_input_files=5, and not above target_file_size_bytes=100",
        ),
    ]
