"""A writer in strong mode ends at any named step: all of its change is there, or nothing."""

from __future__ import annotations

import functools
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import phalanx
from faults.programs.fault_injection import counted, failing_at, killed_at
from faults.programs.strong_changes import CHANGES, Change, make_template, prepared
from phalanx.storage.commit.history_rows import snapshots_in
from phalanx.storage.lance.fault_points import Step
from phalanx.storage.lance.location import forget_session

Rows = Counter[tuple[Any, ...]]
Contents = tuple[tuple[str, ...], Rows]
Leaves = dict[tuple[Any, ...], Rows]
SOAK = os.environ.get("PHALANX_PROFILE") == "soak"
ERRORS = [OSError, KeyboardInterrupt] if SOAK else [OSError]
CREATION = {Step.MANIFEST_CREATED}
CLASSES = (
    (Step.LEAF_CREATED, Step.FILES_WRITTEN, Step.DELETIONS_WRITTEN, Step.VERSION_STAGED),
    (Step.UPDATES_WRITTEN,),
    (Step.COMMITTING, Step.MANIFEST_WRITTEN, Step.COMMITTED),
    (Step.MAIN_RESTORED, Step.PUBLISHED),
    (
        Step.COLUMNS_CHANGED,
        Step.PROPERTIES_CHANGED,
        Step.LEAF_ALIGNED,
        Step.STRONG_ROWS_REMOVED,
        Step.FOREIGN_WRITE_DISCARDED,
    ),
    (Step.HORIZON_MOVED, Step.VERSIONS_DELETED, Step.FILES_DELETED),
)


def rows_of(table: pa.Table) -> Rows:
    return Counter(tuple(row.values()) for row in table.to_pylist())


def contents(table: phalanx.Table) -> Contents:
    found = table.scan().to_arrow()
    return tuple(found.column_names), rows_of(found)


def mains(table: phalanx.Table) -> Leaves:
    """What stock clients see in each leaf."""
    return {
        (each.key.spec_id, *each.key.values): rows_of(lance.dataset(each.location).to_table())
        for each in table.plan().partitions
    }


def assert_linear(table: phalanx.Table) -> list[int]:
    ids: list[int] = table.snapshots()["id"].to_pylist()
    assert ids == list(range(min(ids, default=1), max(ids, default=0) + 1))
    return ids


def history(table: phalanx.Table) -> dict[int, Contents]:
    return {number: contents(table.at(number)) for number in assert_linear(table)}


@dataclass(frozen=True)
class State:
    """A table as its readers see it: now, at every snapshot, and past Phalanx."""

    contents: Contents
    history: dict[int, Contents]
    mains: Leaves

    @classmethod
    def of(cls, table: phalanx.Table) -> State:
        return cls(contents(table), history(table), mains(table))


@dataclass(frozen=True)
class Whole:
    """A change that nothing cuts off: what was before, what is after, and its steps."""

    name: str
    change: Change
    old: State
    new: State
    mode: str
    steps: Counter[Step]
    # What mains showed at first.
    at_first: Leaves

    def times(self) -> Iterator[tuple[Step, int]]:
        """The first and the last time of each step; outside the soak one step of two classes."""
        number = list(CHANGES).index(self.name)
        classes = [[step for step in kinds if self.steps[step]] for kinds in CLASSES]
        classes = [passed for passed in classes if passed]
        if not SOAK:
            # The last is what only this kind of change does.
            chosen = {number % len(classes), len(classes) - 1}
            classes = [[classes[place][number % len(classes[place])]] for place in chosen]
        for step in (step for passed in classes for step in passed):
            first_and_last = sorted({1, self.steps[step]})
            for nth in first_and_last if SOAK else [first_and_last[-(number % 2)]]:
                yield step, nth


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("template") / "table"
    make_template(root)
    return root


@functools.cache
def whole(template: Path, name: str) -> Whole:
    change = CHANGES[name]
    root = template.parent / name
    table = prepared(template, root, change)
    old = State.of(table)
    with counted() as steps:
        change.run(table)
    at_first = mains(phalanx.open(template)) if change.lists_again else {}
    found = Whole(name, change, old, State.of(table), table.mode, steps, at_first)
    shutil.rmtree(root)
    return found


def test_every_step_is_part_of_a_change(template: Path) -> None:
    passed: set[Step] = set()
    ended_at: set[Step] = set()
    for name in CHANGES:
        expected = whole(template, name)
        passed |= set(expected.steps)
        ended_at |= {step for step, _ in expected.times()}
    assert all(ended_at & set(kinds) for kinds in CLASSES)
    assert passed == set(Step) - CREATION
    assert {step for kinds in CLASSES for step in kinds} == passed


@pytest.mark.parametrize("name", list(CHANGES))
def test_a_killed_writer(template: Path, tmp_path: Path, name: str) -> None:
    expected = whole(template, name)
    for step, nth in expected.times():
        root = tmp_path / f"{step.name}{nth}"
        prepared(template, root, expected.change)
        assert killed_at(step, nth, root, name), (step, nth)
        when = f"{step.name} {nth}"
        check_vacuum(root, tmp_path / "next", when)
        check_after(phalanx.open(root), expected, when, tmp_path / "next")
        shutil.rmtree(root)


@pytest.mark.parametrize("error", ERRORS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("name", list(CHANGES))
def test_an_error_at_a_step(
    template: Path, tmp_path: Path, name: str, error: type[BaseException]
) -> None:
    expected = whole(template, name)
    for step, nth in expected.times():
        root = tmp_path / f"{step.name}{nth}"
        table = prepared(template, root, expected.change)
        said: BaseException | None = None
        with failing_at(step, nth, error("cut off")):
            try:
                expected.change.run(table)
            except (error, phalanx.PhalanxError) as failed:
                said = failed
        if expected.change.is_atomic and error is OSError:
            # Who is told of a failure need not fear that the change was made.
            told = expected.new if said is None else expected.old
            assert contents(table) == told.contents, (step, nth, said)
        check_after(table, expected, f"{step.name} {nth}", tmp_path / "next")
        shutil.rmtree(root)


def check_after(table: phalanx.Table, expected: Whole, when: str, copy: Path) -> None:
    """All or nothing, for every reader; others go on; the same call again finishes."""
    old, new, change = expected.old, expected.new, expected.change
    found = contents(table)
    assert found in (old.contents, new.contents), when
    for number, seen in history(table).items():
        known = old.history.get(number) if table.mode == "strong" else None
        assert seen in ([known] if known else [old.contents, new.contents]), (when, number)
    if table.mode == "strong":
        check_changes(table, when)
    for key, seen in mains(table).items():
        known = (old.mains, new.mains, expected.at_first)
        states = [each.get(key, Counter()) for each in known]
        assert seen in states, (when, key)
    check_the_next_writer(Path(table.uri), copy, when, "foreign" in expected.name)
    with suppress(phalanx.SchemaMismatch, phalanx.InvalidSchema):
        # Refused where the change was made: the columns are as it wants them.
        change.run(table)
    again = contents(phalanx.open(table.uri))
    if change.repeats and found == new.contents:
        assert again[1] == new.contents[1] + (new.contents[1] - old.contents[1]), when
    else:
        assert again == new.contents, when
    assert table.mode == expected.mode, when
    assert_linear(table)


def check_changes(table: phalanx.Table, when: str) -> None:
    """What the last snapshot changed makes the one before it the newest."""
    ids = assert_linear(table)
    if len(ids) < 2 or table.at(ids[-2]).schema != table.at(ids[-1]).schema:
        return
    newest = ids[-1]
    feed = table.changes(newest - 1)
    changes = feed.to_arrow()
    rows = changes.drop_columns(["_change", "_snapshot", "_update"])
    kinds = pc.is_in(changes["_change"], pa.array(["insert", "update_after"]))
    after = contents(table.at(newest - 1))[1] + rows_of(rows.filter(kinds))
    assert after - rows_of(rows.filter(pc.invert(kinds))) == contents(table.at(newest))[1], when
    links = Counter(link for link in changes["_update"].to_pylist() if link is not None)
    assert set(links.values()) <= {2}, when


def check_the_next_writer(root: Path, copy: Path, when: str, has_foreign_writes: bool) -> None:
    """Another writer goes on as if nothing had been, and the mains that it touches follow."""
    shutil.copytree(root, copy)
    table = phalanx.open(copy)
    if has_foreign_writes:
        table.discard_foreign_writes()
    before = contents(table)
    blank = dict.fromkeys(table.schema.names)
    keys = {row[before[0].index("k")] for row in before[1]} | {"fresh"}
    more = pa.Table.from_pylist([{**blank, "k": key, "n": 99} for key in keys], table.schema)
    table.append(more)
    after = contents(table)
    assert after[1] == before[1] + rows_of(more), when
    touched = {key: seen for key, seen in mains(table).items() if rows_of(more) & seen}
    for partition in table.plan().partitions:
        key = (partition.key.spec_id, *partition.key.values)
        if key in touched:
            # A leaf is read here in the version that is listed, and there as stock clients do.
            fields = [field.field_id for field in table.spec.fields]
            listed = table.partition(**dict(zip(fields, key[1:], strict=True)))
            assert rows_of(listed.to_table()) == touched.pop(key), (when, key)
    assert not touched
    assert_linear(table)
    shutil.rmtree(copy)


def check_vacuum(root: Path, copy: Path, when: str) -> None:
    """What the dead writer left goes, and no file that anybody needs."""
    shutil.copytree(root, copy)
    table = phalanx.open(copy)
    before = contents(table)
    # A change of the mode that was under way is completed.
    table.append(table.scan(limit=0).to_arrow())
    if table.mode == "strong":
        table.discard_foreign_writes()
        # The first one completes what was cut off: what that replaces was the newest until then.
        for _ in range(2):
            time.sleep(0.02)
            table.vacuum(timedelta(0))
            # What is gone must not be read from memory.
            forget_session()
            assert contents(phalanx.open(copy)) == before, when
        assert table.snapshots().num_rows == 1, when
        assert files_of(copy) == listed_by(table), when
        named = [said.get("updates") for said in snapshots_in(table._namespace())]
        told = {path.stem for path in copy.glob("_phalanx_updates/*")}
        assert told == {name for name in named if name is not None}, when
    shutil.rmtree(copy)


def files_of(root: Path) -> set[str]:
    """The files of rows, and of deleted rows, wherever a leaf could have them."""
    return {
        str(path.relative_to(root))
        for kind in ("data", "_deletions")
        for path in root.glob(f"*_v*/{kind}/*")
    }


def listed_by(table: phalanx.Table) -> set[str]:
    """Those that the newest snapshot lists."""
    found = set()
    for partition in table.plan().partitions:
        name = Path(partition.location).name
        dataset = lance.dataset(partition.location, version=partition.version)
        for fragment in dataset.get_fragments():
            found |= {f"{name}/data/{file.path}" for file in fragment.data_files()}
            if (deleted := fragment.deletion_file()) is not None:
                found.add(f"{name}/{deleted}")
    return found


def test_a_killed_creation(tmp_path: Path) -> None:
    schema = pa.schema([("k", pa.string())])
    for step in (Step.MANIFEST_CREATED, Step.COMMITTING, Step.COMMITTED):
        root = tmp_path / step.name
        with (
            failing_at(step, 1, KeyboardInterrupt()),
            pytest.raises(KeyboardInterrupt),
        ):
            phalanx.create(root, schema, ["k"], transaction="strong")
        table = phalanx.open(root)
        assert table.mode == "strong"
        table.append(pa.table({"k": ["a"]}))
        assert table.snapshots()["operation"].to_pylist() == ["create", "append"]
        assert table.scan().count_rows() == 1
