"""A writer that dies at any moment: readers stay correct, and a second call finishes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import phalanx
from faults.programs.lance_crashes import Death, crash_at
from phalanx.model.schema.schema import Schema
from properties.table_model import as_multiset, as_rows
from tables import SOAK

INNER = pa.struct([pa.field("c", pa.float32()), pa.field("d", pa.string(), nullable=False)])
SCHEMA = pa.schema(
    [
        pa.field("k", pa.int32()),
        pa.field("n", pa.int32(), nullable=False),
        pa.field("s", pa.struct([pa.field("a", pa.int32(), nullable=False), ("in", INNER)])),
        pa.field("l", pa.list_(pa.struct([("x", pa.int32())]))),
        pa.field("v", pa.list_(pa.float32(), 2)),
    ]
)
Contents = dict[tuple[Any, ...], Counter[tuple[Any, ...]]]


def rows(keys: list[int | None], first: int = 0) -> pa.Table:
    found = []
    for n, k in enumerate(keys, start=first):
        struct = None if n % 3 == 2 else {"a": n, "in": None if n % 2 else {"c": 0.5, "d": "d"}}
        items = None if n % 4 == 3 else [{"x": n}, None][: n % 3]
        found.append({"k": k, "n": n, "s": struct, "l": items, "v": None if n % 5 == 4 else [n, 1]})
    return pa.Table.from_pylist(found, SCHEMA)


def contents(table: phalanx.Table) -> Contents:
    """Return the rows of each leaf by its key, in the schema of the table."""
    plan = table.plan()
    scanned = as_rows(table.scan().to_arrow())
    assert table.scan().count_rows() == len(scanned)
    found: Contents = {}
    names = tuple(table.schema.names)
    for partition in plan.partitions:
        count = lance.dataset(partition.location).count_rows()
        mine, scanned = scanned[:count], scanned[count:]
        if mine:
            key = (partition.key.spec_id, *partition.key.values)
            assert key not in found
            found[key] = Counter((names, *row) for row in mine)
    assert not scanned
    return found


def is_aligned(table: phalanx.Table) -> bool:
    schema = Schema.of(table.schema)

    def ids(fields: Any) -> Any:
        for field in fields:
            yield field.id()
            yield from ids(field.children())

    return all(
        tuple(ids(lance.dataset(location).lance_schema.fields())) == schema.ids
        for location in table.partitions().column("location").to_pylist()
    )


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a table with two specs, deleted rows, NULLs, and two fragments in some leaves."""
    root = tmp_path_factory.mktemp("template") / "table"
    table = phalanx.create(root, SCHEMA, ["k"])
    table.append(rows([1, 2, None] * 4))
    table.append(rows([1], 20))
    table.evolve([phalanx.truncate("k", 2), phalanx.bucket("n", 1)])
    table.append(rows([1, 1, None], 30))
    table.delete("n IN (0, 1, 31)")
    return root


NEW = rows([1, 6, None, 6], 100)
REPLACING = rows([2, 10, None], 200)
NINES = pa.array([[9, 9]] * 2, SCHEMA.field("v").type)
CHANGED = rows([1, 2], 3).set_column(4, SCHEMA.field("v"), NINES)
CHANGES: dict[str, Callable[[phalanx.Table], Any]] = {
    "append": lambda table: table.append(NEW),
    "overwrite": lambda table: table.overwrite(rows([4, 5], 4), "n < 8"),
    "overwrite_partitions": lambda table: table.overwrite_partitions(REPLACING),
    "delete": lambda table: table.delete("n % 2 = 0 AND k IS NOT NULL"),
    "delete_nested": lambda table: table.delete("s.in.c IS NULL"),
    "evolve": lambda table: table.evolve(["k", phalanx.truncate("n", 10)]),
    "update": lambda table: table.update("k = 1 AND v IS NOT NULL", {"v": "NULL"}),
    "merge": lambda table: table.merge(pa.concat_tables([CHANGED, NEW.slice(0, 2)]), "n"),
    "drop_partitions": lambda table: table.drop_partitions("k = 2 OR k IS NULL"),
}
SCHEMA_CHANGES: dict[str, Callable[[phalanx.Table], Any]] = {
    "add": lambda table: table.add_column(pa.field("new", pa.struct([("p", pa.int8())]))),
    "drop": lambda table: table.drop_column("s"),
    "drop_nested": lambda table: table.drop_column("s.in.c"),
    "rename": lambda table: table.rename_column("k", "K"),
    "rename_nested": lambda table: table.rename_column("s.in.d", "D"),
    "promote": lambda table: table.promote_column("k", pa.int64()),
    "promote_nested": lambda table: table.promote_column("s.in.c", pa.float64()),
}


# Leaves are changed in parallel, so later moments are much alike.
EVERY = 1 if SOAK else 2


def copy_table(template: Path, tmp_path: Path, number: int) -> Path:
    shutil.copytree(template, root := tmp_path / f"copy{number}")
    return root


def contents_after(
    template: Path, tmp_path: Path, change: Callable[[phalanx.Table], Any]
) -> Contents:
    table = phalanx.open(copy_table(template, tmp_path, -1))
    change(table)
    return contents(table)


def die(root: Path, change: Callable[[phalanx.Table], Any], moment: int) -> bool:
    """Run the change until the moment. Return False if it finished before."""
    with crash_at(moment) as crash:
        try:
            change(phalanx.open(root))
        except Death:
            return True
    assert not crash.dead
    return False


@pytest.mark.parametrize("name", list(CHANGES))
def test_a_change_of_rows_dies_at_any_moment(template: Path, tmp_path: Path, name: str) -> None:
    change = CHANGES[name]
    old, new = contents(phalanx.open(template)), contents_after(template, tmp_path, change)
    moment = 0
    while die(root := copy_table(template, tmp_path, moment), change, moment):
        table = phalanx.open(root)
        found = contents(table)
        for key in old | new | found:
            rows_here = found.get(key, Counter())
            assert rows_here in (old.get(key, Counter()), new.get(key, Counter())), (moment, key)
        change(table)
        again = contents(phalanx.open(root))
        if name == "append":
            for key, rows_here in again.items():
                added = new[key] - old.get(key, Counter())
                assert rows_here in (new[key], new[key] + added), (moment, key)
        else:
            assert again == new, moment
        shutil.rmtree(root)
        moment += 1 if moment < 8 else EVERY
    assert moment >= 4


@pytest.mark.parametrize("name", list(SCHEMA_CHANGES))
def test_a_schema_change_dies_at_any_moment(template: Path, tmp_path: Path, name: str) -> None:
    change = SCHEMA_CHANGES[name]
    old, new = contents(phalanx.open(template)), contents_after(template, tmp_path, change)
    moment = 0
    while die(root := copy_table(template, tmp_path, moment), change, moment):
        table = phalanx.open(root)
        found = contents(table)
        assert found in (old, new), moment
        if moment % 5 == 4:
            check_other_writers(copy_table(root, tmp_path, 1000 + moment))
        try:
            change(table)
        except phalanx.PhalanxError:
            assert found == new
        fresh = phalanx.open(root)
        assert contents(fresh) == new
        assert is_aligned(fresh)
        shutil.rmtree(root)
        moment += 1 if moment < 8 else EVERY
    assert moment >= 10


def check_other_writers(root: Path) -> None:
    """Check that writers work on a table whose leaves have the old or the new schema."""
    table = phalanx.open(root)
    everything = table.scan().to_arrow()
    kept = as_multiset(everything.filter(pa.array([n > 5 for n in everything["n"].to_pylist()])))
    assert table.scan("n <= 5").count_rows() == everything.num_rows - kept.total()
    assert table.delete("n <= 5") == everything.num_rows - kept.total()
    assert as_multiset(table.scan().to_arrow()) == kept
    few = everything.filter(pa.array([n > 5 for n in everything["n"].to_pylist()])).slice(1, 3)
    table.append(few)
    assert as_multiset(table.scan().to_arrow()) == kept + as_multiset(few)
    key = "K" if "K" in table.schema.names else "k"
    table.evolve([phalanx.identity(key), phalanx.bucket("n", 2)])
    table.overwrite_partitions(few)
    assert as_multiset(table.scan().to_arrow()) >= as_multiset(few)
    table.add_column(pa.field("later", pa.int8()))
    assert is_aligned(table)


def test_a_promotion_that_died_does_not_cost_partition_values(
    template: Path, tmp_path: Path
) -> None:
    """The manifest has the wider type, the spec the narrower one, and a new spec uses the field."""
    moment = 0
    while (
        die(root := copy_table(template, tmp_path, moment), SCHEMA_CHANGES["promote"], moment)
        and moment < 12
    ):
        table = phalanx.open(root)
        before = contents(table)
        table.evolve(["k", phalanx.bucket("n", 2)])
        assert contents(table) == before, moment
        table.append(NEW)
        assert contents(table).keys() >= before.keys()
        moment += 1


def test_create_dies_at_any_moment(tmp_path: Path) -> None:
    moment = 0
    while True:
        root = tmp_path / f"table{moment}"
        with crash_at(moment) as crash:
            try:
                phalanx.create(root, SCHEMA, ["k"])
            except Death:
                pass
            else:
                break
        assert crash.dead
        try:
            table = phalanx.open(root)
        except phalanx.NotPartitioned:
            table = phalanx.create(root, SCHEMA, ["k"])
        table.append(NEW)
        assert table.scan().count_rows() == NEW.num_rows
        moment += 1
    assert moment >= 4


def test_a_create_that_copied_some_files_can_be_done_again(tmp_path: Path) -> None:
    (tmp_path / "table" / "__manifest" / "data").mkdir(parents=True)
    (tmp_path / "table" / "__manifest" / "data" / "half.lance").write_bytes(b"half")
    with pytest.raises(phalanx.NotPartitioned):
        phalanx.open(tmp_path / "table")
    table = phalanx.create(tmp_path / "table", SCHEMA, ["k"])
    table.append(NEW)
    assert table.scan().count_rows() == NEW.num_rows


@pytest.mark.parametrize(
    ("name", "moment"), [("append", 5), ("overwrite_partitions", 9), ("promote", 13)]
)
def test_a_killed_process(template: Path, tmp_path: Path, name: str, moment: int) -> None:
    change = {**CHANGES, **SCHEMA_CHANGES}[name]
    old, new = contents(phalanx.open(template)), contents_after(template, tmp_path, change)
    root = copy_table(template, tmp_path, 0)
    script = (
        "import sys, phalanx\n"
        "from faults.programs.lance_crashes import crash_at\n"
        "from faults.test_crashes import CHANGES, SCHEMA_CHANGES\n"
        "root, name, moment = sys.argv[1:]\n"
        "with crash_at(int(moment), kill=True):\n"
        "    {**CHANGES, **SCHEMA_CHANGES}[name](phalanx.open(root))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script, str(root), name, str(moment)],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == -9, ended.stderr
    table = phalanx.open(root)
    found = contents(table)
    for key in found:
        assert found[key] in (old.get(key, Counter()), new.get(key, Counter()))
    change(table)
    if name != "append":
        assert contents(table) == new
    assert is_aligned(table)


def test_rows_that_an_update_moves_are_never_lost(template: Path, tmp_path: Path) -> None:
    """A death in between leaves the moved rows twice, and changes nothing else."""

    def update(table: phalanx.Table) -> None:
        table.update("n IN (3, 30)", {"k": "k + 10"})

    old, new = (
        sum(found.values(), Counter())
        for found in (contents(phalanx.open(template)), contents_after(template, tmp_path, update))
    )
    assert len(old - new) == len(new - old) == 2
    seen = set()
    moment = 0
    while die(root := copy_table(template, tmp_path, moment), update, moment):
        found = sum(contents(phalanx.open(root)).values(), Counter())
        assert old & new <= found <= old | new, moment
        numbers = Counter(row[2] for row in found)
        assert numbers.keys() == {row[2] for row in old}, moment
        seen.add(found.total())
        shutil.rmtree(root)
        moment += 1 if moment < 8 else EVERY
    assert {old.total(), old.total() + 2} <= seen


def test_a_move_dies_at_any_moment(template: Path, tmp_path: Path) -> None:
    """No row is missing or duplicated, and a second call completes the move."""

    def move(table: phalanx.Table) -> None:
        table.rewrite(target_spec=2)

    old, new = contents(phalanx.open(template)), contents_after(template, tmp_path, move)
    everything = sum(old.values(), Counter())
    assert {key[0] for key in new} == {2}
    assert sum(new.values(), Counter()) == everything
    moment = deaths = 0
    while die(root := copy_table(template, tmp_path, moment), move, moment):
        deaths += 1
        names = tuple(SCHEMA.names)
        found = as_rows(phalanx.open(root).scan().to_arrow())
        assert Counter((names, *row) for row in found) == everything, moment
        table = phalanx.open(root)
        move(table)
        assert (contents(table), table.mode) == (new, "weak"), moment
        moment += EVERY * (1 if EVERY == 1 else 4)
    assert deaths > 5
