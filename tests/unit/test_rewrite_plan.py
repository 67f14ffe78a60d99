"""Plans of rewrites over evolved tables: groups, delete files, statistics and reports."""

from __future__ import annotations

import json
import pickle
import random
from typing import Any

import pyarrow as pa
import pytest

from phalanx.errors import InvalidPredicate, SchemaMismatch, UnknownSpec
from phalanx.model.sql import engine
from phalanx.planning.rewrite import (
    DeleteFile,
    FilterStats,
    MultiSpecPartitionFilter,
    PartitionKey,
    RewriteDataFilesPlanner,
    RewriteFile,
    RewriteOptions,
    RewritePlan,
    file_entries,
)
from phalanx.planning.rewrites.entries import FILE_DELETES, FILE_PATH, FILE_POSITION
from unit.rewrite_tables import (
    MEGABYTE,
    SCHEMA,
    File,
    Unevaluable,
    Unprojectable,
    build_specs,
    entries_of,
    partitions_of,
    paths,
    planner,
    with_fault,
)

SPECS = build_specs("country", "year(ts)", [])
WHERE = "country = 'DE' AND ts >= '2024-01-01'"
FILES = {
    1: [File(f"{country}{n}", (country,)) for country in ("DE", "US") for n in range(5)],
    2: [File(f"{year}-{n}", (year,)) for year in (2023, 2024) for n in range(5)],
    3: [File(f"any{n}") for n in range(5)],
}


def keys(plan: RewritePlan) -> list[PartitionKey]:
    return [group.key for group in plan.groups]


# --- evolved tables -------------------------------------------------------------------------------


def test_plan_evolved_table_no_filter() -> None:
    result = planner(SPECS, FILES).plan_with_stats()
    assert keys(result.plan) == [
        PartitionKey(1, ("DE",)),
        PartitionKey(1, ("US",)),
        PartitionKey(2, (2023,)),
        PartitionKey(2, (2024,)),
        PartitionKey(3, ()),
    ]
    assert paths(result.plan)[0] == ["DE0", "DE1", "DE2", "DE3", "DE4"]
    assert [group.bytes for group in result.plan.groups] == [5 * MEGABYTE] * 5
    assert result.filter_stats == result.plan.stats == FilterStats()


def test_plan_evolved_table_with_filter() -> None:
    result = planner(SPECS, FILES, partition_filter=WHERE).plan_with_stats()
    assert keys(result.plan) == [
        PartitionKey(1, ("DE",)),
        PartitionKey(2, (2024,)),
        PartitionKey(3, ()),
    ]
    assert result.filter_stats == FilterStats()
    assert (result.plan.matching_files, result.plan.total_files) == (15, 25)


def test_plan_evolved_table_fail_open_stats() -> None:
    """The statistics count candidates only, not every file of the partitions that are kept."""
    specs = {
        **SPECS,
        1: with_fault(SPECS[1], Unprojectable()),
        4: with_fault(SPECS[1], Unevaluable()),
    }
    good = 512 * MEGABYTE
    files = {
        **FILES,
        1: [*FILES[1], File("good", ("DE",), good), File("lone", ("FR",))],
        4: [File("x0", ("x",)), File("x1", ("x",), good), File("7", ("7",)), File("3", ("3",))],
    }
    result = planner(specs, files, partition_filter="country > 'DE'").plan_with_stats()
    assert result.filter_stats == FilterStats(
        unevaluable_specs=1, eval_errors=1, fail_open_partitions=4, fail_open_files=12
    )
    assert result.plan.stats == result.filter_stats
    assert PartitionKey(1, ("DE",)) in keys(result.plan)
    left = {file.path for each in result.plan.left_out for file in each.files}
    assert left == {"lone", "x0", "7"}
    assert [(each.spec_id, each.partitions) for each in result.plan.diagnostics] == [(1, 3), (4, 1)]


def test_plan_deterministic_group_ids() -> None:
    expected = planner(SPECS, FILES).plan()
    for seed in range(5):
        shuffled = {}
        for spec_id, files in reversed(FILES.items()):
            shuffled[spec_id] = files[:]
            random.Random(seed).shuffle(shuffled[spec_id])
        found = planner(dict(reversed(SPECS.items())), shuffled).plan()
        assert [(group.id, group.key) for group in found.groups] == [
            (group.id, group.key) for group in expected.groups
        ]
        assert found == expected
        assert json.dumps(found.to_dict()) == json.dumps(expected.to_dict())
    assert [group.id for group in expected.groups] == [1, 2, 3, 4, 5]
    in_order = [group.key.sort_key() for group in expected.groups]
    assert in_order == sorted(in_order)


def test_plan_unknown_spec_hard_error() -> None:
    entries = entries_of(SPECS[1], FILES[1])
    for options in (RewriteOptions(), RewriteOptions(partition_filter=WHERE)):
        with pytest.raises(UnknownSpec, match="An entry has spec id 7"):
            RewriteDataFilesPlanner(SCHEMA, SPECS, {7: entries}, options).plan()


def test_plan_unpartitioned_by_the_entrys_own_spec() -> None:
    """The newest spec has no fields; entries of older ones keep their partitions all the same."""
    plan = planner(SPECS, {1: FILES[1], 3: FILES[3]}, partition_filter="country = 'US'").plan()
    assert keys(plan) == [PartitionKey(1, ("US",)), PartitionKey(3, ())]
    assert plan.groups[1].key.partition is None
    # And a filter that nothing satisfies still cannot tell what an unpartitioned file holds.
    assert keys(planner(SPECS, FILES, partition_filter="false").plan()) == [PartitionKey(3, ())]


def test_plan_an_invalid_filter_is_refused() -> None:
    for where in ("nation = 'DE'", "country ="):
        with pytest.raises(InvalidPredicate):
            planner(SPECS, FILES, partition_filter=where).plan()
    with pytest.raises(InvalidPredicate, match="Country"):
        planner(SPECS, FILES, partition_filter="Country = 'DE'", case_sensitive=True).plan()


def test_plan_strict_turns_fail_open_into_an_error() -> None:
    options = {"partition_filter": "country > 'DE'", "strict": True}
    for fault, cause in (
        (Unprojectable(), r"spec v1 \(2 of its partitions\): the transform is not known here"),
        (Unevaluable(), r"spec v1 \(1 of its partitions\): .*'DE'.*; spec v1 .*'US'"),
    ):
        specs = {**SPECS, 1: with_fault(SPECS[1], fault)}
        with pytest.raises(InvalidPredicate, match=cause):
            planner(specs, FILES, **options).plan()
        # No partition of the with_fault spec has to be decided.
        assert planner(specs, {2: FILES[2]}, **options).plan().groups
    assert planner(SPECS, FILES, **options).plan().groups


def test_plan_without_anything() -> None:
    for files in ({}, {1: []}, {1: [], 3: []}):
        plan = planner(SPECS, files, partition_filter=WHERE).plan()
        assert (plan.groups, plan.left_out, plan.rewritten_bytes) == ((), (), 0)
        assert "rewrites 0 of 0 files in 0 groups" in str(plan)


# --- delete files ---------------------------------------------------------------------------------


def test_a_delete_heavy_lone_file_is_kept() -> None:
    plan = planner(SPECS, {1: [File("a", ("DE",), 512 * MEGABYTE, 100, (30,))]}).plan()
    assert paths(plan) == [["a"]]


def test_delete_files_are_loaded_into_the_groups_they_belong_to() -> None:
    shared = {"path": "shared", "bytes": 7, "rows": None}
    own = {"path": "own", "bytes": 8, "rows": 3}
    entries = file_entries(
        partitions_of(SPECS[1], [("US",), ("DE",), ("DE",), ("US",)]),
        ["a", "b", "c", "d"],
        bytes=[1, 2, 3, 4],
        rows=[10, 10, 10, 10],
        deletes=[[shared], [own, shared], [shared], None],
    )
    options = RewriteOptions(min_input_files=2)
    plan = RewriteDataFilesPlanner(SCHEMA, SPECS, {1: entries}, options).plan()
    german, american = plan.groups
    assert german.files[0] == RewriteFile(
        "b", 2, 10, (DeleteFile("own", 8, 3), DeleteFile("shared", 7, None))
    )
    assert [each.path for each in german.delete_files] == ["own", "shared"]
    assert [each.path for each in american.delete_files] == ["shared"]
    assert american.files[1].deletes == ()
    assert (german.bytes, german.rows) == (5, 20)


# --- entries --------------------------------------------------------------------------------------


def test_files_of_a_partition_go_by_position_and_then_by_path() -> None:
    entries = file_entries(
        None, ["d", "c", "b", "a"], bytes=[1] * 4, rows=[1] * 4, positions=[9, 10, 10, 11]
    )
    options = RewriteOptions(min_input_files=2)
    plan = RewriteDataFilesPlanner(SCHEMA, SPECS, {3: entries}, options).plan()
    assert paths(plan) == [["d", "b", "c", "a"]]


def test_equal_floats_are_one_partition() -> None:
    specs = build_specs("country")
    field = specs[1].fields[0]
    number = type(field)("x", field.source_ids, field.derivation, pa.float64())
    spec = type(specs[1])(1, (number,))
    values = pa.table({"x": [0.0, -0.0, float("nan"), -float("nan"), None]})
    entries = file_entries(values, list("abcde"), bytes=[1] * 5, rows=[1] * 5)
    options = RewriteOptions(rewrite_all=True)
    plan = RewriteDataFilesPlanner(SCHEMA, {1: spec}, {1: entries}, options).plan()
    assert paths(plan) == [["a", "b"], ["c", "d"], ["e"]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table.drop([FILE_PATH]), r"must have one column '\.path' \(string\)"),
        (lambda table: table.drop(["country"]), "must have one column 'country'"),
        (
            lambda table: table.set_column(0, "country", pa.array([1] * 10)),
            "have column 'country' as int64, but it is string",
        ),
        (
            lambda table: table.set_column(1, FILE_PATH, pa.nulls(10, pa.string())),
            r"have NULL in '\.path'",
        ),
    ],
)
def test_entries_that_do_not_fit_their_spec_are_refused(change: Any, message: str) -> None:
    entries = change(entries_of(SPECS[1], FILES[1]))
    with pytest.raises(SchemaMismatch, match=message):
        RewriteDataFilesPlanner(SCHEMA, SPECS, {1: entries}).plan()


def test_positions_and_deletes_may_be_left_out() -> None:
    entries = entries_of(SPECS[1], FILES[1])
    bare = entries.select([name for name in entries.column_names if name != FILE_DELETES])
    assert FILE_POSITION not in bare.column_names
    assert RewriteDataFilesPlanner(SCHEMA, SPECS, {1: bare}).plan().groups == (
        RewriteDataFilesPlanner(SCHEMA, SPECS, {1: entries}).plan().groups
    )


def test_spec_ids_are_those_of_the_table_and_may_begin_with_zero() -> None:
    """Other systems count their specs from 0: a spec goes by the id that it has there."""
    plan = RewriteDataFilesPlanner(
        SCHEMA,
        {0: SPECS[1]},
        {0: entries_of(SPECS[1], FILES[1])},
        RewriteOptions(partition_filter="country = 'DE'"),
    ).plan()
    assert keys(plan) == [PartitionKey(0, ("DE",))]


def test_a_filter_that_chose_the_entries_is_not_evaluated_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chosen = MultiSpecPartitionFilter(WHERE, SPECS, SCHEMA)
    chosen.decide(1, partitions_of(SPECS[1], [("DE",), ("US",)]), 2)
    monkeypatch.setattr(engine, "evaluate_sql", None)
    entries = {1: entries_of(SPECS[1], FILES[1])}
    options = RewriteOptions(partition_filter=WHERE)
    plan = RewriteDataFilesPlanner(SCHEMA, SPECS, entries, options, filter=chosen).plan()
    assert keys(plan) == [PartitionKey(1, ("DE",))]


# --- what a plan shows ----------------------------------------------------------------------------


def test_a_plan_explains_itself() -> None:
    specs = {**SPECS, 2: with_fault(SPECS[2], Unprojectable())}
    files = {
        1: [*FILES[1], File("lone", (None,))],
        2: [File("y", (2024,), 512 * MEGABYTE, 100, (40, None))],
        3: FILES[3],
    }
    plan = planner(specs, files, partition_filter="ts > '2024-02-03'").plan()
    assert str(plan).splitlines() == [
        "where ts > '2024-02-03T00:00:00'",
        "rewrites 16 of 17 files in 4 groups, 552.6 MB",
        "spec v1 by country: 11 of 11 files may match",
        "spec v2 by ts: 1 of 1 file may match",
        "spec v3 by nothing: 5 of 5 files may match",
        "spec v2 includes 1 partition undecided: the transform is not known here",
        "group 1: v1 country=DE: 5 files, 5.2 MB",
        "group 2: v1 country=US: 5 files, 5.2 MB",
        "group 3: v2 ts_year=2024: 1 file, 536.9 MB, 2 delete files",
        "group 4: v3: 5 files, 5.2 MB",
        "left out: v1 country=NULL: 1 file: alone, and not above max_file_size_bytes=966367641",
    ]


def test_a_plan_is_json_and_can_be_pickled() -> None:
    files = {1: [*FILES[1], File("z", ("ZA",), 512 * MEGABYTE, 100, (40,))]}
    plan = planner(SPECS, files, partition_filter="id > 3").plan()
    found = json.loads(json.dumps(plan.to_dict()))
    assert found["groups"][2] == {
        "id": 3,
        "spec_id": 1,
        "values": {"country": "ZA"},
        "bytes": 536_870_912,
        "rows": 100,
        "files": [
            {"path": "z", "bytes": 536_870_912, "rows": 100, "deletes": ["z.deletes-0"]},
        ],
        "delete_files": [{"path": "z.deletes-0", "bytes": 10, "rows": 40}],
    }
    assert (found["candidate_files"], found["rewritten_files"]) == (11, 11)
    copied = pickle.loads(pickle.dumps(plan))
    assert copied == plan
    assert pickle.loads(pickle.dumps(plan.groups)) == plan.groups
    assert plan != planner(SPECS, files).plan()
    assert plan != "plan"


def test_a_long_plan_is_shown_in_part() -> None:
    files = [File(f"{n:03}-{m}", (f"{n:03}",)) for n in range(60) for m in range(1 + 4 * (n % 2))]
    shown = str(planner(SPECS, {1: files}).plan())
    assert shown.count("group ") == 20
    assert "and 10 groups more" in shown
    assert shown.count("left out: ") == 20
    assert "and 10 more left out" in shown
