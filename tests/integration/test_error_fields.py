"""The fields of errors of writes: partitions, snapshots and leaves."""

import pickle
from pathlib import Path
from typing import Any
from unittest import mock

import lance
import pyarrow as pa
import pytest

import phalanx
from phalanx import PartitionKey
from phalanx.storage.commit import head
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.retries import UncertainCommit
from phalanx.storage.leaf import leaf
from tables import SCHEMA, rows

A, B, C = (PartitionKey(1, (name,)) for name in "abc")


def create(path: Path, mode: Any, *given: tuple[str, int]) -> phalanx.Table:
    table = phalanx.create(path / "t", SCHEMA, ["k"], transaction=mode)
    table.append(rows(*given))
    return table


def send(error: BaseException) -> Any:
    """The error as another process gets it."""
    found = pickle.loads(pickle.dumps(error))
    assert (type(found), vars(found)) == (type(error), vars(error))
    return found


# ── CommitConflict ───────────────────────────────────────────────────────────────────────────


def test_a_conflict_has_the_partition_and_the_other_snapshot(tmp_path: Path) -> None:
    table = create(tmp_path, "strong", ("a", 1), ("b", 1))
    with pytest.raises(phalanx.CommitConflict) as caught, table.transaction() as txn:  # noqa: PT012
        txn.delete("n = 1")
        table.delete("k = 'a'")
    error = send(caught.value)
    assert (error.partitions, error.snapshot) == ((A,), 3)
    assert f"snapshot {error.snapshot} changed partition v1('a',)" in str(error)


def test_a_conflict_of_schemas_has_no_partition(tmp_path: Path) -> None:
    table = create(tmp_path, "strong", ("a", 1))
    with pytest.raises(phalanx.CommitConflict) as caught, table.transaction() as txn:  # noqa: PT012
        txn.delete("n = 1")
        table.add_column(pa.field("x", pa.int8()))
    assert send(caught.value).partitions == ()
    assert caught.value.snapshot == table.newest_snapshot


def test_a_lost_race_has_all_partitions(tmp_path: Path) -> None:
    table = create(tmp_path, "strong", ("a", 1))

    def lose(*_: Any) -> None:
        raise OSError("LanceError(IO): Retryable commit conflict for version 9")

    with (
        mock.patch.object(head, "replace_rows", lose),
        mock.patch.object(head, "retry_conflicts", lambda attempt, *_, **__: attempt()),
        pytest.raises(phalanx.CommitConflict, match="always first") as caught,
    ):
        table.append(rows(("a", 2), ("b", 2)))
    error = send(caught.value)
    assert (set(error.partitions), error.snapshot) == ({A, B}, 2)


def test_a_conflict_in_weak_mode_has_the_partition(tmp_path: Path) -> None:
    table = create(tmp_path, "weak", ("a", 1), ("b", 1))
    [place] = table.plan("k = 'b'").partitions
    with (
        failing(place.location, phalanx.CommitConflict("another writer")),
        pytest.raises(phalanx.CommitConflict, match="another writer") as caught,
    ):
        table.delete("k = 'b'")
    assert (send(caught.value).partitions, caught.value.snapshot) == ((B,), None)


# ── PartialWrite ─────────────────────────────────────────────────────────────────────────────


def failing(place: str, error: Exception) -> Any:
    """A leaf whose commits fail."""
    whole = leaf.apply_change

    def apply(location: Location, *arguments: Any, **options: Any) -> Any:
        if location.uri == place:
            raise error
        return whole(location, *arguments, **options)

    return mock.patch.object(leaf, "apply_change", apply)


def test_a_partial_write_has_what_was_written_and_what_not(tmp_path: Path) -> None:
    table = create(tmp_path, "weak", ("a", 1), ("b", 1))
    [place] = table.plan("k = 'b'").partitions
    data = rows(("a", 2), ("b", 2), ("c", 2))
    with (
        failing(place.location, OSError("full")),
        pytest.raises(phalanx.PartialWrite) as caught,
    ):
        table.append(data)
    error = send(caught.value)
    assert (set(error.written), error.not_written) == ({A, C}, (B,))
    assert (error.unknown, error.duplicated) == ((), ())
    # They say what to repeat.
    missing = {key.values for key in error.not_written}
    table.append(pa.Table.from_pylist([r for r in data.to_pylist() if (r["k"],) in missing]))
    assert sorted(table.scan().to_arrow()["n"].to_pylist()) == [1, 1, 2, 2, 2]


def test_rows_that_are_there_twice(tmp_path: Path) -> None:
    table = create(tmp_path, "weak", ("a", 1), ("b", 1))
    [place] = table.plan("k = 'a'").partitions
    with (
        failing(place.location, OSError("full")),
        pytest.raises(phalanx.PartialWrite) as caught,
    ):
        table.update("true", {"k": "'c'"})
    error = send(caught.value)
    assert (error.written, error.not_written, error.duplicated) == ((B,), (A,), (A,))


def test_a_change_of_the_mode_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = create(tmp_path, "weak", ("a", 1))
    other = phalanx.open(table.uri)
    whole = phalanx.table.write.incoming_rows.write_rows

    def slow(*arguments: Any) -> Any:
        other.set_mode("strong")
        return whole(*arguments)

    monkeypatch.setattr(phalanx.table.write.incoming_rows, "write_rows", slow)
    with pytest.raises(phalanx.PartialWrite, match="strong mode") as caught:
        table.append(rows(("a", 2)))
    error = send(caught.value)
    assert (error.written, error.not_written) == ((), (A,))


# ── UnknownOutcome, ForeignWrite ─────────────────────────────────────────────────────────────


def test_an_unknown_outcome_has_what_to_look_for(tmp_path: Path) -> None:
    table = create(tmp_path, "strong", ("a", 1))

    def lose_the_answer(*_: Any) -> None:
        raise UncertainCommit("no answer")

    with (
        mock.patch.object(head, "replace_rows", lose_the_answer),
        pytest.raises(phalanx.UnknownOutcome) as caught,
        table.transaction(marker="load 7") as txn,
    ):
        txn.append(rows(("a", 2), ("c", 2)))
    error = send(caught.value)
    assert (error.snapshot, error.markers, set(error.partitions)) == (3, ("load 7",), {A, C})
    # With its marker it can be repeated.
    assert not table.markers(*error.markers)
    with table.transaction(marker=error.markers[0]) as txn:
        txn.append(rows(("a", 2), ("c", 2)))
    assert table.markers() == {"load 7": error.snapshot}


def test_a_foreign_write_has_the_leaf(tmp_path: Path) -> None:
    table = create(tmp_path, "strong", ("a", 1), ("b", 1))
    [place] = table.plan("k = 'a'").partitions
    written = lance.write_dataset(rows(("a", 9)), place.location, mode="append")
    with pytest.raises(phalanx.ForeignWrite) as caught:
        table.append(rows(("a", 2)))
    error = send(caught.value)
    assert (error.partitions, error.locations) == ((A,), (place.location,))
    assert (error.version, error.snapshot) == (written.version, None)


def test_a_foreign_write_after_the_commit_has_the_snapshot(tmp_path: Path) -> None:
    table = create(tmp_path, "strong", ("a", 1))
    [place] = table.plan("k = 'a'").partitions
    with pytest.raises(phalanx.ForeignWrite) as caught, table.transaction() as txn:  # noqa: PT012
        txn.append(rows(("a", 2)))
        lance.write_dataset(rows(("a", 9)), place.location, mode="append")
    error = send(caught.value)
    assert error.snapshot == table.newest_snapshot == 3
    assert (error.partitions, error.locations) == ((A,), (place.location,))
