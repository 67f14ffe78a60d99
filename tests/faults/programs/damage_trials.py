"""Calls on damaged copies of a table, in processes of their own, and a verdict on each answer.

Lance may abort the process that reads a damaged file. A process runs one case after the other and
logs each result. An abort or a hang therefore costs only its own case.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

import phalanx
from processes import SERVER

SCHEMA = pa.schema(
    [
        ("k", pa.string()),
        ("n", pa.int64()),
        ("t", pa.string()),
        ("v", pa.list_(pa.float32(), 4)),
    ]
)
# A case takes some tenths of a second.
_LONGEST_CASE = 60
RIGHT, REFUSED, RAW, WRONG, ABORTED, HUNG = "right", "refused", "raw", "wrong", "aborted", "hung"


@dataclass(frozen=True, slots=True)
class Case:
    """One damage to one file: a flipped bit, a truncated file, or a deleted file."""

    path: str
    kind: str
    place: int = 0

    def apply(self, root: Path) -> None:
        """Damage the file in a copy of the table."""
        path = root / self.path
        if self.kind == "delete":
            path.unlink()
            return
        data = bytearray(path.read_bytes())
        if self.kind == "flip":
            data[self.place // 8] ^= 1 << (self.place % 8)
        else:
            del data[self.place :]
        path.write_bytes(data)


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of one call in one case."""

    case: Case
    call: str
    outcome: str
    message: str = ""

    def __str__(self) -> str:
        damage = f"{self.case.kind} {self.case.place} of {self.case.path}"
        return f"{self.call} after {damage}: {self.outcome} {self.message}"


def rows(keys: Sequence[str], first: int) -> pa.Table:
    """Build rows with these keys, numbered from `first`."""
    numbers = range(first, first + len(keys))
    return pa.table(
        [
            list(keys),
            list(numbers),
            [f"word{n % 7} lance" for n in numbers],
            [[float(n), 1.0, 2.0, 3.0] for n in numbers],
        ],
        schema=SCHEMA,
    )


def build(uri: Path, **options: Any) -> None:
    """Create a small table with every kind of file: deletions, updates, indexes and snapshots."""
    table = phalanx.create(uri, SCHEMA, ["k"], **options)
    table.append(rows(["a", "b"] * 8, 0))
    if options.get("layout") != "hive":
        table.create_index("n", "BTREE")
        table.create_index("t", "INVERTED")
    table.append(rows(["a", "b"] * 2, 100))
    table.delete("n IN (3, 4)")
    table.update("n = 7", {"n": "1007"})


def cases_of(root: Path, sample: int | None, seed: int = 0) -> list[Case]:
    """Return damages of every file: all bit flips, or a random sample of flips for each file."""
    chance = random.Random(seed)
    found = []
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        name, bits = str(path.relative_to(root)), 8 * path.stat().st_size
        places = range(bits) if sample is None else sorted(chance.sample(range(bits), sample))
        found += [Case(name, "flip", place) for place in places]
        cuts = {0, bits // 16, bits // 8 - 1}
        if sample is not None:
            cuts = {chance.choice(sorted(cuts))}
        found += [Case(name, "cut", cut) for cut in sorted(cuts)]
        found.append(Case(name, "delete"))
    return found


def try_cases(
    root: Path, cases: Sequence[Case], work: Path, calls: Sequence[str], processes: int = 2
) -> list[Answer]:
    """Run all calls in all cases, in several processes that may die, and return the answers."""
    work.mkdir(exist_ok=True)
    running = [
        _Runner(root, cases[number::processes], work / str(number), calls)
        for number in range(processes)
    ]
    answers: list[Answer] = []
    while running:
        time.sleep(0.02)
        running = [each for each in running if not each.is_over(answers)]
    return answers


class _Runner:
    """A process that runs some cases. If it dies, a new process runs the rest."""

    def __init__(self, root: Path, cases: Sequence[Case], work: Path, calls: Sequence[str]) -> None:
        self._root, self._left, self._work, self._calls = root, list(cases), work, calls
        self._number = 0
        self._start()

    def _start(self) -> None:
        self._number += 1
        self._log = self._work.with_suffix(f".{self._number}.log")
        self._seen, self._since = -1, time.monotonic()
        self._process = SERVER.Process(
            target=run, args=(self._root, self._left, self._work, self._log, self._calls)
        )
        self._process.start()

    def is_over(self, answers: list[Answer]) -> bool:
        """Return whether all cases are done. Add the answers of a process that has ended."""
        size = self._log.stat().st_size if self._log.exists() else -1
        if size != self._seen:
            self._seen, self._since = size, time.monotonic()
        hung = time.monotonic() - self._since > _LONGEST_CASE
        if self._process.is_alive() and not hung:
            return False
        self._process.kill()
        self._process.join()
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        said = [json.loads(line) for line in lines]
        begun = [each for each in said if "begin" in each]
        answers += [
            Answer(self._left[each["case"]], each["call"], each["outcome"], each["message"])
            for each in said
            if "outcome" in each
        ]
        if not hung and self._process.exitcode == 0:
            return True
        assert begun, f"the process ended with {self._process.exitcode} before its first case"
        last = begun[-1]
        code = HUNG if hung else ABORTED
        answers.append(
            Answer(self._left[last["case"]], last["begin"], code, str(self._process.exitcode))
        )
        self._left = self._left[last["case"] + 1 :]
        if not self._left:
            return True
        self._start()
        return False


def run(root: Path, cases: Sequence[Case], work: Path, log: Path, calls: Sequence[str]) -> None:
    """Run the cases in this process. Log each call before it begins and after it ends."""
    silence = os.open(os.devnull, os.O_WRONLY)
    # A panic prints a trace, and there are thousands of them.
    os.dup2(silence, 2)
    wanted = json.loads((root.parent / "expected.json").read_text())
    with log.open("a", buffering=1) as said:
        for number, case in enumerate(cases):
            copy = work.with_suffix(".copy")
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(root, copy)
            case.apply(copy)
            for call in calls:
                if call in CHANGING:
                    copy = work.with_suffix(f".{CHANGING.index(call)}.copy")
                    shutil.rmtree(copy, ignore_errors=True)
                    shutil.copytree(root, copy)
                    case.apply(copy)
                said.write(json.dumps({"case": number, "begin": call}) + "\n")
                outcome, message = classify_outcome(CALLS[call], copy, wanted.get(call))
                facts = {"case": number, "call": call, "outcome": outcome, "message": message}
                said.write(json.dumps(facts) + "\n")


def classify_outcome(call: Callable[[Path], Any], root: Path, wanted: Any) -> tuple[str, str]:
    """Return the outcome of a call, and a message if it is not right."""
    try:
        found = call(root)
    except phalanx.PhalanxError as error:
        return REFUSED, f"{type(error).__name__}: {error}"
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:
        return RAW, f"{type(error).__module__}.{type(error).__name__}: {error}"[:2000]
    if through_json(found) == wanted:
        return RIGHT, ""
    return WRONG, f"{found}"[:300]


def through_json(value: Any) -> Any:
    """Return a value as it is after a round trip through JSON."""
    return json.loads(json.dumps(value, default=str))


def expect(root: Path, calls: Sequence[str]) -> None:
    """Store next to the table what the calls return on the undamaged table."""
    found = {}
    for name in calls:
        copy = root.with_name("expected")
        shutil.copytree(root, copy)
        found[name] = through_json(CALLS[name](copy))
        shutil.rmtree(copy)
    (root.parent / "expected.json").write_text(json.dumps(found))


# ── calls ────────────────────────────────────────────────────────────────────────────────────


def _sort(table: pa.Table) -> list[Any]:
    return sorted(map(json.dumps, table.to_pylist()))


def _scan(root: Path) -> Any:
    return _sort(phalanx.open(root).scan().to_arrow())


def _stream(root: Path) -> Any:
    batches = phalanx.open(root).scan("n >= 2", ["n", "k"]).to_batches()
    return _sort(pa.Table.from_batches(list(batches)))


def _reader(root: Path) -> Any:
    return _sort(phalanx.open(root).scan("t LIKE '%1%'", limit=5).to_reader().read_all())


def _count(root: Path) -> Any:
    table = phalanx.open(root)
    return [table.scan().count_rows(), table.scan("n < 5").count_rows()]


def _listings(root: Path) -> Any:
    table = phalanx.open(root)
    return [
        table.plan("k = 'a'").total_partitions,
        table.partitions().select(["k", "rows"]).to_pylist(),
        table.files().select(["rows", "deleted_rows"]).to_pylist(),
        table.snapshots().select(["id", "operation"]).to_pylist(),
        table.newest_snapshot,
    ]


def _past(root: Path) -> Any:
    table = phalanx.open(root)
    if table.mode != "strong":
        return None
    ids = table.snapshots().column("id").to_pylist()
    return [
        len(ids),
        _sort(table.at(ids[1]).scan().to_arrow()),
        table.diff(ids[1], ids[-1]).select(["k", "rows_added", "rows_removed"]).to_pylist(),
        sorted(
            (row["_change"], row["_snapshot"], row["n"])
            for row in table.changes(0).to_arrow().to_pylist()
        ),
    ]


def _search(root: Path) -> Any:
    table = phalanx.open(root)
    if table.layout == "hive":
        return None
    near = table.search("v", [1.0, 1.0, 2.0, 3.0], k=3, columns=["n"])
    words = table.search("t", "word1", k=3, columns=["n"])
    return [near.column("n").to_pylist(), words.column("n").to_pylist()]


def _health(root: Path) -> Any:
    table = phalanx.open(root)
    if table.layout == "hive":
        return None
    return [
        len(table.health()),
        len(table.plan_rewrite().groups),
        table.vacuum(timedelta(hours=2), dry_run=True).files.num_rows,
    ]


def _append(root: Path) -> Any:
    table = phalanx.open(root)
    table.append(rows(["a", "z"], 5000))
    return _sort(table.scan().to_arrow())


def _change(root: Path) -> Any:
    table = phalanx.open(root)
    table.update("n = 100", {"t": "'changed'"})
    table.delete("n = 101")
    table.merge(rows(["a", "b"], 102), "n")
    return _sort(table.scan().to_arrow())


def _rewrite(root: Path) -> Any:
    table = phalanx.open(root)
    table.rewrite(rewrite_all=True)
    return _sort(table.scan().to_arrow())


def _verify(root: Path) -> Any:
    return [each.to_dict() for each in phalanx.open(root).verify()]


def _deep_verify(root: Path) -> Any:
    return [each.to_dict() for each in phalanx.open(root).verify(deep=True)]


# Calls that change the table get a copy of their own.
CHANGING = ("append", "change", "rewrite")
CALLS: dict[str, Callable[[Path], Any]] = {
    "verify": _verify,
    "deep verify": _deep_verify,
    "scan": _scan,
    "stream": _stream,
    "reader": _reader,
    "count": _count,
    "listings": _listings,
    "past": _past,
    "search": _search,
    "health": _health,
    "append": _append,
    "change": _change,
    "rewrite": _rewrite,
}
