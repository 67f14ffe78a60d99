"""What Lance answers to a rendered predicate is what DataFusion answers to the user's text."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from phalanx.model.predicates.binding import bind_predicate
from phalanx.model.predicates.predicate import TRUE
from phalanx.model.predicates.rendering import split_for_lance, to_datafusion, to_lance
from phalanx.model.schema.schema import Schema
from phalanx.model.sql import engine
from phalanx.planning.pruning.prune import prune
from properties.oracle import find_matches
from properties.strategies import ONE_ZERO_KINDS, predicates, rows, specs


def lance_rows(table: pa.Table, where: str, schema: Schema) -> list[int]:
    """The numbers of the rows that Lance and then DataFusion let through."""
    inner, rest = split_for_lance(bind_predicate(where, schema))
    numbered = table.append_column("row number", pa.array(range(len(table)), pa.int64()))
    with TemporaryDirectory() as folder:
        dataset = lance.write_dataset(numbered, str(Path(folder) / "rows.lance"))
        found = dataset.to_table(filter=None if inner == TRUE else to_lance(inner))
    columns = {name: found.column(name).combine_chunks() for name in found.column_names}
    kept = engine.evaluate_sql(to_datafusion(rest), columns, found.num_rows)
    return sorted(found.filter(pc.fill_null(kept, False)).column("row number").to_pylist())


@given(st.data())
def test_lance_filters_as_datafusion_does(data: st.DataObject) -> None:
    given_rows = data.draw(rows(ONE_ZERO_KINDS))
    where = data.draw(predicates(given_rows).filter(lambda text: "murmur3" not in text))
    assume(len(given_rows.table))
    expected = find_matches(given_rows.table, where)
    assume(expected is not None)
    wanted = [row for row, matches in enumerate(expected.to_pylist()) if matches]
    assert lance_rows(given_rows.table, where, given_rows.schema) == wanted, where


@given(st.data())
def test_lance_takes_every_manifest_filter(data: st.DataObject) -> None:
    """The filter of Appendix D runs in Lance and finds the same partitions as in DataFusion."""
    given_rows = data.draw(rows(ONE_ZERO_KINDS))
    spec = data.draw(specs(given_rows))
    where = data.draw(predicates(given_rows))
    pruning = prune(bind_predicate(where, given_rows.schema), {1: spec}, given_rows.schema)
    values = spec.compute_partition_values(given_rows.table, given_rows.schema)
    assume(len(values))
    manifest = values.rename_columns([field.column for field in spec.fields])
    for name, value in (("object_id", "v1$k$dataset"), ("object_type", "table")):
        manifest = manifest.append_column(name, pa.array([value] * len(values)))
    manifest = manifest.append_column("row", pa.array(range(len(values)), pa.int64()))
    with TemporaryDirectory() as folder:
        dataset = lance.write_dataset(manifest, str(Path(folder) / "manifest"))
        found = dataset.to_table(filter=pruning.manifest_filter).column("row").to_pylist()
    columns = {name: manifest.column(name).combine_chunks() for name in manifest.column_names}
    kept = engine.evaluate_sql(
        to_datafusion(pruning.specs[0].filter), columns, manifest.num_rows
    ).to_pylist()
    assert sorted(found) == [row for row, survives in enumerate(kept) if survives]


TRAPS = pa.table(
    {
        "country": ["US", "FR", None, "o'neil", 'qu"ote', "back`tick"],
        "Mixed": ["a", "b", "c", "d", "e", None],
        "select": [1, 2, 3, None, 5, 6],
        "price": pa.array([1, 2, None, 14, 5, 6]).cast(pa.decimal128(21, 2)),
        "at": pa.array(range(6)).cast(pa.timestamp("s")),
    }
)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("\"country\" <> 'US'", [1, 3, 4, 5]),
        ("country = 'o''neil' OR country = 'qu\"ote' OR country = 'back`tick'", [3, 4, 5]),
        ("mixed = 'b'", [1]),
        ('"select" > 2', [2, 4, 5]),
        ("price = 14", [3]),
        ("price > 1.5 AND price < 5.000001", [1, 4]),
        ("at >= '1970-01-01 00:00:04'", [4, 5]),
        ("at = '1970-01-01T00:00:02Z'", [2]),
        ('"select" = 3.0', [2]),
        ("\"select\" = '5'", [4]),
        ('length(country) = 2 AND "select" < 2', [0]),
    ],
)
def test_texts_that_lance_alone_would_misread(where: str, expected: list[int]) -> None:
    assert lance_rows(TRAPS, where, Schema.of(TRAPS.schema)) == expected
