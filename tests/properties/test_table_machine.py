"""Random sequences of changes: after each change the table equals a list of rows."""

from __future__ import annotations

import dataclasses
import math
import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest import mock

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
import pytest
from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import phalanx
from phalanx.errors import InvalidPredicate, InvalidSpec, SchemaMismatch
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.partition_key import SPEC_ID_COLUMN, to_key_columns
from phalanx.model.specs.spec import PartitionSpec
from phalanx.model.sql.literals import render_typed
from phalanx.planning.pruning.leaf_columns import LEAF_LOCATION
from phalanx.planning.pruning.partition_where import build_partition_where
from phalanx.storage.lance.location import clear_shared_session
from phalanx.table.maintenance import vacuum as vacuuming
from properties.oracle import find_matches
from properties.strategies import KINDS, Kind, Rows, array_of, conditions, terms_over
from properties.table_model import as_multiset, as_rows, change_field, plain_value
from tables import SOAK

NAMES = ("a", "b", "#", "Case", "select", "order by", "naïve é", "x$y/z=1", "100%", "it's")
INNER_NAMES = ("x", "Y", "group", "é", "z w", "back`tick")
LONG = "long" * 2500
HARD_TEXT = st.sampled_from(
    ["", "é", "$", "a/b", "k=v", "%2F", "😀👩‍👩‍👧", LONG, "NULL", "null", "🇫🇷"]
)
WIDER = {
    pa.int8(): pa.int16(),
    pa.int16(): pa.int64(),
    pa.int32(): pa.int64(),
    pa.uint8(): pa.uint32(),
    pa.uint32(): pa.uint64(),
    pa.float32(): pa.float64(),
    pa.decimal128(9, 2): pa.decimal128(20, 2),
}


def of_python(kind: pa.DataType, values: st.SearchStrategy[Any]) -> Kind:
    return Kind(kind, values.map(lambda value: pa.scalar(value, kind)))


INNER = pa.struct([("x", pa.int32()), ("y", pa.string())])
STRUCT = pa.struct([("n", pa.int32()), ("t", pa.string()), ("in", INNER)])
STRUCTS = of_python(
    STRUCT,
    st.fixed_dictionaries(
        {
            "n": st.none() | st.integers(-3, 3) | st.just(2**31 - 1),
            "t": st.none() | st.sampled_from(["", "a", "ab", "é😀"]),
            "in": st.none()
            | st.fixed_dictionaries(
                {"x": st.none() | st.integers(-5, 5), "y": st.none() | st.just("y")}
            ),
        }
    ),
)
NESTED = (
    of_python(pa.list_(pa.int64()), st.lists(st.none() | st.integers(-5, 5), max_size=3)),
    of_python(
        pa.list_(pa.struct([("k", pa.string()), ("v", pa.float32())])),
        st.lists(st.none() | st.builds(dict, k=st.just("k"), v=st.just(0.5)), max_size=2),
    ),
    of_python(pa.list_(pa.float32(), 2), st.lists(st.just(1.5), min_size=2, max_size=2)),
)
TEXTS = of_python(pa.string(), HARD_TEXT)
PLAIN = (*KINDS, TEXTS, TEXTS)
INTEGERS = tuple(kind for kind in KINDS if kind.type in WIDER)


def is_float(kind: pa.DataType) -> bool:
    return bool(pt.is_floating(kind))


class TableMachine(RuleBasedStateMachine):
    """A table, and the rows that it should hold."""

    transaction = "weak"

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp(prefix="phalanx-machine-")
        self.root = os.path.join(self.folder, "table")
        self.fresh = 0

    def teardown(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    # ── drawing ──────────────────────────────────────────────────────────────────────────────

    def rows(self, data: st.DataObject, most: int = 6) -> pa.Table:
        count = data.draw(st.integers(0, most), "rows")
        arrays = []
        for kind in self.kinds.values():
            drawn = data.draw(
                st.lists(st.none() | kind.values, min_size=count, max_size=count), "values"
            )
            arrays.append(array_of(drawn, kind.type))
        return pa.table(arrays, schema=self.plain_schema)

    @property
    def plain_schema(self) -> pa.Schema:
        return pa.schema([(name, kind.type) for name, kind in self.kinds.items()])

    @property
    def scalars(self) -> dict[str, Kind]:
        """The columns that can be compared and hashed."""
        return {n: kind for n, kind in self.kinds.items() if not pt.is_nested(kind.type)}

    def predicate(self, data: st.DataObject) -> str:
        # A long IN of DataFusion distinguishes the two zeros.
        kinds = {n: kind for n, kind in self.scalars.items() if not is_float(kind.type)}
        table = self.model.select(list(kinds))
        forms = [st.sampled_from(["true", "false", *self.nested_conditions()])]
        if kinds:
            forms += [conditions(Rows(Schema.of(table.schema), kinds, table))] * 3
        floats = [n for n, kind in self.scalars.items() if is_float(kind.type)]
        if floats:
            forms.append(
                st.builds(
                    lambda name, test: f'"{name}" {test}',
                    st.sampled_from(floats),
                    st.sampled_from(["= 0.0", "< 0", "IS NULL", "<> -0.0", ">= 1.5"]),
                )
            )
        level = st.one_of(forms)
        for _ in range(2):
            level = st.one_of(
                level,
                st.builds(lambda x, y: f"({x}) AND ({y})", level, level),
                st.builds(lambda x, y: f"({x}) OR ({y})", level, level),
                st.builds(lambda x: f"NOT ({x})", level),
            )
        return data.draw(level, "where")

    def nested_conditions(self) -> list[str]:
        found = []
        for path, kind in self.leaves_of_structs():
            dotted = ".".join(f'"{step}"' for step in path)
            if kind == pa.string():
                found += [f"{dotted} = 'a'", f"{dotted} LIKE 'a%'"]
            elif pt.is_integer(kind):
                found += [f"{dotted} > 0", f"{dotted} IN (1, 2, 3)"]
            found.append(f"{dotted} IS NULL")
        return found

    def leaves_of_structs(self) -> list[tuple[tuple[str, ...], pa.DataType]]:
        found = []

        def visit(kind: pa.DataType, path: tuple[str, ...]) -> None:
            if not pt.is_struct(kind):
                found.append((path, kind))
                return
            for child in kind:
                visit(child.type, (*path, child.name))

        for name, kind in self.kinds.items():
            if pt.is_struct(kind.type):
                visit(kind.type, (name,))
        return found

    def matches(self, where: str, table: pa.Table | None = None) -> pa.Array | None:
        table = self.model if table is None else table
        hashed = [n for n, kind in self.scalars.items() if not is_float(kind.type)]
        rest = [n for n in self.kinds if n not in hashed]
        return find_matches(table.select(hashed), where, table.select(rest))

    def partition_by(self, data: st.DataObject) -> list[Any]:
        terms: list[Any] = []
        if self.scalars:
            some = Rows(Schema.of(self.model.select(list(self.scalars)).schema), self.scalars, None)
            terms = terms_over(some)
        for path, kind in self.leaves_of_structs():
            column = ".".join(path)
            name = f"nested_{self.table_id_of(path)}"
            terms.append(phalanx.bucket(column, 2, field_id=f"{name}_bucket"))
            if kind == pa.string():
                terms.append(phalanx.truncate(column, 1, field_id=f"{name}_truncate"))
            terms.append(phalanx.identity(column, field_id=f"{name}_itself"))
        return data.draw(st.lists(st.sampled_from(terms), max_size=3, unique_by=repr), "spec")

    def table_id_of(self, path: tuple[str, ...]) -> int:
        return 0 if not hasattr(self, "table") else Schema.of(self.table.schema).id_of(path)

    # ── rules ────────────────────────────────────────────────────────────────────────────────

    @initialize(data=st.data())
    def create(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.sampled_from(PLAIN), min_size=1, max_size=3), "kinds")
        chosen += [data.draw(st.sampled_from(INTEGERS))]
        chosen += data.draw(st.lists(st.sampled_from([STRUCTS, *NESTED]), max_size=2), "nested")
        names = data.draw(st.permutations(NAMES), "names")
        self.kinds = dict(zip(names, chosen, strict=False))
        self.model = self.plain_schema.empty_table()
        terms = self.partition_by(data)
        try:
            self.make(terms)
        except InvalidSpec:
            self.make([])
        self.append(data)

    def make(self, terms: list[Any]) -> None:
        self.table = phalanx.create(
            self.root, self.plain_schema, terms, transaction=self.transaction
        )

    @rule(data=st.data())
    def append(self, data: st.DataObject) -> None:
        rows = self.rows(data)
        assert self.table.append(rows) == rows.num_rows
        self.model = pa.concat_tables([self.model, rows])
        self.check(data)

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        where = self.predicate(data)
        gone = self.matches(where)
        if gone is None:
            return
        assert self.table.delete(where) == gone.true_count, where
        self.model = self.model.filter(pc.invert(gone))
        self.check(data)

    @rule(data=st.data())
    def overwrite(self, data: st.DataObject) -> None:
        where = self.predicate(data)
        rows = self.rows(data)
        gone, come = self.matches(where), self.matches(where, rows)
        if gone is None or come is None:
            return
        rows = rows.filter(come)
        assert self.table.overwrite(rows, where) == rows.num_rows
        self.model = pa.concat_tables([self.model.filter(pc.invert(gone)), rows])
        self.check(data)

    @rule(data=st.data(), again=st.booleans())
    def overwrite_partitions(self, data: st.DataObject, again: bool) -> None:
        rows = self.rows(data)
        schema = Schema.of(self.table.schema)
        touched = set(as_rows(keys_of_rows(self.table.spec, rows, schema)))
        keys = as_rows(keys_of_rows(self.table.spec, self.model, schema))
        kept = self.model.filter(pa.array([key not in touched for key in keys], pa.bool_()))
        for _ in range(1 + again):
            assert self.table.overwrite_partitions(rows) == rows.num_rows
        self.model = pa.concat_tables([kept, rows])
        self.check(data)

    @rule(data=st.data())
    def update(self, data: st.DataObject) -> None:
        where = self.predicate(data)
        found = self.matches(where)
        if found is None:
            return
        assignments, model = self.assignments(data, self.model, found)
        assert self.table.update(where, assignments) == found.true_count, where
        self.model = model
        self.check(data)

    def assignments(
        self, data: st.DataObject, model: pa.Table, found: pa.Array
    ) -> tuple[dict[str, str], pa.Table]:
        """New values of some columns in SQL, and the rows with them where they match."""
        names = data.draw(
            st.lists(st.sampled_from(list(self.kinds)), min_size=1, max_size=2, unique=True), "set"
        )
        assignments, updated = {}, model
        for name in names:
            kind = self.kinds[name]
            alike = [n for n, other in self.kinds.items() if other.type == kind.type]
            other = data.draw(st.sampled_from([None, *alike]), "to")
            assignments[name] = "NULL" if other is None else f'"{other}"'
            # All assignments see the old row.
            new = pa.nulls(model.num_rows, kind.type)
            if other is not None:
                new = model.column(other).combine_chunks()
            if name in self.scalars and data.draw(st.booleans(), "constant"):
                value = data.draw(kind.values, "value")
                assignments[name] = render_typed(value)
                new = array_of([value] * model.num_rows, kind.type)
            both = pa.concat_arrays([model.column(name).combine_chunks(), new])
            chosen = [
                place + model.num_rows * matched for place, matched in enumerate(found.to_pylist())
            ]
            place = model.column_names.index(name)
            updated = updated.set_column(place, name, both.take(pa.array(chosen, pa.int64())))
        return assignments, updated

    @precondition(lambda self: self.scalars)
    @rule(data=st.data(), matched=st.sampled_from(["update", "update", "delete", "ignore"]))
    def merge(self, data: st.DataObject, matched: str) -> None:
        on, source = self.merge_source(data)
        inserts = data.draw(st.booleans(), "insert")
        self.model, counts = self.merge_model(self.model, source, on, matched, inserts)
        how = "insert" if inserts else "ignore"
        done = self.table.merge(source, on, when_matched=matched, when_not_matched=how)
        assert (done.inserted, done.updated, done.deleted) == counts
        event(f"merge changed {'some' if counts[1] + counts[2] else 'no'} rows")
        self.check(data)

    def merge_source(self, data: st.DataObject) -> tuple[list[str], pa.Table]:
        """Draw rows with existing keys and with others; no key occurs twice."""
        on = data.draw(
            st.lists(st.sampled_from(list(self.scalars)), min_size=1, max_size=2, unique=True), "on"
        )
        source = self.rows(data, 8)
        if self.model.num_rows:
            known = st.integers(0, self.model.num_rows - 1)
            places = data.draw(
                st.lists(st.none() | known, min_size=source.num_rows, max_size=source.num_rows),
                "known keys",
            )
            for name in on:
                both = pa.concat_arrays(
                    [table.column(name).combine_chunks() for table in (source, self.model)]
                )
                chosen = [
                    row if place is None else source.num_rows + place
                    for row, place in enumerate(places)
                ]
                place = source.column_names.index(name)
                source = source.set_column(place, name, both.take(pa.array(chosen, pa.int64())))
        seen: set[Any] = set()
        kept = []
        for key in merge_keys(source, on):
            kept.append(key is None or key not in seen)
            seen.add(key)
        return on, source.filter(pa.array(kept, pa.bool_()))

    def merge_model(
        self, model: pa.Table, source: pa.Table, on: list[str], matched: str, inserts: bool
    ) -> tuple[pa.Table, tuple[int, int, int]]:
        """Return the rows after a merge, and the numbers inserted, updated and deleted."""
        places = {key: row for row, key in enumerate(merge_keys(source, on)) if key is not None}
        both = pa.concat_tables([model, source])
        chosen, met = [], set()
        changed = 0
        for row, key in enumerate(merge_keys(model, on)):
            place = places.get(key)
            if place is not None:
                met.add(place)
                changed += matched != "ignore"
            if place is None or matched == "ignore":
                chosen.append(row)
            elif matched == "update":
                chosen.append(model.num_rows + place)
        new = [row for row in range(source.num_rows) if row not in met] if inserts else []
        chosen += [model.num_rows + row for row in new]
        counts = (len(new), changed, 0) if matched != "delete" else (len(new), 0, changed)
        return both.take(pa.array(chosen, pa.int64())), counts

    @rule(data=st.data())
    def drop_partitions(self, data: st.DataObject) -> None:
        where = self.partition_predicate(data)
        found = self.matches(where)
        if found is None:
            return
        plan = self.table.plan(where)
        rows = {p.location: self.leaf(p.location).num_rows for p in plan.partitions}
        partial = [p for p in plan.partitions if p.residual is not None and rows[p.location]]
        try:
            dropped = self.table.drop_partitions(where)
        except InvalidPredicate:
            event("drop refused")
            assert partial
            return
        assert not partial
        assert dropped == sum(p.residual is None for p in plan.partitions)
        event(f"dropped {'rows' if found.true_count else 'no rows'}")
        self.model = self.model.filter(pc.invert(found))
        self.check(data)

    def partition_predicate(self, data: st.DataObject) -> str:
        """Draw a predicate that chooses an existing partition, or any predicate."""
        keys = [p.key for p in self.table.plan().partitions]
        if not keys or data.draw(st.booleans(), "any predicate"):
            return self.predicate(data)
        key = data.draw(st.sampled_from(keys), "partition")
        return (
            build_partition_where([key], self.table.specs, Schema.of(self.table.schema)) or "true"
        )

    @rule(data=st.data())
    def evolve(self, data: st.DataObject) -> None:
        terms = self.partition_by(data)
        before = self.table.specs
        try:
            spec = self.table.evolve(terms)
        except InvalidSpec:
            assert self.table.specs == before
            return
        assert self.table.spec == spec
        assert len(spec.fields) == len(terms)
        self.check(data)

    @precondition(lambda self: len(self.kinds) < 7)
    @rule(data=st.data())
    def add_column(self, data: st.DataObject) -> None:
        free = [name for name in NAMES if name not in self.kinds]
        name = data.draw(st.sampled_from(free), "name")
        kind = data.draw(st.sampled_from([*PLAIN, STRUCTS, *NESTED]), "kind")
        self.table.add_column(pa.field(name, kind.type))
        self.kinds[name] = kind
        self.model = self.model.append_column(name, pa.nulls(self.model.num_rows, kind.type))
        self.check(data)

    @rule(data=st.data())
    def drop_column(self, data: st.DataObject) -> None:
        path = data.draw(st.sampled_from(self.paths()), "path")
        before = self.table.schema
        try:
            self.table.drop_column(".".join(path))
        except SchemaMismatch:
            assert self.table.schema.equals(before, check_metadata=True)
            return
        self.replace_model(change_field(self.model, path, lambda array, name: []))
        self.check(data)

    @rule(data=st.data())
    def rename_column(self, data: st.DataObject) -> None:
        path = data.draw(st.sampled_from(self.paths()), "path")
        free = [
            n
            for n in (NAMES if len(path) == 1 else INNER_NAMES)
            if n not in self.list_used_names(path)
        ]
        new = data.draw(st.sampled_from(free), "new name")
        self.table.rename_column(".".join(path), new)
        order = {new if name == path[0] else name: kind for name, kind in self.kinds.items()}
        if len(path) == 1:
            self.kinds = order
        self.replace_model(change_field(self.model, path, lambda array, name: [(array, new)]))
        self.check(data)

    @rule(data=st.data())
    def promote_column(self, data: st.DataObject) -> None:
        paths = [path for path in self.paths() if self.type_at(path) in WIDER]
        if not paths:
            return
        path = data.draw(st.sampled_from(paths), "path")
        wider = WIDER[self.type_at(path)]
        self.table.promote_column(".".join(path), wider)
        self.replace_model(
            change_field(self.model, path, lambda array, name: [(array.cast(wider), name)])
        )
        event("promoted")
        self.check(data)

    @rule(data=st.data(), everything=st.booleans())
    def rewrite(self, data: st.DataObject, everything: bool) -> None:
        where = None if everything else self.predicate(data)
        if where is not None and self.matches(where) is None:
            return
        done = self.table.rewrite(where, min_input_files=2, rewrite_all=everything)
        assert done.dropped == ()
        event(f"rewrote {'some' if done.groups else 'no'} groups")
        self.check(data)

    @rule(data=st.data())
    def vacuum(self, data: st.DataObject) -> None:
        self.vacuum_and_reopen(timedelta(0))
        self.check(data)

    def vacuum_and_reopen(self, older_than: timedelta) -> phalanx.Vacuumed:
        # No writer is active here, in any mode.
        with mock.patch.object(vacuuming, "LONGEST_WEAK_WRITE", timedelta(0)):
            done = self.table.vacuum(older_than)
        event("vacuumed")
        # Removed files must not be read from memory.
        clear_shared_session()
        self.table = phalanx.open(self.root)
        return done

    @rule()
    def reopen(self) -> None:
        self.table = phalanx.open(self.root)

    # ── the schema ───────────────────────────────────────────────────────────────────────────

    def paths(self) -> list[tuple[str, ...]]:
        found = []

        def visit(kind: pa.DataType, path: tuple[str, ...]) -> None:
            found.append(path)
            for child in kind if pt.is_struct(kind) else ():
                visit(child.type, (*path, child.name))

        for name, kind in self.kinds.items():
            visit(kind.type, (name,))
        return found

    def type_at(self, path: tuple[str, ...]) -> pa.DataType:
        kind = self.kinds[path[0]].type
        for step in path[1:]:
            kind = kind.field(step).type
        return kind

    def list_used_names(self, path: tuple[str, ...]) -> list[str]:
        return [other[-1] for other in self.paths() if other[:-1] == path[:-1]]

    def replace_model(self, model: pa.Table) -> None:
        """Follow a change of the model's schema; values to draw keep their strategies."""
        kinds = {}
        for name, kind in zip(model.column_names, model.schema.types, strict=True):
            old = self.kinds.get(name)
            if old is None or old.type != kind:
                old = _refit(old, kind)
            kinds[name] = old
        self.kinds, self.model = kinds, model

    # ── what must hold ───────────────────────────────────────────────────────────────────────

    def check(self, data: st.DataObject) -> None:
        self.check_everything()
        where = self.predicate(data)
        found = self.matches(where)
        if found is None:
            return
        expected = self.model.filter(found)
        columns = data.draw(
            st.lists(st.sampled_from(list(self.kinds)), min_size=1, unique=True), "columns"
        )
        scan = self.table.scan(where, columns)
        got = scan.to_arrow()
        assert got.schema.names == columns
        assert as_multiset(got) == as_multiset(expected.select(columns)), where
        assert scan.count_rows() == expected.num_rows, where
        limit = data.draw(st.integers(0, expected.num_rows + 1), "limit")
        limited = self.table.scan(where, columns, limit)
        assert as_rows(limited.to_arrow()) == as_rows(got)[:limit], where
        assert limited.count_rows() == min(limit, expected.num_rows)
        assert [row for batch in scan.to_batches() for row in as_rows(batch)] == as_rows(got)
        plan = self.table.plan(where)
        assert plan.scanned_partitions == len(plan.partitions) <= plan.total_partitions
        holding = sum(
            pc.sum(self.matches(where, rows)).as_py() or 0
            for rows in (self.leaf(partition.location) for partition in plan.partitions)
            if rows.num_rows
        )
        assert holding == expected.num_rows, where

    def leaf(self, location: str) -> pa.Table:
        return lance.dataset(location).to_table(columns=list(self.kinds))

    def check_everything(self) -> None:
        scanned = self.table.scan().to_arrow()
        assert scanned.schema.equals(self.plain_schema)
        assert as_multiset(scanned) == as_multiset(self.model)
        assert self.table.scan().count_rows() == self.model.num_rows
        partitions = self.table.partitions()
        assert (pc.sum(partitions.column("rows")).as_py() or 0) == self.model.num_rows
        plan = self.table.plan()
        # State carried from version to version equals what a new reader finds.
        afresh = phalanx.open(self.root).plan().leaves
        # As rows, because NaN equals nothing.
        assert {number: as_rows(leaves) for number, leaves in plan.leaves.items()} == {
            number: as_rows(leaves) for number, leaves in afresh.items()
        }
        assert plan.total_partitions == partitions.num_rows == len(plan.partitions)
        assert [p.location for p in plan.partitions] == partitions.column("location").to_pylist()
        self.check_leaves(plan)
        in_order = [row for p in plan.partitions for row in as_rows(self.leaf(p.location))]
        assert as_rows(scanned) == in_order

    def check_leaves(self, plan: Any) -> None:
        """One leaf for each key, in order, with rows of that key and the table's field ids."""
        schema = Schema.of(self.table.schema)
        specs = self.table.specs
        for spec_id, leaves in plan.leaves.items():
            spec = specs[spec_id]
            values = leaves.select([field.field_id for field in spec.fields])
            keys = as_rows(values)
            assert len(set(keys)) == leaves.num_rows
            ordered = [[sort_key(value) for value in row.values()] for row in _scalars_of(values)]
            assert ordered == sorted(ordered)
            ids = {source for field in spec.fields for source in field.source_ids}
            for key, location in zip(keys, leaves.column(LEAF_LOCATION).to_pylist(), strict=True):
                dataset = lance.dataset(f"{self.root}/{location}")
                assert tuple(_ids(dataset.lance_schema.fields())) == schema.ids
                if ids <= set(schema.ids):
                    found = keys_of_rows(spec, self.leaf(f"{self.root}/{location}"), schema)
                    assert set(as_rows(found.drop_columns(SPEC_ID_COLUMN))) <= {key}


def merge_keys(rows: pa.Table, on: list[str]) -> list[tuple[Any, ...] | None]:
    """The key of every row, with one zero and one NaN; None where a part of it is NULL."""
    found: list[tuple[Any, ...] | None] = []
    for key in zip(*(rows.column(name) for name in on), strict=True):
        parts = tuple(
            pa.scalar(0.0, part.type) if is_float(part.type) and part.as_py() == 0 else part
            for part in key
        )
        found.append(tuple(map(plain_value, parts)) if all(p.is_valid for p in parts) else None)
    return found


def keys_of_rows(spec: PartitionSpec, rows: pa.Table, schema: Schema) -> pa.Table:
    return to_key_columns(spec.id, spec.compute_partition_values(rows, schema), rows.num_rows)


def _ids(fields: Sequence[Any]) -> Any:
    for field in fields:
        yield field.id()
        yield from _ids(field.children())


def _scalars_of(table: pa.Table) -> list[dict[str, pa.Scalar]]:
    columns = {name: list(table.column(name)) for name in table.column_names}
    return [
        {name: values[place] for name, values in columns.items()} for place in range(table.num_rows)
    ]


def sort_key(value: pa.Scalar) -> tuple[Any, ...]:
    """NULL last, NaN before it, text by code points."""
    if not value.is_valid:
        return (2,)
    if pt.is_floating(value.type):
        return (1,) if math.isnan(value.as_py()) else (0, value.as_py())
    plain = plain_value(value)
    return (0, plain)


def _refit(old: Kind | None, kind: pa.DataType) -> Kind:
    if not pt.is_struct(kind):
        assert old is not None
        values = old.values.map(lambda value: value.cast(kind))
        return dataclasses.replace(old, type=kind, values=values)
    return Kind(kind, _struct_values(kind).map(lambda value: pa.scalar(value, kind)))


def _struct_values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    if pt.is_struct(kind):
        return st.none() | st.fixed_dictionaries({f.name: _struct_values(f.type) for f in kind})
    if kind == pa.string():
        return st.none() | st.sampled_from(["", "a", "ab", "é😀"])
    big = 2 ** (kind.bit_width - 1) - 1
    return st.none() | st.integers(-3, 3) | st.just(big)


class StrongTableMachine(TableMachine):
    """The same in strong mode, with transactions, and every snapshot read again."""

    transaction = "strong"

    def __init__(self) -> None:
        super().__init__()
        self.states: dict[int, pa.Table] = {}

    @precondition(lambda self: self.scalars)
    @rule(data=st.data(), fails=st.booleans())
    def transact(self, data: st.DataObject, fails: bool) -> None:
        rows, where, more = self.rows(data), self.predicate(data), self.rows(data)
        model = pa.concat_tables([self.model, rows])
        gone = self.matches(where, model)
        if gone is None:
            return
        model = pa.concat_tables([model.filter(pc.invert(gone)), more])
        whole = data.draw(st.booleans(), "drop everything in between")
        on, source = self.merge_source(data)
        everything = pa.repeat(pa.scalar(True), model.num_rows)
        assignments, model = self.assignments(data, model, everything)
        if whole:
            model = model.slice(0, 0)
        model, counts = self.merge_model(model, source, on, "update", True)
        with suppress(ZeroDivisionError), self.table.transaction() as txn:
            txn.append(rows)
            assert txn.delete(where) == gone.true_count
            txn.append(more)
            assert txn.update("true", assignments) == len(everything)
            if whole:
                txn.drop_partitions("true")
            done = txn.merge(source, on)
            assert (done.inserted, done.updated, done.deleted) == counts
            assert as_multiset(txn.scan().to_arrow()) == as_multiset(model)
            if fails:
                raise ZeroDivisionError
        self.model = self.model if fails else model
        self.check(data)

    @rule(data=st.data(), everything=st.booleans())
    def move(self, data: st.DataObject, everything: bool) -> None:
        where = None if everything else self.predicate(data)
        if where is not None and self.matches(where) is None:
            return
        done = self.table.rewrite(where, target_spec=self.table.spec.id)
        event(f"moved {'some' if done.groups else 'no'} groups")
        if everything:
            stored = self.table.files()
            assert set(stored["spec_id"].to_pylist()) <= {self.table.spec.id}
        self.check(data)

    @rule(data=st.data())
    def rollback(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.states)), "snapshot")
        state = self.states[number]
        if not state.schema.equals(self.model.schema):
            return
        # A column that was dropped, and another of its name made, does not come back.
        ids = Schema.of(self.table.at(number).schema).ids
        if ids != Schema.of(self.table.schema).ids:
            return
        self.table.rollback(number)
        self.model = state
        event("rolled back")
        self.check(data)

    @rule(data=st.data())
    def vacuum(self, data: st.DataObject) -> None:
        """Every snapshot that was the newest since then is retained: all of them are read again."""
        snapshots = self.table.snapshots()
        ids, times = snapshots["id"].to_pylist(), snapshots["time"].to_pylist()
        before = self.table
        since = [*times, datetime.now(UTC)][data.draw(st.integers(0, len(times)), "since")]
        gone = [number for number, over in zip(ids, times[1:], strict=False) if over < since]
        now = datetime.now(UTC)
        with mock.patch.object(vacuuming, "datetime", _stop_clock(now)):
            promised = before.vacuum(now - since, dry_run=True)
            done = self.vacuum_and_reopen(now - since)
        assert list(promised.snapshots) == list(done.snapshots) == gone
        assert set(promised.files["path"].to_pylist()) == set(done.files["path"].to_pylist())
        assert self.table.snapshots()["id"].to_pylist() == ids[len(gone) :]
        for number in gone:
            self.states.pop(number, None)
            with pytest.raises(phalanx.PhalanxError, match="removed by vacuum"):
                self.table.at(number)
        for number in ids[len(gone) :]:
            self.table.at(number).scan().to_arrow()
        self.check(data)

    @rule(data=st.data())
    def change_mode_and_back(self, data: st.DataObject) -> None:
        self.states = {}
        self.table.set_mode("weak")
        self.check(data)
        self.table.set_mode("strong")
        self.check(data)

    def check_everything(self) -> None:
        super().check_everything()
        newest = self.table.snapshots()["id"].to_pylist()
        if newest:
            self.states[newest[-1]] = self.model
        for number, state in self.states.items():
            found = self.table.at(number).scan().to_arrow()
            assert as_multiset(found) == as_multiset(state), number


def _stop_clock(moment: datetime) -> type[datetime]:
    """A clock that stands still."""

    class Stopped(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return moment

    return Stopped


TestTableMachine = TableMachine.TestCase
TestTableMachine.settings = settings(max_examples=200 if SOAK else 40, stateful_step_count=8)
TestStrongTableMachine = StrongTableMachine.TestCase
TestStrongTableMachine.settings = settings(max_examples=80 if SOAK else 10, stateful_step_count=8)
