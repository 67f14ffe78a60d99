"""An object store that fails: a change happens or not, and the caller learns which."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import phalanx
from faults.programs.failing_store import FailingStore, Failure, Request, serve_failing_s3
from integration.stores import Store
from phalanx.errors import StorageFailure, UnknownOutcome
from tables import SCHEMA, SOAK, rows

# Without retries, Lance reports every failure.
PATIENT: dict[str, str] = {}
IMPATIENT = {"client_max_retries": "0"}
Rows = list[tuple[str, int]]


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[FailingStore, Store]]:
    with serve_failing_s3() as found:
        yield found


class Writer:
    """Runs transactions on a failing store, and tracks the rows that the table must hold."""

    def __init__(self, server: tuple[FailingStore, Store], options: dict[str, str]) -> None:
        self.failing, store = server
        self.uri = store.fresh()
        self.clean = phalanx.create(
            self.uri, SCHEMA, ["k"], transaction="strong", storage_options=store.storage_options
        )
        self.clean.append(rows(("a", 0), ("b", 0)))
        self.options = {**(store.storage_options or {}), **options}
        self.expected = self.read()
        self.number = 0
        self.answers: list[str] = []

    def read(self) -> Rows:
        found = self.clean.scan().to_arrow().to_pylist()
        return sorted((row["k"], row["n"]) for row in found)

    def transact(self, rule: Callable[[Request], Failure | None], marker: str | None = None) -> str:
        """Run one transaction over three partitions. Return the outcome that its caller learns."""
        number = self.number
        after = [pair for pair in self.expected if pair[0] != "b"]
        after = sorted([*after, ("a", number), ("b", number), (f"new {number % 7}", number)])
        answer = "committed"
        with self.failing.fail_by(rule):
            try:
                table = phalanx.open(self.uri, storage_options=self.options)
                with table.transaction(marker=marker) as txn:
                    txn.append(rows(("a", number), (f"new {number % 7}", number)))
                    txn.overwrite(rows(("b", number)), "k = 'b'")
            except UnknownOutcome:
                answer = "unknown"
            except StorageFailure:
                answer = "failed"
        found = self.read()
        allowed = {
            "committed": [after],
            "failed": [self.expected],
            "unknown": [self.expected, after],
        }
        assert found in allowed[answer], (answer, self.failing.failed)
        self.expected = found
        self.answers.append(answer)
        return answer

    def check(self) -> None:
        """Check that a next transaction commits, and that the history is linear."""
        self.number += 1
        assert self.transact(lambda _: None) == "committed"
        ids = self.clean.snapshots()["id"].to_pylist()
        assert ids == list(range(1, len(ids) + 1))


def fail_every(n: int, failure: Failure) -> Callable[[Request], Failure | None]:
    """Return a rule that fails each n-th request."""
    passed = 0

    def rule(_: Request) -> Failure | None:
        nonlocal passed
        passed += 1
        return None if passed % n else failure

    return rule


@pytest.mark.parametrize(
    ("failure", "options"),
    [
        (failure, options)
        for place, failure in enumerate(Failure)
        for options in ((PATIENT, IMPATIENT) if SOAK else ((PATIENT, IMPATIENT)[place % 2],))
    ],
)
def test_every_nth_request_fails(
    server: tuple[FailingStore, Store], failure: Failure, options: dict[str, str]
) -> None:
    writer = Writer(server, options)
    steps = (5, 31, 67, 131) if SOAK else (53,)
    for n in steps:
        rule = fail_every(n, failure)
        for _ in range(6 if SOAK else 2):
            writer.number += 1
            writer.transact(rule)
        writer.check()


@pytest.mark.parametrize("failure", list(Failure) if SOAK else [Failure.LOST, Failure.CUT])
def test_each_request_fails_once(server: tuple[FailingStore, Store], failure: Failure) -> None:
    """Fail each request of a transaction in turn, and repeat the transaction with its marker."""
    writer = Writer(server, IMPATIENT)
    requests = 0

    def counting(_: Request) -> None:
        nonlocal requests
        requests += 1

    writer.transact(counting)
    for place in range(1, requests + 1, 3 if SOAK else 47):
        passed = 0

        def rule(_: Request, place: int = place) -> Failure | None:
            nonlocal passed
            passed += 1
            return failure if passed == place else None

        writer.number += 1
        marker = f"transaction {writer.number}"
        answer = writer.transact(rule, marker)
        before = writer.read()
        table = writer.clean
        with table.transaction(marker=marker) as txn:
            txn.append(rows(("a", writer.number), (f"new {writer.number % 7}", writer.number)))
            txn.overwrite(rows(("b", writer.number)), "k = 'b'")
        writer.expected = writer.read()
        assert writer.expected.count(("a", writer.number)) == 1
        if answer == "committed":
            assert writer.expected == before
    writer.check()


LOST_ANSWERS = [
    (failure, silent, options)
    for failure in (Failure.LOST, Failure.LOST_ERROR, Failure.CUT)
    for silent in (1, 3, 1000)
    for options in (PATIENT, IMPATIENT)
    # Retries against a store that never answers take minutes.
    if silent < 1000 or options is IMPATIENT
]


@pytest.mark.parametrize(
    ("failure", "silent", "options"), LOST_ANSWERS if SOAK else LOST_ANSWERS[1::4]
)
def test_the_answer_of_the_commit_is_lost(
    server: tuple[FailingStore, Store], failure: Failure, silent: int, options: dict[str, str]
) -> None:
    """The commit itself fails, and so do the next requests of Lance or Phalanx."""
    writer = Writer(server, options)
    writer.number += 1
    left = silent

    def rule(request: Request) -> Failure | None:
        nonlocal left
        if left == silent and not request.commits_manifest:
            return None
        left -= 1
        if left < 0:
            return None
        return failure if left == silent - 1 else Failure.CUT

    answer = writer.transact(rule, "once")
    assert answer == "unknown" or silent < 1000
    assert (("a", 1) in writer.expected) == (failure is not Failure.CUT)
    again = writer.clean.transaction(marker="once")
    with again:
        again.append(rows(("a", 1)))
    assert writer.read().count(("a", 1)) == 1
    writer.expected = writer.read()
    writer.check()
