"""The laws of the Hive-style layout, over all its functions: nothing is lost or changed."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

import phalanx
from phalanx.errors import InvalidSpec
from phalanx.model.predicates.predicate import FALSE, TRUE
from phalanx.model.specs.hive_properties import HiveProperties
from phalanx.model.specs.partition_by import PartitionTerm
from properties.oracle import find_matches
from properties.strategies import KINDS, Rows, predicates, rows
from properties.table_model import as_multiset
from properties.test_pruning import prune_rows

TERMS: tuple[Callable[[str], PartitionTerm], ...] = (
    *(phalanx.identity, phalanx.year, phalanx.month, phalanx.day, phalanx.hour, phalanx.hash),
    *(lambda name, n=n: phalanx.bucket(name, n) for n in (1, 4, 1000)),
    *(lambda name, width=width: phalanx.truncate(name, width) for width in (1, 10)),
)
# Lance keeps no NULL in a binary of length 0, and such types are only sources of hashes here.
STORED = tuple(kind for kind in KINDS if not pa.types.is_binary(kind.type))


@st.composite
def hive_tables(draw: st.DrawFn, data: Rows) -> HiveProperties:
    """One to three fields by any function that fits; one more column is always stored."""
    schema = pa.schema([*data.schema.arrow, ("stored", pa.int8())])
    terms = [term(name) for name in data.kinds for term in TERMS if fits(term(name), data)]
    chosen = draw(st.lists(st.sampled_from(terms), min_size=1, max_size=3, unique_by=repr))
    # Two buckets of one column would have the same name.
    names = {(term.columns, type(term.derivation)): term for term in chosen}
    return HiveProperties.of(schema, list(names.values()))


def fits(term: PartitionTerm, data: Rows) -> bool:
    try:
        HiveProperties.of(pa.schema([*data.schema.arrow, ("stored", pa.int8())]), [term])
    except InvalidSpec:
        return False
    return True


@settings(max_examples=settings().max_examples // 3)
@given(st.data())
def test_no_matching_row_is_lost(data: st.DataObject) -> None:
    given_rows = data.draw(rows())
    hive = data.draw(hive_tables(given_rows))
    where = data.draw(predicates(given_rows))
    matches = find_matches(given_rows.table, where)
    assume(matches is not None)
    whole = Rows(hive.schema, given_rows.kinds, _with_stored(given_rows.table))
    pruning, kept = prune_rows(where, hive.spec, whole)
    event(f"prunes: {pruning.specs[0].filter not in (TRUE, FALSE)}")
    lost = pc.and_(matches, pc.invert(kept))
    assert not pc.any(lost).as_py(), (where, str(pruning), given_rows.table.filter(lost))


@settings(max_examples=settings().max_examples // 10)
@given(st.data())
def test_what_is_written_is_read(data: st.DataObject) -> None:
    """Rows are read back unchanged, with and without any predicate; then they are deleted."""
    given_rows = data.draw(rows(STORED, max_rows=8))
    hive = data.draw(hive_tables(given_rows))
    where = data.draw(predicates(given_rows))
    matches = find_matches(given_rows.table, where)
    assume(matches is not None)
    written = _with_stored(given_rows.table)
    with tempfile.TemporaryDirectory() as folder:
        terms = [_term(field.field_id, hive) for field in hive.spec.fields]
        table = phalanx.create(Path(folder) / "t", written.schema, terms, layout="hive")
        table.append(written)
        table = phalanx.open(table.uri)
        assert as_multiset(table.scan().to_arrow()) == as_multiset(written)
        found = table.scan(where)
        assert as_multiset(found.to_arrow()) == as_multiset(written.filter(matches))
        assert found.count_rows() == matches.true_count
        event(f"leaves left out: {found.plan.scanned_partitions < found.plan.total_partitions}")
        assert table.delete(where) == matches.true_count
        assert as_multiset(table.scan().to_arrow()) == as_multiset(
            written.filter(pc.invert(matches))
        )


def _term(field_id: str, hive: HiveProperties) -> PartitionTerm:
    (field,) = [field for field in hive.spec.fields if field.field_id == field_id]
    path = hive.schema.path_of(field.source_ids[0])
    assert path is not None
    return PartitionTerm(field.derivation, path)


def _with_stored(table: pa.Table) -> pa.Table:
    numbers = pa.array([place % 100 for place in range(table.num_rows)], pa.int8())
    plain = table.replace_schema_metadata()
    columns = [pa.field(field.name, field.type) for field in plain.schema]
    return pa.table([*plain.columns, numbers], schema=pa.schema([*columns, ("stored", pa.int8())]))
