"""Partition keys, and a filter over several specs that keeps what it cannot decide."""

from __future__ import annotations

import math
import pickle
import random
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from phalanx.errors import InvalidPredicate, UnknownSpec
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.evolution import build_next_spec
from phalanx.model.specs.partition_by import identity
from phalanx.model.sql import engine
from phalanx.planning.rewrite import FilterStats, MultiSpecPartitionFilter, PartitionKey
from phalanx.planning.rewrites import filter as rewrite_filter
from unit.rewrite_tables import (
    SCHEMA,
    Unevaluable,
    Unprojectable,
    build_specs,
    partitions_of,
    with_fault,
)

BY_COUNTRY, BY_YEAR, BY_NOTHING = 1, 2, 3
SPECS = build_specs("country", "year(ts)", [])
WHERE = "country = 'DE' AND ts >= '2024-01-01'"


def key(spec_id: int, *values: Any) -> PartitionKey:
    return PartitionKey.of_entry(spec_id, SPECS[spec_id], values)


# --- keys -----------------------------------------------------------------------------------------


def test_partition_key_from_partitioned_spec() -> None:
    found = key(BY_COUNTRY, "DE")
    assert (found.spec_id, found.partition) == (1, ("DE",))
    assert key(BY_COUNTRY, None).partition == (None,)


def test_partition_key_from_unpartitioned_spec() -> None:
    """An entry's own spec decides, whatever values it carries and whatever spec is newest."""
    assert key(BY_NOTHING).partition is None
    assert key(BY_NOTHING, "DE") == key(BY_NOTHING)


def test_partition_key_hash_equality() -> None:
    assert hash(key(BY_COUNTRY, "DE")) == hash(key(BY_COUNTRY, "DE"))
    assert len({key(BY_COUNTRY, "DE"), key(BY_COUNTRY, "DE"), key(BY_COUNTRY, "US")}) == 2
    assert PartitionKey(1, (2024,)) != PartitionKey(2, (2024,))
    assert key(BY_NOTHING) != PartitionKey(1, ())


@pytest.mark.parametrize(
    "values",
    [
        [-7, 0, 9, 10, None],
        [False, True, None],
        ["", "10", "9", "a", "ä", None],
        [-math.inf, -1.5, 0.0, 2.0, 10.0, math.inf, math.nan, None],
        [Decimal("-1.50"), Decimal("9"), Decimal("10"), None],
        [b"", b"\x09", b"\xff", None],
        [date(1969, 12, 31), date(2024, 1, 1), None],
        # Moments that have no day in Python's calendar are whole numbers.
        [-(2**62), datetime(1, 1, 1), datetime(2024, 1, 1), 2**62, None],
    ],
    ids=lambda values: type(values[1]).__name__,
)
def test_partition_key_sort_key_stable(values: list[Any]) -> None:
    keys = [PartitionKey(spec_id, (value, 1)) for spec_id in (1, 2, 10) for value in values]
    shuffled = keys[:]
    random.Random(7).shuffle(shuffled)
    assert repr(sorted(shuffled, key=PartitionKey.sort_key)) == repr(keys)
    assert [each.sort_key() for each in keys] == [each.sort_key() for each in round_trip(keys)]


def round_trip(keys: list[PartitionKey]) -> list[PartitionKey]:
    return list(pickle.loads(pickle.dumps(keys)))


# --- what the filter keeps ------------------------------------------------------------------------


def test_multi_spec_single_spec_table() -> None:
    found = MultiSpecPartitionFilter(WHERE, {1: SPECS[BY_COUNTRY]}, SCHEMA)
    kept = [value for value in ("DE", "US", None) if found.matches(key(BY_COUNTRY, value))]
    assert kept == ["DE"]
    assert found.stats == FilterStats()


def test_multi_spec_evolved_table() -> None:
    found = MultiSpecPartitionFilter(WHERE, SPECS, SCHEMA)
    assert found.matches(key(BY_COUNTRY, "DE"))
    assert not found.matches(key(BY_COUNTRY, "US"))
    assert found.matches(key(BY_YEAR, 2024))
    assert not found.matches(key(BY_YEAR, 2023))
    assert found.matches(key(BY_NOTHING))
    assert found.stats == FilterStats()


def test_multi_spec_unpartitioned_is_kept_and_is_no_fail_open() -> None:
    """Under a spec without fields nothing is ever projected, so nothing can fail."""
    specs = {**SPECS, BY_COUNTRY: with_fault(SPECS[BY_COUNTRY], Unprojectable())}
    for where in (WHERE, "false"):
        found = MultiSpecPartitionFilter(where, specs, SCHEMA)
        assert found.matches(key(BY_NOTHING))
        assert not found.is_fail_open(key(BY_NOTHING))
        assert found.stats.fail_open_partitions == 0


def test_multi_spec_unevaluable_spec_fail_open() -> None:
    specs = {**SPECS, BY_COUNTRY: with_fault(SPECS[BY_COUNTRY], Unprojectable())}
    found = MultiSpecPartitionFilter(WHERE, specs, SCHEMA)
    for value in ("DE", "US", None):
        assert found.matches(key(BY_COUNTRY, value))
        assert found.is_fail_open(key(BY_COUNTRY, value))
    assert not found.matches(key(BY_YEAR, 2023))
    assert not found.is_fail_open(key(BY_YEAR, 2024))
    (told,) = found.diagnostics
    assert (told.spec_id, told.partitions) == (BY_COUNTRY, 3)
    assert told.cause == "the transform is not known here"


def test_multi_spec_eval_error_fail_open() -> None:
    specs = {**SPECS, BY_COUNTRY: with_fault(SPECS[BY_COUNTRY], Unevaluable())}
    found = MultiSpecPartitionFilter("country > 'a'", specs, SCHEMA)
    values = partitions_of(specs[BY_COUNTRY], [("7",), ("x",), ("3",), ("y",), (None,)])
    verdicts = found.decide(BY_COUNTRY, values, 5)
    assert verdicts.kept.tolist() == [True, True, False, True, False]
    assert verdicts.fail_open.tolist() == [False, True, False, True, False]
    assert [(told.spec_id, told.partitions) for told in found.diagnostics] == [(1, 1), (1, 1)]
    assert "'x'" in found.diagnostics[0].cause


def test_multi_spec_memoization(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key is evaluated once, however often and with which others it is asked for."""
    evaluated: list[Any] = []
    evaluate = engine.evaluate_sqls

    def counting(sqls: list[str], columns: Any, rows: int) -> list[pa.Array]:
        evaluated.extend(columns["partition_field_country"].to_pylist())
        return evaluate(sqls, columns, rows)

    found = MultiSpecPartitionFilter(WHERE, SPECS, SCHEMA)
    monkeypatch.setattr(engine, "evaluate_sqls", counting)
    values = partitions_of(SPECS[BY_COUNTRY], [("DE",), ("US",), ("DE",), (None,), ("US",)])
    first = found.decide(BY_COUNTRY, values, 5)
    assert sorted(evaluated, key=str) == ["DE", None, "US"]
    assert found.decide(BY_COUNTRY, values, 5).kept.tolist() == first.kept.tolist()
    assert found.matches(key(BY_COUNTRY, "DE"))
    found.decide(BY_COUNTRY, partitions_of(SPECS[BY_COUNTRY], [("US",), ("FR",)]), 2)
    assert sorted(evaluated, key=str) == ["DE", "FR", None, "US"]


def test_multi_spec_binds_once_and_projects_once_for_each_spec(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[str] = []
    for name in ("bind_predicate", "project_inclusive"):
        original = getattr(rewrite_filter, name)

        def counting(*args: Any, name: str = name, original: Any = original, **kw: Any) -> Any:
            done.append(name)
            return original(*args, **kw)

        monkeypatch.setattr(rewrite_filter, name, counting)
    found = MultiSpecPartitionFilter(WHERE, SPECS, SCHEMA)
    for value in ("DE", "US", "FR"):
        found.matches(key(BY_COUNTRY, value))
    assert done == ["bind_predicate", "project_inclusive", "project_inclusive"]


def test_multi_spec_stats_counting() -> None:
    specs = {
        1: with_fault(SPECS[BY_COUNTRY], Unevaluable()),
        2: with_fault(SPECS[BY_COUNTRY], Unprojectable()),
        3: SPECS[BY_NOTHING],
        4: SPECS[BY_COUNTRY],
    }
    found = MultiSpecPartitionFilter("country > 'a'", specs, SCHEMA)
    assert found.stats == FilterStats(unevaluable_specs=1)
    values = partitions_of(SPECS[BY_COUNTRY], [("x",), ("x",), ("7",), ("y",), ("z",)])
    for spec_id in (1, 2, 4, 1, 2, 4):
        found.decide(spec_id, values, 5)
    found.matches(PartitionKey(3, ()))
    found.matches(PartitionKey(1, ("x",)))
    # Under the first spec 'x', 'y' and 'z' fail; under the second all four keys are undecided.
    assert found.stats == FilterStats(
        unevaluable_specs=1, eval_errors=3, fail_open_partitions=7, fail_open_files=0
    )


def test_multi_spec_unknown_spec_hard_error() -> None:
    found = MultiSpecPartitionFilter(WHERE, SPECS, SCHEMA)
    with pytest.raises(UnknownSpec, match=r"spec id 9, which .* Its specs are 1, 2, 3"):
        found.matches(PartitionKey(9, ("DE",)))
    with pytest.raises(UnknownSpec):
        found.decide(9, pa.table({}), 1)


@pytest.mark.parametrize("where", ["nation = 'DE'", "country = 5 +", "ts = 'yesterday'", "id"])
def test_a_filter_that_does_not_bind_is_refused(where: str) -> None:
    with pytest.raises(InvalidPredicate):
        MultiSpecPartitionFilter(where, SPECS, SCHEMA)


def test_names_match_without_case_unless_it_matters() -> None:
    where = "COUNTRY = 'DE'"
    assert MultiSpecPartitionFilter(where, SPECS, SCHEMA).matches(key(BY_COUNTRY, "DE"))
    with pytest.raises(InvalidPredicate, match=r"No column 'COUNTRY', in this letter case.*'coun"):
        MultiSpecPartitionFilter(where, SPECS, SCHEMA, case_sensitive=True)
    exact = MultiSpecPartitionFilter(WHERE, SPECS, SCHEMA, case_sensitive=True)
    assert not exact.matches(key(BY_COUNTRY, "US"))


def test_case_matters_inside_a_struct_too() -> None:
    schema = Schema.of(pa.schema([("a", pa.struct([("b", pa.int64())]))]))
    specs = {1: build_next_spec([identity("a.b", field_id="b")], schema, {})}
    MultiSpecPartitionFilter("a.b = 1", specs, schema, case_sensitive=True)
    MultiSpecPartitionFilter("a.B = 1", specs, schema)
    with pytest.raises(InvalidPredicate, match=r"'a\.B'.* Did you mean 'a\.b'"):
        MultiSpecPartitionFilter("a.B = 1", specs, schema, case_sensitive=True)


# --- reports of failures --------------------------------------------------------------------------


def test_causes_are_reported_once_and_in_bounds() -> None:
    specs = {1: with_fault(SPECS[BY_COUNTRY], Unevaluable())}
    found = MultiSpecPartitionFilter("country > 'a'", specs, SCHEMA)
    names = [(f"x{place}",) for place in range(50)]
    found.decide(1, partitions_of(specs[1], names), 50)
    assert len(found.diagnostics) == rewrite_filter.MAX_DIAGNOSTICS == 20
    assert found.more_diagnostics == 30
    assert found.stats.eval_errors == 50


def test_one_cause_of_many_failures_is_one_diagnostic(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> None:
        raise ArithmeticError("division by zero")

    monkeypatch.setattr(rewrite_filter, "find_possible_partitions", failing)
    found = MultiSpecPartitionFilter(WHERE, SPECS, SCHEMA)
    found.decide(1, partitions_of(SPECS[1], [(f"x{place}",) for place in range(50)]), 50)
    assert found.diagnostics == (rewrite_filter.Diagnostic(1, "division by zero", 50),)


def test_very_many_failures_end_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluations = 0

    def failing(*_: Any) -> None:
        nonlocal evaluations
        evaluations += 1
        raise ArithmeticError("division by zero")

    monkeypatch.setattr(rewrite_filter, "find_possible_partitions", failing)
    found = MultiSpecPartitionFilter(WHERE, SPECS, SCHEMA)
    values = partitions_of(SPECS[1], [(f"x{place}",) for place in range(100_000)])
    assert found.decide(1, values, 100_000).kept.all()
    assert found.stats.eval_errors == 100_000
    assert evaluations < 5_000


def test_what_failed_does_not_depend_on_the_order_of_keys() -> None:
    specs = {1: with_fault(SPECS[BY_COUNTRY], Unevaluable())}
    names = [(f"x{place}",) for place in range(30)] + [(str(place),) for place in range(10)]
    told = []
    for seed in (1, 2):
        random.Random(seed).shuffle(names)
        found = MultiSpecPartitionFilter("country > 'a'", specs, SCHEMA)
        found.decide(1, partitions_of(specs[1], names), len(names))
        told.append((found.diagnostics, found.stats))
    assert told[0] == told[1]


def test_strictness_refuses_only_what_had_to_be_decided() -> None:
    specs = {**SPECS, BY_COUNTRY: with_fault(SPECS[BY_COUNTRY], Unprojectable())}
    found = MultiSpecPartitionFilter(WHERE, specs, SCHEMA)
    found.matches(key(BY_YEAR, 2024))
    found.check()
    found.matches(key(BY_COUNTRY, "DE"))
    with pytest.raises(
        InvalidPredicate, match=r"spec v1 \(1 of its partitions\): the transform is not known here"
    ):
        found.check()
