"""What Phalanx relies on in Lance's search and indexes: try a new pylance here first."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance import LanceDataset, LanceOperation
from lance.dataset import serialize_row_addrs

from phalanx.model.search.bm25 import CorpusStats, recover_term_counts
from phalanx.model.search.vectors import compute_distances, metrics_of, to_vectors
from phalanx.storage.leaf.indexes import list_indexes
from phalanx.storage.search.tokenizer import read_document_lengths

SIZE = 4
QUERY = [0.5, -1.0, 2.0, 0.25]


def vectors(kind: pa.DataType, rows: int = 40) -> pa.Array:
    random = np.random.default_rng(1)
    if kind == pa.uint8():
        found: list[Any] = random.integers(0, 256, (rows, SIZE)).tolist()
    else:
        found = random.normal(size=(rows, SIZE)).tolist()
        found[3][1], found[5][0], found[7] = math.nan, math.inf, [0.0] * SIZE
    found[9] = None
    return pa.array(found, pa.list_(kind, SIZE))


def commit(
    dataset: lance.LanceDataset, operation: Any, detached: bool = True
) -> lance.LanceDataset:
    return LanceDataset.commit(dataset, operation, read_version=dataset.version, detached=detached)


def build_index(
    dataset: lance.LanceDataset, column: str, kind: str, fragments: list[int], **options: Any
) -> lance.LanceDataset:
    """A detached version with one more part of an index."""
    part = dataset.create_index_uncommitted(
        column, kind, name=f"{column}_idx", fragment_ids=fragments, replace=True, **options
    )
    if kind == "INVERTED":
        part = dataset.merge_existing_index_segments([part])
    return commit(dataset, LanceOperation.CreateIndex([part], []))


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64(), pa.uint8()], ids=str)
def test_distances_are_those_that_we_compute(kind: pa.DataType, tmp_path: Path) -> None:
    rows = vectors(kind)
    dataset = lance.write_dataset(pa.table({"v": rows}), str(tmp_path / "t"))
    query = np.array([1, 2, 3, 4] if kind == pa.uint8() else QUERY)
    for metric in metrics_of(rows.type):
        found = dataset.scanner(
            columns=["_distance"],
            nearest={"column": "v", "q": query, "k": 100, "metric": metric},
            with_row_id=True,
        ).to_table()
        known, present = to_vectors(rows)
        assert present is not None
        ours = np.full(len(rows), np.nan, np.float32)
        ours[present] = compute_distances(known, query.astype(known.dtype), metric)
        # NULL vectors and distances that are not defined are left out by Lance.
        assert set(found["_rowid"].to_pylist()) == set(np.flatnonzero(~np.isnan(ours)).tolist())
        theirs = found["_distance"].to_numpy()
        np.testing.assert_allclose(theirs, ours[found["_rowid"].to_numpy()], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("kind", "metric"), [(pa.uint8(), "l2"), (pa.float32(), "hamming")])
def test_other_metrics_are_refused(kind: pa.DataType, metric: str, tmp_path: Path) -> None:
    dataset = lance.write_dataset(pa.table({"v": vectors(kind)}), str(tmp_path / "t"))
    with pytest.raises((OSError, ValueError), match="does not support"):
        dataset.to_table(nearest={"column": "v", "q": [1, 2, 3, 4], "k": 1, "metric": metric})


def test_parts_of_an_index_and_rows_outside_it(tmp_path: Path) -> None:
    def table(start: int, rows: int = 300) -> pa.Table:
        random = np.random.default_rng(start)
        values = random.normal(size=(rows, SIZE)).astype(np.float32).tolist()
        return pa.table(
            {"id": range(start, start + rows), "v": pa.array(values, pa.list_(pa.float32(), SIZE))}
        )

    uri = str(tmp_path / "t")
    lance.write_dataset(table(0), uri)
    dataset = lance.write_dataset(table(1000), uri, mode="append")
    both = build_index(dataset, "v", "IVF_FLAT", [0], metric="cosine", num_partitions=2)
    both = build_index(both, "v", "IVF_FLAT", [1], metric="cosine", num_partitions=2)
    new = lance.fragment.write_fragments(table(2000, 50), both)
    grown = commit(both, LanceOperation.Append(new))
    (index,) = list_indexes(grown)
    assert (index.kind, index.metric, index.covered_fragments) == ("IVF_FLAT", "cosine", {0, 1})
    assert [each.fragments for each in index.segments] == [{0}, {1}]

    def search_ids(version: lance.LanceDataset, **how: Any) -> list[int]:
        nearest = {"column": "v", "q": QUERY, "k": 10_000, "metric": "cosine", "nprobes": 100}
        rows = version.scanner(columns=["id"], nearest=nearest, prefilter=True, **how).to_table()
        return sorted(rows["id"].to_pylist())

    everything = sorted([*range(300), *range(1000, 1300), *range(2000, 2050)])
    assert search_ids(grown) == everything
    # Rows are found by their ids, in the index and outside it; with a filter both must hold.
    allowed = serialize_row_addrs([1, 5, (1 << 32) + 3, (2 << 32) + 1])
    assert search_ids(grown, row_addr_allowlist=allowed) == [1, 5, 1003, 2001]
    assert search_ids(grown, row_addr_allowlist=allowed, filter="id > 4") == [5, 1003, 2001]
    shrunk = grown.get_fragments()[0].delete("id < 100")
    assert shrunk is not None
    deleted = commit(grown, LanceOperation.Delete([shrunk], [], "x"))
    assert search_ids(deleted) == [each for each in everything if each >= 100]
    gone = commit(deleted, LanceOperation.Delete([], [1], "x"))
    assert search_ids(gone) == [each for each in everything if 100 <= each < 1000 or each >= 2000]


def test_words_by_an_index_of_several_parts(tmp_path: Path) -> None:
    texts = ["the quick foxes", "fox fox fox", None, "", "a dog runs", "running dogs and a fox"]
    uri = str(tmp_path / "t")
    lance.write_dataset(pa.table({"t": texts}), uri)
    dataset = lance.write_dataset(pa.table({"t": ["one fox", "two"]}), uri, mode="append")
    both = build_index(build_index(dataset, "t", "INVERTED", [0]), "t", "INVERTED", [1])
    (index,) = list_indexes(both)
    lengths = pa.concat_tables(
        read_document_lengths(f"{uri}/_indices/{part.uuid}", None) for part in index.segments
    ).sort_by("_rowid")
    # Texts without a word are no documents.
    assert lengths["_rowid"].to_pylist() == [0, 1, 4, 5, 1 << 32, (1 << 32) + 1]
    counted = [len(lance.tokenize(text)) for text in [*texts, "one fox", "two"] if text]
    assert lengths["_num_tokens"].to_pylist() == counted
    found = both.scanner(
        full_text_query={"query": "fox", "columns": ["t"]},
        columns=["_score"],
        with_row_id=True,
        fast_search=True,
    ).to_table()
    known = dict(zip(*(column.to_pylist() for column in lengths.columns), strict=True))
    often = recover_term_counts(
        found["_score"].to_numpy(),
        np.array([known[number] for number in found["_rowid"].to_pylist()]),
        CorpusStats(len(counted), sum(counted)),
    )
    assert often is not None
    assert dict(zip(found["_rowid"].to_pylist(), often.tolist(), strict=True)) == {
        0: 1,
        1: 3,
        5: 1,
        1 << 32: 1,
    }


def test_every_kind_is_built_outside_the_main_branch(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    rows = pa.table(
        {
            "n": range(400),
            "t": [f"word{n % 7}" for n in range(400)],
            "tags": [[f"t{n % 3}"] for n in range(400)],
            "v": pa.array(random.normal(size=(400, 8)).tolist(), pa.list_(pa.float32(), 8)),
        }
    )
    dataset = lance.write_dataset(rows, str(tmp_path / "t"))
    detached = commit(dataset, LanceOperation.Append([]))
    kinds = {
        "v": ["IVF_FLAT", "IVF_PQ", "IVF_SQ", "IVF_RQ", "IVF_HNSW_SQ"],
        "n": ["BTREE", "BITMAP", "ZONEMAP", "BLOOMFILTER"],
        "tags": ["LABEL_LIST"],
        "t": ["INVERTED", "NGRAM"],
    }
    for column, names in kinds.items():
        for kind in names:
            options = {"num_sub_vectors": 2} if "PQ" in kind else {}
            made = build_index(detached, column, kind, [0], **options)
            (index,) = list_indexes(made)
            assert (index.kind, index.covered_fragments) == (kind, {0})
