"""Namespaces of other writers, read, changed and compared with a plain list of rows.

Each is built by pylance alone, from whatever the format allows: pins of all kinds, gaps in ids and
in spec versions, several leaves of one partition, other types, missing and unknown columns. What
Phalanx reads and leaves behind is exactly right, or it refuses before anything has changed.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

import phalanx
from foreign_namespaces import ForeignManifest, read_by_the_format, write_leaf
from phalanx.errors import (
    InvalidManifest,
    InvalidPredicate,
    PhalanxError,
    SchemaMismatch,
    UnknownSpec,
)
from tables import SOAK

Row = tuple[Any, ...]
NAMES = ("k", "n", "s")
FIELDS = (("k", "utf8"), ("n", "int64"), ("s", "utf8"))
TYPES = dict(zip(NAMES, (pa.string(), pa.int64(), pa.string()), strict=True))
KEYS = ("a", "b", "it's", None)
TEXTS = (
    pa.string(),
    pa.large_string(),
    pa.string_view(),
    pa.dictionary(pa.int32(), pa.string()),
    pa.dictionary(pa.int16(), pa.large_string()),
)
NUMBERS = (pa.int64(), pa.int32(), pa.uint32(), pa.int8())
CONDITIONS: dict[str, Callable[[Row], bool]] = {
    "true": lambda row: True,
    "k = 'a'": lambda row: row[0] == "a",
    "k IS NULL": lambda row: row[0] is None,
    "n > 8": lambda row: row[1] is not None and row[1] > 8,
    "n IN (3, 12)": lambda row: row[1] in (3, 12),
    "n < 10 AND k <> 'b'": lambda row: None not in row[:2] and row[1] < 10 and row[0] != "b",
    "k = 'it''s' OR n IS NULL": lambda row: row[0] == "it's" or row[1] is None,
    "NOT (k = 'a' AND n < 15)": lambda row: (
        (row[0] is not None and row[0] != "a") or (row[1] is not None and row[1] >= 15)
    ),
}


def cut(number: int | None) -> int | None:
    """The partition of a number that is not negative."""
    return None if number is None else number // 10 * 10


def table_of(rows: list[Row], columns: tuple[str, ...] = NAMES) -> pa.Table:
    arrays = {
        name: pa.array([row[place] for row in rows], TYPES[name])
        for place, name in enumerate(NAMES)
    }
    return pa.table({name: arrays[name] for name in columns})


def column(place: str, ids: tuple[int, ...]) -> tuple[str, int, dict[str, Any], str]:
    """A partition field: the keys themselves, or the numbers by their tens."""
    if place == "k":
        return "k", ids[0], {"type": "identity"}, "utf8"
    return "n_truncate", ids[1], {"type": "truncate", "width": 10}, "int64"


@dataclass
class Namespace:
    """What was built: the rows that are to be read, and what may be refused."""

    root: Path
    rows: list[Row] = field(default_factory=list)
    is_pinned: bool = False
    is_on_a_branch: bool = False
    # Leaves whose columns have ids that mean other columns.
    is_odd: bool = False
    may_be_odd: bool = False
    may_be_pinned: bool = False


@st.composite
def fresh_rows(draw: st.DrawFn, key: str | bool | None, tens: int | bool | None) -> list[Row]:
    """Some rows of one partition; False means a value that is not fixed."""
    found = []
    for _ in range(draw(st.integers(0, 3))):
        own = draw(st.sampled_from(KEYS)) if key is False else key
        number = draw(st.none() | st.integers(0, 39))
        if tens is not False:
            number = None if tens is None else tens + draw(st.integers(0, 9))
        found.append((own, number, draw(st.sampled_from(("x", "y", None)))))
    return found


@st.composite
def namespaces(draw: st.DrawFn, root: Path) -> Namespace:
    """A namespace at an empty root."""
    made = Namespace(root)
    made.may_be_odd, made.may_be_pinned = draw(st.integers(0, 5)) == 0, draw(st.booleans())
    ids: tuple[int, ...] = (0, 1, 2)
    if draw(st.booleans()):
        least = draw(st.sampled_from((0, 3)))
        some = st.sets(st.integers(least, least + 7), min_size=3, max_size=3)
        ids = tuple(sorted(draw(some)))
    numbers = draw(st.sampled_from(((1,), (1, 2), (3,), (2, 7))))
    shapes = st.sampled_from((("k",), ("n",), ("k", "n"), ("n", "k"), ()))
    by = {number: draw(shapes) for number in numbers}
    specs = {number: [column(each, ids) for each in by[number]] for number in numbers}
    manifest = ForeignManifest(root, FIELDS, ids, specs)
    for number in numbers:
        if draw(st.booleans()):
            manifest.add(f"v{number}", "namespace")
    for place in range(draw(st.integers(0, 4))):
        _add_leaf(draw, made, manifest, ids, draw(st.sampled_from(numbers)), by, place)
    if draw(st.booleans()):
        values = {"k": "b"} if by[numbers[0]][:1] == ("k",) else {}
        manifest.add(f"v{numbers[0]}$lonely", "namespace", **values)
    if draw(st.booleans()):
        manifest.add("some$view", "view", location="nowhere")
    types: dict[str, pa.DataType] = {
        name: draw(st.sampled_from(TEXTS))
        for name in ("object_id", "object_type", "location", "metadata", "read_tag")
    }
    types["read_version"] = draw(st.sampled_from((pa.uint64(), *NUMBERS)))
    types["partition_field_k"] = draw(st.sampled_from(TEXTS))
    types["partition_field_n_truncate"] = draw(st.sampled_from(NUMBERS))
    used = {name for row in manifest.rows for name, value in row.items() if value is not None}
    optional = [name for name in ("read_version", "read_branch", "read_tag") if name not in used]
    without = [name for name in ("metadata", *optional) if draw(st.booleans())]
    more = {}
    if draw(st.booleans()):
        more = {"owner": pa.array(["them"] * len(manifest.rows), pa.string())}
    extra = {"theirs": "1"} if draw(st.booleans()) else {}
    manifest.write(types, without, more, extra)
    return made


def _add_leaf(
    draw: st.DrawFn,
    made: Namespace,
    manifest: ForeignManifest,
    ids: tuple[int, ...],
    spec: int,
    by: dict[int, tuple[str, ...]],
    place: int,
) -> None:
    key = draw(st.sampled_from(KEYS)) if "k" in by[spec] else False
    tens = draw(st.sampled_from((0, 10, 30, None))) if "n" in by[spec] else False
    location = draw(
        st.sampled_from((f"leaf{place}", f"deep/er/leaf{place}", f"{place:08x}_x$dataset"))
    )
    by_place = ("by place", "reordered") if made.may_be_odd or min(ids) > 2 else ()
    numbering = draw(st.sampled_from(("right", "right", *by_place)))
    names: tuple[str, ...] = NAMES
    leaf_ids: tuple[int, ...] = ids
    if numbering == "by place":
        leaf_ids = (0, 1, 2)
    elif numbering == "reordered":
        names, leaf_ids = draw(st.permutations(NAMES).map(tuple)), (0, 1, 2)
    meant = dict(zip(NAMES, ids, strict=True))
    written = dict(zip(names, leaf_ids, strict=True))
    if written != meant and set(leaf_ids) & set(ids):
        made.is_odd = True
    rows = draw(fresh_rows(key, tens))
    path = made.root / location
    write_leaf(path, table_of(rows, names), leaf_ids)
    versions = {lance.dataset(path).version: list(rows)}
    for _ in range(draw(st.integers(0, 2))):
        if rows and draw(st.booleans()):
            number = draw(st.sampled_from([row[1] for row in rows]))
            where = "n IS NULL" if number is None else f"n = {number}"
            lance.dataset(path).delete(where)
            rows = [row for row in rows if row[1] != number]
        else:
            more = draw(fresh_rows(key, tens))
            lance.write_dataset(table_of(more, names), path, mode="append")
            rows = [*rows, *more]
        versions[lance.dataset(path).version] = list(rows)
    pins: dict[str, Any] = {}
    kinds = ("version", "branch", "tag") if made.may_be_pinned else ()
    kind = draw(st.sampled_from((None, *kinds)))
    version = draw(st.sampled_from(sorted(versions)))
    dataset = lance.dataset(path)
    if kind == "version":
        pins, rows = {"read_version": version}, versions[version]
    elif kind == "tag":
        dataset.tags.create("release", version)
        pins, rows = {"read_tag": "release"}, versions[version]
    elif kind == "branch":
        dataset.create_branch("work/theirs", version)
        more = draw(fresh_rows(key, tens))
        branch = dataset.checkout_version(("work/theirs", None))
        branch = lance.write_dataset(table_of(more, names), branch, mode="append")
        pins = {"read_branch": "work/theirs", "read_version": branch.version}
        rows = [*versions[version], *more]
    made.is_pinned |= kind is not None
    made.is_on_a_branch |= kind == "branch"
    made.rows += rows
    values = {"k": key, "n": tens}
    parent = f"v{spec}"
    inherited: dict[str, Any] = {}
    for each in by[spec]:
        parent = f"{parent}$id{place}{each}"
        inherited["k" if each == "k" else "n_truncate"] = values[each]
        if draw(st.booleans()):
            manifest.add(parent, "namespace", **inherited)
    manifest.add(
        f"{parent}${'dataset' if by[spec] else f'd{place}'}",
        "table",
        location=location,
        **inherited,
        **pins,
    )


# ── what is done with it ─────────────────────────────────────────────────────────────────────


@dataclass
class TrackedTable:
    """A table, and the rows that it must have."""

    table: phalanx.Table
    made: Namespace
    rows: list[Row]
    added: int = 0

    @property
    def is_refused(self) -> bool:
        """Return whether no reader would see a change in weak mode."""
        return self.made.is_pinned and self.table.mode == "weak"

    def check(self, draw: st.DrawFn) -> None:
        table = phalanx.open(self.table.uri)
        assert as_read(table) == Counter(self.rows)
        assert table.scan().count_rows() == len(self.rows)
        where = draw(st.sampled_from(sorted(CONDITIONS)))
        wanted = Counter(filter(CONDITIONS[where], self.rows))
        assert as_read(table, where) == wanted, where
        assert table.scan(where).count_rows() == sum(wanted.values())
        assert Counter(read_by_the_format(table.uri, NAMES)) == Counter(self.rows)

    def draw_new_rows(self, draw: st.DrawFn) -> tuple[list[Row], pa.Table]:
        rows = draw(fresh_rows(False, False))
        data = table_of(rows)
        for number in range(self.added):
            data = data.append_column(f"c{number}", pa.nulls(len(rows), pa.int8()))
        return rows, data

    def append(self, draw: st.DrawFn) -> list[Row]:
        rows, data = self.draw_new_rows(draw)
        self.table.append(data)
        return [*self.rows, *rows]

    def delete(self, draw: st.DrawFn) -> list[Row]:
        where = draw(st.sampled_from(sorted(CONDITIONS)))
        left = [row for row in self.rows if not CONDITIONS[where](row)]
        assert self.table.delete(where) == len(self.rows) - len(left)
        return left

    def update(self, draw: st.DrawFn) -> list[Row]:
        where = draw(st.sampled_from(sorted(CONDITIONS)))
        key = draw(st.sampled_from(("a", "new")))
        chosen = [row for row in self.rows if CONDITIONS[where](row)]
        assert self.table.update(where, {"k": f"'{key}'"}) == len(chosen)
        return [(key, *row[1:]) if CONDITIONS[where](row) else row for row in self.rows]

    def merge(self, draw: st.DrawFn) -> list[Row]:
        rows, _ = self.draw_new_rows(draw)
        own = {row[1]: row for row in rows if row[1] is not None}
        data = table_of(list(own.values()))
        for number in range(self.added):
            data = data.append_column(f"c{number}", pa.nulls(len(own), pa.int8()))
        self.table.merge(data, on="n")
        there = {row[1] for row in self.rows}
        new = [row for number, row in own.items() if number not in there]
        return [*(own.get(row[1], row) for row in self.rows), *new]

    def overwrite_partitions(self, draw: st.DrawFn) -> list[Row]:
        rows, data = self.draw_new_rows(draw)
        fields = [each.field_id for each in self.table.spec.fields]

        def key(row: Row) -> Row:
            values = {"k": row[0], "n_truncate": cut(row[1]), "s": row[2]}
            return tuple(values[each] for each in fields)

        touched = set(map(key, rows))
        self.table.overwrite_partitions(data)
        return [*(row for row in self.rows if key(row) not in touched), *rows]

    def transaction(self, draw: st.DrawFn) -> list[Row]:
        if self.table.mode == "weak":
            with pytest.raises(PhalanxError, match="strong mode"):
                self.table.transaction()
            return self.rows
        rows, data = self.draw_new_rows(draw)
        where = draw(st.sampled_from(sorted(CONDITIONS)))
        with self.table.transaction() as transaction:
            transaction.append(data)
            transaction.delete(where)
        return [row for row in [*self.rows, *rows] if not CONDITIONS[where](row)]

    def add_column(self, draw: st.DrawFn) -> list[Row]:
        self.table.add_column(pa.field(f"c{self.added}", pa.int8()))
        self.added += 1
        return self.rows

    def rename_columns(self, draw: st.DrawFn) -> list[Row]:
        """Rename columns to names that another column had, and back."""
        first, second = draw(st.permutations(NAMES))[:2]
        for old, new in ((first, "passing"), (second, first), (first, second), ("passing", first)):
            self.table.rename_column(old, new)
        return self.rows

    def replace_column(self, draw: st.DrawFn) -> list[Row]:
        """Another column of the same name."""
        if not self.added:
            return self.add_column(draw)
        name = f"c{draw(st.integers(0, self.added - 1))}"
        self.table.drop_column(name)
        self.table.add_column(pa.field(name, pa.int8()))
        return self.rows

    def rewrite(self, draw: st.DrawFn) -> list[Row]:
        self.table.rewrite(min_input_files=2)
        return self.rows

    def create_index(self, draw: st.DrawFn) -> list[Row]:
        self.table.create_index("n", "BTREE")
        return self.rows

    def drop_partitions(self, draw: st.DrawFn) -> list[Row]:
        where = draw(st.sampled_from(sorted(CONDITIONS)))
        try:
            self.table.drop_partitions(where)
        except InvalidPredicate:
            return self.rows
        return [row for row in self.rows if not CONDITIONS[where](row)]

    def evolve(self, draw: st.DrawFn) -> list[Row]:
        terms = draw(st.sampled_from(([], ["k"], [phalanx.truncate("n", 10)], ["k", "s"])))
        self.table.evolve(terms)
        return self.rows

    def look(self, draw: st.DrawFn) -> list[Row]:
        """Operations that only read."""
        self.table.health()
        self.table.files()
        self.table.plan_rewrite(min_input_files=2)
        assert sum(self.table.partitions()["rows"].to_pylist()) == len(self.rows)
        return self.rows


CHANGES = [
    TrackedTable.append,
    TrackedTable.append,
    TrackedTable.delete,
    TrackedTable.update,
    TrackedTable.merge,
    TrackedTable.overwrite_partitions,
    TrackedTable.transaction,
    TrackedTable.add_column,
    TrackedTable.rename_columns,
    TrackedTable.replace_column,
    TrackedTable.rewrite,
    TrackedTable.create_index,
    TrackedTable.drop_partitions,
    TrackedTable.evolve,
    TrackedTable.look,
]
# Operations on a pinned table that weak mode also accepts.
HARMLESS = (TrackedTable.transaction, TrackedTable.evolve, TrackedTable.look)


def as_read(table: phalanx.Table, where: str | None = None) -> Counter[Row]:
    found = table.scan(where, columns=list(NAMES)).to_arrow()
    return Counter(zip(*(each.to_pylist() for each in found.columns), strict=True))


def _try_all(draw: st.DrawFn, made: Namespace) -> None:
    table = phalanx.open(made.root)
    assert table.mode == "weak"
    if made.is_odd:
        _check_odd(draw, table, made)
        return
    tracked = TrackedTable(table, made, made.rows)
    tracked.check(draw)
    for _ in range(draw(st.integers(1, 6))):
        if draw(st.integers(0, 5)) == 0:
            _change_mode(draw, tracked)
        elif draw(st.integers(0, 6)) == 0:
            event("vacuum")
            is_strong = tracked.table.mode == "strong"
            tracked.table.vacuum(timedelta(0) if is_strong else timedelta(hours=1))
        else:
            change = draw(st.sampled_from(CHANGES))
            event(change.__name__)
            if tracked.is_refused and change not in HARMLESS:
                before = _all_versions(made.root)
                with pytest.raises(PhalanxError, match="pins the version that is read"):
                    change(tracked, draw)
                assert _all_versions(made.root) == before
            else:
                tracked.rows = change(tracked, draw)
        tracked.check(draw)


def _change_mode(draw: st.DrawFn, tracked: TrackedTable) -> None:
    mode = draw(st.sampled_from(("strong", "strong", "weak")))
    was = tracked.table.mode
    event(f"mode: {was} to {mode}")
    if mode == "weak" and was == "strong" and tracked.made.is_on_a_branch:
        with pytest.raises(PhalanxError, match="read from the branch"):
            tracked.table.set_mode(mode)
        return
    tracked.table.set_mode(mode)
    assert tracked.table.mode == mode
    if was == "strong" and mode == "weak":
        tracked.made.is_pinned = False


def _check_odd(draw: st.DrawFn, table: phalanx.Table, made: Namespace) -> None:
    """Rows are those of the column names, or the leaf is refused; no reader finds other values."""
    before, versions = read_by_the_format(made.root, NAMES), _all_versions(made.root)
    event("ids that mean other columns")
    for use in (
        lambda: as_read(table),
        # No partition value limits `s`: every leaf is read.
        lambda: table.delete("s = 'x'"),
        lambda: table.set_mode("strong"),
        lambda: table.add_column(pa.field("more", pa.int8())),
    ):
        with pytest.raises(PhalanxError) as told:
            use()
        is_pinned = "pins the version that is read" in str(told.value)
        assert isinstance(told.value, SchemaMismatch) or is_pinned
    assert read_by_the_format(made.root, NAMES) == before
    assert _all_versions(made.root) == versions


def _all_versions(root: Path) -> dict[str, int]:
    """The newest version of each Lance table below a root."""
    folders = {each.parent for each in root.rglob("_versions")}
    return {str(each): lance.dataset(each).version for each in folders if "tree" not in each.parts}


@settings(max_examples=400 if SOAK else 30)
@given(st.data())
def test_namespaces_of_others(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        made = data.draw(namespaces(Path(folder) / "ns"))
        event(f"pinned: {made.is_pinned}")
        _try_all(data.draw, made)


# ── what the format does not allow ───────────────────────────────────────────────────────────


def _plain_namespace(root: Path) -> ForeignManifest:
    """Two partitions, of one row each."""
    specs = {1: [column("k", (0, 1, 2)), column("n", (0, 1, 2))]}
    manifest = ForeignManifest(root, FIELDS, (0, 1, 2), specs)
    for key in ("a", "b"):
        write_leaf(root / f"leaf_{key}", table_of([(key, 1, "x")]), (0, 1, 2))
        manifest.add(f"v1${key}", "namespace", k=key)
        manifest.add(f"v1${key}$0", "namespace", k=key, n_truncate=0)
        where = f"leaf_{key}"
        manifest.add(f"v1${key}$0$dataset", "table", k=key, n_truncate=0, location=where)
    return manifest


@dataclass(frozen=True)
class Illegal:
    """A fault of a manifest, in its last row or in how it is written, and the expected message."""

    kind: type[PhalanxError]
    why: str
    row: dict[str, Any] = field(default_factory=dict)
    types: dict[str, pa.DataType] = field(default_factory=dict)
    without: tuple[str, ...] = ()


ILLEGAL = {
    "an id twice": Illegal(
        InvalidManifest,
        r"lists the object id 'v1\$a\$0\$dataset' 2 times",
        {"object_id": "v1$a$0$dataset"},
    ),
    "a location twice": Illegal(
        InvalidManifest, "the location 'leaf_a' 2 times", {"location": "leaf_a"}
    ),
    "no location": Illegal(
        InvalidManifest, r"'v1\$b\$0\$dataset'.*without a location", {"location": None}
    ),
    "no id": Illegal(InvalidManifest, "without an object id", {"object_id": None}),
    "no such spec": Illegal(UnknownSpec, "under v9", {"object_id": "v9$b$0$dataset"}),
    "no spec at all": Illegal(UnknownSpec, "under dataset", {"object_id": "dataset"}),
    "no leaf": Illegal(
        PhalanxError, "nowhere is in the manifest, but missing", {"location": "nowhere"}
    ),
    "two pins": Illegal(
        InvalidManifest, "read_tag = 'x': expected", {"read_version": 1, "read_tag": "x"}
    ),
    "a branch alone": Illegal(InvalidManifest, "read_branch = 'x': expected", {"read_branch": "x"}),
    "no such tag": Illegal(InvalidManifest, "the tag 'x'", {"read_tag": "x"}),
    "no such version": Illegal(PhalanxError, "missing in version 7", {"read_version": 7}),
    "a negative version": Illegal(
        InvalidManifest,
        "int64 in the column 'read_version', with values that are not uint64",
        {"read_version": -1},
        {"read_version": pa.int64()},
    ),
    "a text in place of a number": Illegal(
        InvalidManifest,
        "in the column 'partition_field_n_truncate', with values that are not int64",
        {"partition_field_n_truncate": "x"},
        {"partition_field_n_truncate": pa.string()},
    ),
    **{
        f"no column {name}": Illegal(InvalidManifest, f"no column '{name}'", without=(name,))
        for name in ("object_id", "object_type", "location", "partition_field_k")
    },
}


@pytest.mark.parametrize("name", ILLEGAL)
def test_what_the_format_does_not_allow_is_reported(tmp_path: Path, name: str) -> None:
    wrong = ILLEGAL[name]
    manifest = _plain_namespace(tmp_path)
    manifest.rows[-1] |= wrong.row
    if pa.string() in wrong.types.values():
        manifest.rows[:-1] = []
    manifest.write(wrong.types, wrong.without)
    before = _all_versions(tmp_path)
    uses: list[Callable[[phalanx.Table], Any]] = [
        as_read,
        lambda table: table.scan("k = 'b' AND n = 1").to_arrow(),
        phalanx.Table.partitions,
        lambda table: table.delete("n = 1"),
        lambda table: table.append(table_of([("b", 2, None)])),
        lambda table: table.overwrite_partitions(table_of([("b", 2, None)])),
        lambda table: table.set_mode("strong"),
    ]
    for use in uses:
        with pytest.raises(PhalanxError) as told:
            use(phalanx.open(tmp_path))
        is_pinned = "pins the version that is read" in str(told.value)
        assert is_pinned or isinstance(told.value, wrong.kind)
        assert is_pinned or re.search(wrong.why, str(told.value)), told.value
    assert _all_versions(tmp_path) == before
