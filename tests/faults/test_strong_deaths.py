"""A writer in strong mode ends at any fault point: its change is complete or absent."""

from __future__ import annotations

import functools
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
from faults.programs.fault_injection import count_steps, fail_at, kill_at
from faults.programs.strong_changes import CHANGES, Change, copy_prepared, make_template
from phalanx.storage.commit.history_rows import list_snapshots
from phalanx.storage.lance.fault_points import FaultPoint
from phalanx.storage.lance.location import clear_shared_session
from phalanx.table.handle import handle_of
from tables import SOAK

Rows = Counter[tuple[Any, ...]]
Contents = tuple[tuple[str, ...], Rows]
Leaves = dict[tuple[Any, ...], Rows]
ERRORS = [OSError, KeyboardInterrupt] if SOAK else [OSError]
CREATION = {FaultPoint.MANIFEST_CREATED}
CLASSES = (
    (
        FaultPoint.LEAF_CREATED,
        FaultPoint.FILES_WRITTEN,
        FaultPoint.DELETIONS_WRITTEN,
        FaultPoint.VERSION_STAGED,
    ),
    (FaultPoint.UPDATES_WRITTEN,),
    (FaultPoint.COMMITTING, FaultPoint.MANIFEST_WRITTEN, FaultPoint.COMMITTED),
    (FaultPoint.RESTORE_STAGED, FaultPoint.MAIN_RESTORED, FaultPoint.PUBLISHED),
    (
        FaultPoint.COLUMNS_CHANGED,
        FaultPoint.PROPERTIES_CHANGED,
        FaultPoint.LEAF_ALIGNED,
        FaultPoint.STRONG_ROWS_REMOVED,
        FaultPoint.FOREIGN_WRITE_DISCARDED,
    ),
    (FaultPoint.HORIZON_MOVED, FaultPoint.VERSIONS_DELETED, FaultPoint.FILES_DELETED),
)


def rows_of(table: pa.Table) -> Rows:
    return Counter(tuple(row.values()) for row in table.to_pylist())


def contents(table: phalanx.Table) -> Contents:
    found = table.scan().to_arrow()
    return tuple(found.column_names), rows_of(found)


def mains(table: phalanx.Table) -> Leaves:
    """Return what stock clients see in each leaf."""
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
    """A table as its readers see it: now, at every snapshot, and through stock clients."""

    contents: Contents
    history: dict[int, Contents]
    mains: Leaves

    @classmethod
    def of(cls, table: phalanx.Table) -> State:
        return cls(contents(table), history(table), mains(table))


@dataclass(frozen=True)
class CompleteRun:
    """An uninterrupted change: the states before and after it, and its steps."""

    name: str
    change: Change
    old: State
    new: State
    mode: str
    steps: Counter[FaultPoint]
    # What stock clients saw in the template.
    at_first: Leaves

    def times(self) -> Iterator[tuple[FaultPoint, int]]:
        """Yield the first and the last time of each step. Outside the soak, take two steps."""
        number = list(CHANGES).index(self.name)
        classes = [[step for step in kinds if self.steps[step]] for kinds in CLASSES]
        classes = [passed for passed in classes if passed]
        if not SOAK:
            # The last class is specific to this kind of change.
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
def run_completely(template: Path, name: str) -> CompleteRun:
    change = CHANGES[name]
    root = template.parent / name
    table = copy_prepared(template, root, change)
    old = State.of(table)
    with count_steps() as steps:
        change.run(table)
    at_first = mains(phalanx.open(template)) if change.lists_again else {}
    found = CompleteRun(name, change, old, State.of(table), table.mode, steps, at_first)
    shutil.rmtree(root)
    return found


def test_every_step_is_part_of_a_change(template: Path) -> None:
    passed: set[FaultPoint] = set()
    interrupted_at: set[FaultPoint] = set()
    for name in CHANGES:
        expected = run_completely(template, name)
        passed |= set(expected.steps)
        interrupted_at |= {step for step, _ in expected.times()}
    assert all(interrupted_at & set(kinds) for kinds in CLASSES)
    assert passed == set(FaultPoint) - CREATION
    assert {step for kinds in CLASSES for step in kinds} == passed


@pytest.mark.parametrize("name", list(CHANGES))
def test_a_killed_writer(template: Path, tmp_path: Path, name: str) -> None:
    expected = run_completely(template, name)
    for step, nth in expected.times():
        root = tmp_path / f"{step.name}{nth}"
        copy_prepared(template, root, expected.change)
        assert kill_at(step, nth, root, name), (step, nth)
        when = f"{step.name} {nth}"
        check_vacuum(root, tmp_path / "next", when)
        check_after(phalanx.open(root), expected, when, tmp_path / "next")
        shutil.rmtree(root)


@pytest.mark.parametrize("error", ERRORS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("name", list(CHANGES))
def test_an_error_at_a_step(
    template: Path, tmp_path: Path, name: str, error: type[BaseException]
) -> None:
    expected = run_completely(template, name)
    for step, nth in expected.times():
        root = tmp_path / f"{step.name}{nth}"
        table = copy_prepared(template, root, expected.change)
        raised: BaseException | None = None
        with fail_at(step, nth, error("cut off")):
            try:
                expected.change.run(table)
            except (error, phalanx.PhalanxError) as failed:
                raised = failed
        if expected.change.is_atomic and error is OSError:
            # A caller that gets an error can rely on the old state.
            state = expected.new if raised is None else expected.old
            assert contents(table) == state.contents, (step, nth, raised)
        check_after(table, expected, f"{step.name} {nth}", tmp_path / "next")
        shutil.rmtree(root)


def check_after(table: phalanx.Table, expected: CompleteRun, when: str, copy: Path) -> None:
    """Check that every reader sees all or nothing, others can write, and a second call finishes."""
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
        # Refused if the change took effect: the columns are already changed.
        change.run(table)
    again = contents(phalanx.open(table.uri))
    if change.repeats and found == new.contents:
        assert again[1] == new.contents[1] + (new.contents[1] - old.contents[1]), when
    else:
        assert again == new.contents, when
    assert table.mode == expected.mode, when
    assert_linear(table)


def check_changes(table: phalanx.Table, when: str) -> None:
    """Check that the changes of the last snapshot, applied to the one before it, yield it."""
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
    """Check that another writer can append, and that stock clients see its rows."""
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
            # Compare the listed version of the leaf with what stock clients read.
            fields = [field.field_id for field in table.spec.fields]
            listed = table.partition(**dict(zip(fields, key[1:], strict=True)))
            assert rows_of(listed.to_table()) == touched.pop(key), (when, key)
    assert not touched
    assert_linear(table)
    shutil.rmtree(copy)


def check_vacuum(root: Path, copy: Path, when: str) -> None:
    """Check that a vacuum removes the debris of the dead writer, and no other file."""
    shutil.copytree(root, copy)
    table = phalanx.open(copy)
    before = contents(table)
    # An append completes an interrupted change of the mode.
    table.append(table.scan(limit=0).to_arrow())
    if table.mode == "strong":
        table.discard_foreign_writes()
        # The first vacuum completes the interrupted change, the second removes what it replaced.
        for _ in range(2):
            time.sleep(0.02)
            table.vacuum(timedelta(0))
            # Deleted files must not be read from the cache.
            clear_shared_session()
            assert contents(phalanx.open(copy)) == before, when
        assert table.snapshots().num_rows == 1, when
        assert files_of(copy) == files_listed_by(table), when
        named = [each.get("updates") for each in list_snapshots(handle_of(table).load_manifest())]
        stored = {path.stem for path in copy.glob("_phalanx_updates/*")}
        assert stored == {name for name in named if name is not None}, when
    shutil.rmtree(copy)


def files_of(root: Path) -> set[str]:
    """Return the data files and deletion files of all leaf folders, listed or not."""
    return {
        str(path.relative_to(root))
        for kind in ("data", "_deletions")
        for path in root.glob(f"*_v*/{kind}/*")
    }


def files_listed_by(table: phalanx.Table) -> set[str]:
    """Return the data files and deletion files that the newest snapshot lists."""
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
    for step in (FaultPoint.MANIFEST_CREATED, FaultPoint.COMMITTING, FaultPoint.COMMITTED):
        root = tmp_path / step.name
        with (
            fail_at(step, 1, KeyboardInterrupt()),
            pytest.raises(KeyboardInterrupt),
        ):
            phalanx.create(root, schema, ["k"], transaction="strong")
        table = phalanx.open(root)
        assert table.mode == "strong"
        table.append(pa.table({"k": ["a"]}))
        assert table.snapshots()["operation"].to_pylist() == ["create", "append"]
        assert table.scan().count_rows() == 1
