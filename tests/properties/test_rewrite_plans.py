"""The laws of rewrite plans, against brute force over files, and over the rows in them."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from phalanx.errors import InvalidPredicate
from phalanx.model.predicates.predicate import Predicate
from phalanx.model.schema.grouping import group_rows
from phalanx.model.specs.partition_key import PartitionKey, read_keys
from phalanx.model.specs.spec import PartitionSpec
from phalanx.planning.pruning.residual import find_possible_partitions
from phalanx.planning.rewrite import (
    JOB_ORDERS,
    FilterStats,
    RewriteDataFilesPlanner,
    RewriteOptions,
    RewritePlan,
    file_entries,
)
from phalanx.planning.rewrites import filter as rewrite_filter
from properties.oracle import find_matches
from properties.strategies import Rows, predicates, rows, specs
from tables import SOAK
from unit.rewrite_tables import (
    SCHEMA,
    File,
    Renamed,
    Unprojectable,
    build_specs,
    entries_of,
    with_fault,
)

BY_FILES = build_specs("country", "country, bucket(4, id)", [])
TARGET = 100
Files = Mapping[int, Sequence[File]]


# --- files of any sizes, without a filter ---------------------------------------------------------


@st.composite
def files_of(draw: st.DrawFn) -> Files:
    """Files of several specs and partitions, with sizes and deletes around the thresholds."""
    found: dict[int, list[File]] = {}
    sizes = st.one_of(st.sampled_from([0, 1, 74, 75, 100, 180, 181, 400]), st.integers(0, 250))
    countries = st.sampled_from(["DE", "US", None])
    deletes = st.lists(st.sampled_from([None, 0, 2, 3, 10]), max_size=3)
    for spec_id, spec in BY_FILES.items():
        values = (countries, st.sampled_from([0, 3, 10, None]))[: len(spec.fields)]
        drawn = draw(
            st.lists(st.tuples(st.tuples(*values), sizes, st.sampled_from([0, 10]), deletes))
        )
        found[spec_id] = [
            File(f"{spec_id}/{place}", key, size, count, tuple(deleted))
            for place, (key, size, count, deleted) in enumerate(drawn)
        ]
    return found


OPTIONS = st.builds(
    RewriteOptions,
    target_file_size_bytes=st.just(TARGET),
    min_input_files=st.integers(1, 6),
    delete_file_threshold=st.sampled_from([None, None, 0, 1, 2]),
    delete_ratio_threshold=st.sampled_from([0.2, 0.3, 1.0]),
    max_file_group_size_bytes=st.sampled_from([1, 100, 150, 300, 10_000]),
    rewrite_job_order=st.sampled_from(JOB_ORDERS),
    rewrite_all=st.sampled_from([False, False, True]),
    max_files_to_rewrite=st.sampled_from([None, None, 1, 2, 7]),
)


def plan_of(files: Files, options: RewriteOptions) -> RewritePlan:
    entries = {spec_id: entries_of(BY_FILES[spec_id], each) for spec_id, each in files.items()}
    return RewriteDataFilesPlanner(SCHEMA, BY_FILES, entries, options).plan()


def is_heavy(file: File, options: RewriteOptions) -> bool:
    threshold = options.delete_file_threshold
    if threshold is not None and len(file.deletes) >= threshold:
        return True
    known = min(sum(deleted or 0 for deleted in file.deletes), file.rows)
    return bool(file.deletes and file.rows) and known / file.rows >= options.delete_ratio_threshold


def is_candidate(file: File, options: RewriteOptions) -> bool:
    if options.rewrite_all or is_heavy(file, options):
        return True
    return file.bytes < TARGET * 0.75 or file.bytes > TARGET * 1.8


def is_worth_it(files: Sequence[File], options: RewriteOptions) -> bool:
    size = sum(file.bytes for file in files)
    return (
        options.rewrite_all
        or (len(files) > 1 and len(files) >= options.min_input_files)
        or (len(files) > 1 and size > TARGET)
        or size > TARGET * 1.8
        or any(is_heavy(file, options) for file in files)
    )


def compute_groups(files: Files, options: RewriteOptions) -> Iterator[list[str]]:
    """The groups as a plain loop over the files finds them."""
    found: list[list[File]] = []
    by_key: dict[PartitionKey, list[File]] = {}
    for spec_id, each in files.items():
        for file in each:
            if is_candidate(file, options):
                by_key.setdefault(PartitionKey(spec_id, file.values), []).append(file)
    for key in sorted(by_key, key=PartitionKey.sort_key):
        bins: list[list[File]] = []
        for file in sorted(by_key[key], key=lambda file: file.path):
            filled = sum(each.bytes for each in bins[-1]) if bins else 0
            if not bins or filled + file.bytes > options.max_file_group_size_bytes:
                bins.append([])
            bins[-1].append(file)
        found += bins
    yield from _in_order(found, options)


def _in_order(found: list[list[File]], options: RewriteOptions) -> Iterator[list[str]]:
    kept = [files for files in found if is_worth_it(files, options)]
    by, _, direction = options.rewrite_job_order.partition("-")
    sign = -1 if direction == "desc" else 1
    if by == "bytes":
        kept.sort(key=lambda files: sign * sum(file.bytes for file in files))
    elif by == "files":
        kept.sort(key=lambda files: sign * len(files))
    rest = len(kept) * 1000 if (most := options.max_files_to_rewrite) is None else most
    for files in kept:
        cut = files[:rest]
        rest -= len(cut)
        if len(cut) > 1 or cut == files or (cut and is_worth_it(cut, options)):
            yield [file.path for file in cut]


@given(files_of(), OPTIONS)
def test_groups_are_those_of_a_loop_over_the_files(files: Files, options: RewriteOptions) -> None:
    plan = plan_of(files, options)
    found = [[file.path for file in group.files] for group in plan.groups]
    event(f"groups: {min(len(found), 5)}")
    assert found == list(compute_groups(files, options))


@given(files_of(), OPTIONS)
def test_groups_have_one_key_and_a_bounded_size(files: Files, options: RewriteOptions) -> None:
    values = {file.path: (spec_id, file.values) for spec_id, each in files.items() for file in each}
    plan = plan_of(files, options)
    for found in plan.groups:
        assert {values[file.path] for file in found.files} == {
            (found.key.spec_id, found.key.values)
        }
        assert found.bytes == sum(file.bytes for file in found.files)
        assert found.bytes <= options.max_file_group_size_bytes or len(found.files) == 1
    ids = [found.id for found in plan.groups]
    assert len(set(ids)) == len(ids)
    by_id = [found.key.sort_key() for found in sorted(plan.groups, key=lambda each: each.id)]
    assert by_id == sorted(by_id)


@given(files_of(), OPTIONS)
def test_every_candidate_is_in_one_group_or_left_out_for_a_reason(
    files: Files, options: RewriteOptions
) -> None:
    candidates = [
        file.path for each in files.values() for file in each if is_candidate(file, options)
    ]
    plan = plan_of(files, options)
    taken = [file.path for found in plan.groups for file in found.files]
    left = [file.path for each in plan.left_out for file in each.files]
    assert Counter(taken + left) == Counter(candidates)
    assert all(each.reason and each.files for each in plan.left_out)
    assert plan.candidate_files == len(candidates)
    assert plan.rewritten_files == len(taken)
    if options.max_files_to_rewrite is not None:
        assert len(taken) <= options.max_files_to_rewrite
    deletes = {
        file.path: len(file.deletes) for each in files.values() for file in each if file.deletes
    }
    for found in plan.groups:
        expected = sum(deletes.get(file.path, 0) for file in found.files)
        assert len(found.delete_files) == expected


@given(files_of(), OPTIONS, st.randoms(use_true_random=False))
def test_the_same_files_in_any_order_give_the_same_plan(
    files: Files, options: RewriteOptions, random: Any
) -> None:
    shuffled = {spec_id: random.sample(each, len(each)) for spec_id, each in files.items()}
    turned = dict(random.sample(list(shuffled.items()), len(shuffled)))
    plan, again = plan_of(files, options), plan_of(turned, options)
    assert json.dumps(plan.to_dict()) == json.dumps(again.to_dict())
    assert str(plan) == str(again)


# --- rows in files, with a filter -----------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Stored:
    """Rows under several specs: which file each row is in, and the files as entries."""

    data: Rows
    specs: Mapping[int, PartitionSpec]
    entries: Mapping[int, pa.Table]
    files: list[str]
    keys: Mapping[str, PartitionKey]


@st.composite
def stored_rows(draw: st.DrawFn) -> Stored:
    """Rows, each written under one of up to four specs, to one of two files of its partition."""
    data = draw(rows())
    count = data.table.num_rows
    drawn = [draw(specs(data)) for _ in range(draw(st.integers(1, 3)))]
    by_id = {n: dataclasses.replace(spec, id=n) for n, spec in enumerate(drawn, start=1)}
    if draw(st.booleans()):
        by_id[len(by_id) + 1] = PartitionSpec(len(by_id) + 1, ())
    under = draw(st.lists(st.sampled_from(sorted(by_id)), min_size=count, max_size=count))
    second = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    paths = [""] * count
    entries: dict[int, pa.Table] = {}
    keys: dict[str, PartitionKey] = {}
    for spec_id, spec in by_id.items():
        places = np.flatnonzero(np.array(under, dtype=np.int64) == spec_id)
        mine = data.table.take(pa.array(places))
        found = group_rows(spec.compute_partition_values(mine, data.schema), len(places))
        first_rows: dict[str, int] = {}
        for row, (place, code) in enumerate(zip(places.tolist(), found.codes, strict=True)):
            paths[place] = f"{spec_id}/{code}/{second[place]}"
            first_rows.setdefault(paths[place], row)
        chosen = pa.array(list(first_rows.values()), pa.int64())
        values = spec.compute_partition_values(mine.take(chosen), data.schema)
        entries[spec_id] = file_entries(
            values if spec.fields else None,
            pa.array(list(first_rows), pa.string()),
            bytes=[1] * len(first_rows),
            rows=[1] * len(first_rows),
        )
        if spec.fields:
            distinct = found.keys.add_column(0, "", pa.array([spec_id] * found.count, pa.int32()))
            for code, key in enumerate(read_keys(distinct)):
                keys |= {f"{spec_id}/{code}/{each}": key for each in (True, False)}
    return Stored(data, by_id, entries, paths, keys)


def choose_files(
    given_rows: Stored, where: str, specs: Mapping[int, PartitionSpec] | None = None, **options: Any
) -> tuple[set[str], RewritePlan]:
    everything = RewriteOptions(partition_filter=where, rewrite_all=True, **options)
    plan = RewriteDataFilesPlanner(
        given_rows.data.schema, specs or given_rows.specs, given_rows.entries, everything
    ).plan()
    return {file.path for found in plan.groups for file in found.files}, plan


@given(st.data())
def test_files_with_matching_rows_are_chosen(data: st.DataObject) -> None:
    """The filter is inclusive under every spec: a file with a matching row is never left alone."""
    given_rows = data.draw(stored_rows())
    where = data.draw(predicates(given_rows.data))
    matches = find_matches(given_rows.data.table, where)
    assume(matches is not None)
    found, plan = choose_files(given_rows, where)
    needed = {path for path, hit in zip(given_rows.files, matches.to_pylist(), strict=True) if hit}
    event(f"filters: {len(found) < len(set(given_rows.files))}")
    assert needed <= found, (where, str(plan))
    assert plan.stats == FilterStats()
    for spec_id, spec in given_rows.specs.items():
        if not spec.fields:
            unpartitioned = set(given_rows.entries[spec_id].column(".path").to_pylist())
            assert unpartitioned <= found


@given(st.data())
@settings(max_examples=500 if SOAK else 75)
def test_fail_open_never_excludes(data: st.DataObject) -> None:
    """Only files whose partitions cannot be projected or evaluated are also chosen."""
    given_rows = data.draw(stored_rows())
    where = data.draw(predicates(given_rows.data))
    without, _ = choose_files(given_rows, where)
    partitioned = [spec_id for spec_id, spec in given_rows.specs.items() if spec.fields]
    broken = data.draw(st.sampled_from([None, *partitioned]))
    files = sorted(set(given_rows.files))
    poisoned = data.draw(st.sets(st.sampled_from(files))) if files else set()
    poison = {given_rows.keys[path] for path in poisoned if path in given_rows.keys}
    by_id = dict(given_rows.specs)
    if broken is not None:
        by_id[broken] = with_fault(by_id[broken], Unprojectable())

    def failing(
        projected: Predicate, spec: PartitionSpec, values: pa.Table, partitions: int
    ) -> Any:
        here = values.add_column(0, "", pa.array([spec.id] * partitions, pa.int32()))
        if {repr(key) for key in read_keys(here)} & {repr(key) for key in poison}:
            raise ArithmeticError("poison")
        return find_possible_partitions(projected, spec, values, partitions)

    with patch.object(rewrite_filter, "find_possible_partitions", failing):
        found, plan = choose_files(given_rows, where, by_id)
        errors = {repr(key) for key in poison if key.spec_id != broken or not is_broken(plan)}
        open_files = {
            path
            for path, key in given_rows.keys.items()
            if path in files
            and (repr(key) in errors or (is_broken(plan) and key.spec_id == broken))
        }
        turned = {spec_id: each[::-1] for spec_id, each in given_rows.entries.items()}
        _, again = choose_files(dataclasses.replace(given_rows, entries=turned), where, by_id)
        assert json.dumps(again.to_dict()) == json.dumps(plan.to_dict())
        assert without <= found
        assert found == choose_without_expression(given_rows, where, broken, plan) | open_files
        assert plan.stats.eval_errors == len(errors)
        assert plan.stats.fail_open_files == len(open_files)
        assert plan.stats.fail_open_partitions == len(
            {repr(given_rows.keys[path]) for path in open_files}
        )
        event(f"open: {bool(open_files)}")
        if open_files:
            with pytest.raises(InvalidPredicate, match="Without strict=True"):
                choose_files(given_rows, where, by_id, strict=True)
        else:
            assert choose_files(given_rows, where, by_id, strict=True)[0] == found


def choose_without_expression(
    given_rows: Stored, where: str, broken: int | None, plan: RewritePlan
) -> set[str]:
    """The files chosen if the field with the fault only keeps its expression to itself.

    A condition on the expression of a field, such as `murmur3(x) % 4 = 0`, is a condition on its
    values. The fault hides the expression, so that the condition says nothing of the field.
    """
    by_id = dict(given_rows.specs)
    if broken is not None and not is_broken(plan):
        by_id[broken] = with_fault(by_id[broken], Renamed())
    with patch.object(rewrite_filter, "find_possible_partitions", find_possible_partitions):
        return choose_files(given_rows, where, by_id)[0]


def is_broken(plan: RewritePlan) -> bool:
    """Return whether the filter mentions the field with the fault."""
    return plan.stats.unevaluable_specs == 1
