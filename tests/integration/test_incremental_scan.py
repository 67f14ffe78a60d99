"""Incremental scans: the rows that snapshots add, with other concurrent changes of the table."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import phalanx
from phalanx.storage.lance.location import Location
from phalanx.storage.manifest.manifest import Manifest
from phalanx.table.history.incremental_scan import (
    NOTHING_READ,
    Limits,
    Position,
    Selection,
    find_new_rows,
    find_newest_position,
    find_next_position,
    find_position_before,
)
from tables import INT32_SCHEMA, int32_rows

EVERYTHING = Selection()


def manifest_of(table: phalanx.Table) -> Manifest:
    return Manifest.open(Location.of(table.uri))


def list_new_numbers(
    table: phalanx.Table, after: int, until: int | None = None, wanted: Selection = EVERYTHING
) -> list[int]:
    """Return the sorted numbers added between two snapshots."""
    manifest = manifest_of(table)
    last = find_newest_position(manifest) if until is None else Position(until)
    found = find_new_rows(manifest, Position(after), last, wanted)
    assert all(piece.rows >= 0 and piece.size > 0 for piece in found)
    batches = [batch for piece in found for batch in piece.scan.read_batches()]
    return sorted(number for batch in batches for number in batch["n"].to_pylist())


@pytest.fixture
def table(tmp_path: Path) -> phalanx.Table:
    """Snapshot 2 adds 1 to 4, and snapshot 3 adds 5 and 6."""
    made = phalanx.create(tmp_path / "table", INT32_SCHEMA, ["k"], transaction="strong")
    made.append(int32_rows(("a", 1), ("a", 2), ("b", 3), (None, 4)))
    made.append(int32_rows(("a", 5), ("c", 6)))
    return made


def test_appends_and_overwrites_bring_rows(table: phalanx.Table) -> None:
    assert list_new_numbers(table, NOTHING_READ, 2) == [1, 2, 3, 4]
    assert list_new_numbers(table, NOTHING_READ) == list_new_numbers(table, 0) == [1, 2, 3, 4, 5, 6]
    assert list_new_numbers(table, 2) == [5, 6]
    table.overwrite(int32_rows(("a", 10), ("new", 11)), "n IN (1, 2, 3, 10, 11)")
    assert list_new_numbers(table, 3) == [10, 11]
    table.overwrite_partitions(int32_rows(("a", 20), (None, 21)))
    assert list_new_numbers(table, 4) == [20, 21]
    with table.transaction() as txn:
        txn.append(int32_rows(("c", 30), ("c", 31), ("d", 32)))
        txn.delete("n IN (6, 30)")
    assert list_new_numbers(table, 5) == [31, 32]
    assert list_new_numbers(table, 3) == [10, 11, 20, 21, 31, 32]


def test_deletes_schema_changes_and_rollbacks_bring_none(table: phalanx.Table) -> None:
    table.delete("n IN (1, 6)")
    table.promote_column("n", pa.int64())
    table.add_column(pa.field("more", pa.int8()))
    table.rename_column("n", "m")
    table.evolve([phalanx.truncate("k", 1)])
    table.rollback(3)
    table.rename_column("m", "n")
    table.drop_column("more")
    assert list_new_numbers(table, 3) == []
    table.append(int32_rows(("a", 7), ("z", 8)))
    assert list_new_numbers(table, 3) == [7, 8]
    # The rows of a snapshot are those of that time, in the current columns.
    assert list_new_numbers(table, 0) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert list_new_numbers(table, NOTHING_READ, 3) == [1, 2, 3, 4, 5, 6]


def test_rows_that_come_again_after_a_rollback(table: phalanx.Table) -> None:
    table.rollback(2)
    table.append(int32_rows(("a", 5), ("c", 9)))
    assert list_new_numbers(table, 3) == [5, 9]
    table.rollback(3)
    assert list_new_numbers(table, 5) == []


def test_the_result_does_not_depend_on_how_snapshots_are_batched(table: phalanx.Table) -> None:
    table.overwrite(int32_rows(("b", 10)), "n IN (3, 10)")
    table.delete("n = 5")
    table.append(int32_rows(("b", 11), ("a", 12)))
    table.rollback(4)
    table.append(int32_rows(("a", 13)))
    last = find_newest_position(manifest_of(table)).snapshot
    whole = list_new_numbers(table, 0)
    for cuts in itertools.chain.from_iterable(
        itertools.combinations(range(1, last), size) for size in range(3)
    ):
        steps = itertools.pairwise([0, *cuts, last])
        found = Counter(number for step in steps for number in list_new_numbers(table, *step))
        assert sorted(found.elements()) == whole


def test_writers_at_the_same_time(table: phalanx.Table) -> None:
    one, other = table.transaction(), phalanx.open(table.uri).transaction()
    one.append(int32_rows(("a", 40), ("new", 41)))
    other.append(int32_rows(("a", 50), ("new", 51)))
    other.delete("n = 1")
    one.__exit__(None, None, None)
    other.__exit__(None, None, None)
    assert list_new_numbers(table, 3, 4) == [40, 41]
    assert list_new_numbers(table, 4) == [50, 51]


def test_kept_foreign_writes_and_weak_times_bring_rows(table: phalanx.Table) -> None:
    [partition] = table.plan("k = 'a'").partitions
    lance.write_dataset(int32_rows(("a", 60)), partition.location, mode="append")
    table.keep_foreign_writes()
    assert list_new_numbers(table, 3) == [60]
    lance.dataset(partition.location).optimize.compact_files()
    lance.write_dataset(int32_rows(("a", 61)), partition.location, mode="append")
    table.keep_foreign_writes()
    assert list_new_numbers(table, 4) == [61]
    table.set_mode("weak")
    table.append(int32_rows(("a", 70)))
    table.set_mode("strong")
    first = table.snapshots()["id"].to_pylist()[0]
    assert list_new_numbers(table, first - 1) == [1, 2, 3, 4, 5, 6, 60, 61, 70]


def test_only_the_partitions_that_may_match_are_read(table: phalanx.Table) -> None:
    manifest, last = manifest_of(table), find_newest_position(manifest_of(table))
    for after, expected in ((0, [1, 2, 5]), (2, [5]), (NOTHING_READ, [1, 2, 5])):
        wanted = Selection("k = 'a'", ["n"])
        assert list_new_numbers(table, after, wanted=wanted) == expected
        pieces = find_new_rows(manifest, Position(after), last, wanted)
        [a] = table.plan("k = 'a'").partitions
        assert {piece.scan.location.uri for piece in pieces} == {a.location}
    assert list_new_numbers(table, 0, wanted=Selection("n > 2 AND k = 'a'")) == [5]


def test_limits_take_whole_snapshots_and_at_least_one(table: phalanx.Table) -> None:
    table.delete("n = 1")
    table.append(int32_rows(("a", 7)))
    manifest = manifest_of(table)
    newest = find_newest_position(manifest)
    times = dict(
        zip(*(table.snapshots()[name].to_pylist() for name in ("id", "time")), strict=True)
    )

    def take(after: int, wanted: Selection = EVERYTHING, **limits: int) -> int:
        found = find_next_position(manifest, Position(after), newest, Limits(**limits), wanted)
        assert found.time is not None
        assert datetime.fromisoformat(found.time) == times[found.snapshot]
        return found.snapshot

    assert take(0) == take(0, rows=100) == take(0, bytes=1 << 30) == take(0, snapshots=99) == 5
    assert [take(after, snapshots=1) for after in range(5)] == [1, 2, 3, 4, 5]
    assert take(0, rows=4) == 2
    assert take(0, rows=6) == take(2, rows=2) == 4
    assert take(1, rows=1) == take(1, bytes=1) == 2
    assert take(0, Selection("k = 'a'"), rows=3) == 4
    assert take(0, rows=6, snapshots=3) == 3
    # The whole table is read at once.
    assert take(NOTHING_READ, rows=1) == 5
    assert find_next_position(manifest, newest, newest, Limits(), EVERYTHING) == newest


def test_where_a_stream_starts(table: phalanx.Table) -> None:
    manifest = manifest_of(table)
    moments = table.snapshots()["time"].to_pylist()
    assert find_position_before(manifest, 2) == Position(1)
    assert find_position_before(manifest, 4) == Position(3)
    assert find_position_before(manifest, moments[1]) == Position(1)
    assert find_position_before(manifest, moments[1] + timedelta(microseconds=1)) == Position(2)
    assert find_position_before(manifest, datetime(2020, 1, 1)) == Position(0)
    with pytest.raises(
        phalanx.PhalanxError, match=r"from snapshot 9 .* expected one from 1 to 3, "
    ):
        find_position_before(manifest, 9)
    with pytest.raises(phalanx.PhalanxError, match=r"no snapshot since .* comes next: 4\."):
        find_position_before(manifest, datetime.now(UTC))


def test_what_vacuum_removed_is_reported(table: phalanx.Table) -> None:
    before = manifest_of(table)
    read = find_newest_position(before)
    table.append(int32_rows(("a", 7)))
    table.append(int32_rows(("a", 8)))
    time.sleep(0.01)
    middle = find_newest_position(manifest_of(table))
    table.vacuum(timedelta(0))
    table.append(int32_rows(("a", 9)))
    manifest = manifest_of(table)
    newest = find_newest_position(manifest)
    assert list_new_numbers(table, middle.snapshot) == [9]
    assert list_new_numbers(table, NOTHING_READ) == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    for after in (Position(0), read, Position(4)):
        message = r"oldest one left is 5\. .*starting_snapshot=6"
        with pytest.raises(phalanx.PhalanxError, match=message):
            find_next_position(manifest, after, newest, Limits(), EVERYTHING)
        with pytest.raises(phalanx.PhalanxError, match=message):
            find_new_rows(manifest, after, newest, EVERYTHING)
    with pytest.raises(phalanx.PhalanxError, match="oldest one left is 5"):
        find_new_rows(manifest, Position(NOTHING_READ), read, EVERYTHING)
    with pytest.raises(phalanx.PhalanxError, match="oldest one left is 5"):
        find_position_before(manifest, datetime(2020, 1, 1))


def test_a_gap_is_reported(table: phalanx.Table) -> None:
    table.append(int32_rows(("a", 7)))
    lance.dataset(f"{table.uri}/__manifest").delete("object_id = '__phalanx_snapshot$3'")
    with pytest.raises(phalanx.PhalanxError, match=r"added up to snapshot 3 are no longer known"):
        list_new_numbers(table, 1)
    assert list_new_numbers(table, 1, 2) == [1, 2, 3, 4]


def test_another_history_is_reported(table: phalanx.Table) -> None:
    read = find_newest_position(manifest_of(table))
    table.set_mode("weak")
    with pytest.raises(phalanx.PhalanxError, match=r"weak mode, .* set_mode\('strong'\)"):
        find_newest_position(manifest_of(table))
    table.append(int32_rows(("a", 7)))
    table.set_mode("strong")
    for number in range(5):
        manifest = manifest_of(table)
        with pytest.raises(phalanx.PhalanxError, match=r"(restarted|no longer known)"):
            find_next_position(manifest, read, find_newest_position(manifest), Limits(), EVERYTHING)
        table.append(int32_rows(("a", number)))


def test_rewrites_bring_nothing(table: phalanx.Table) -> None:
    for n in range(7, 12):
        table.append(int32_rows(("a", n)))
    before = table.newest_snapshot
    assert before is not None
    table.rewrite(min_input_files=2)
    assert list_new_numbers(table, before) == []
    table.append(int32_rows(("a", 12)))
    table.evolve([phalanx.bucket("n", 3)])
    table.rewrite(target_spec=2)
    table.append(int32_rows(("a", 13)))
    assert list_new_numbers(table, before) == [12, 13]
    assert list_new_numbers(table, 2) == [*range(5, 14)]
