"""Tables of the expression draft, whose manifests another writer changes and reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

import phalanx

Pairs = list[tuple[str | None, int]]


def read_pairs(table: phalanx.Table) -> Pairs:
    """Return the rows that Phalanx reads, in order."""
    return pairs_of(table.scan(columns=["k", "n"]).to_arrow())


def pairs_of(found: pa.Table) -> Pairs:
    return sorted(zip(found["k"].to_pylist(), found["n"].to_pylist(), strict=True), key=_order)


def _order(pair: tuple[str | None, int]) -> tuple[str, int]:
    return pair[0] or "", pair[1]


def manifest(table: phalanx.Table) -> lance.LanceDataset:
    return lance.dataset(f"{table.uri}/__manifest")


def row_of(table: phalanx.Table, key: str) -> dict[str, Any]:
    """The manifest row of the table with a key."""
    where = f"object_type = 'table' AND partition_field_k = '{key}'"
    [row] = manifest(table).to_table(filter=where).to_pylist()
    return row


def leaf(table: phalanx.Table, key: str) -> lance.LanceDataset:
    """The leaf with a key, on its main branch."""
    return lance.dataset(f"{table.uri}/{row_of(table, key)['location']}")


def pins(table: phalanx.Table, key: str) -> tuple[int | None, str | None, str | None]:
    row = row_of(table, key)
    return row["read_version"], row["read_branch"], row["read_tag"]


def pin(table: phalanx.Table, key: str, **values: Any) -> None:
    """Set in the manifest what is read of a leaf, as a client of the draft does."""
    there = manifest(table)
    row = {**row_of(table, key), "read_version": None, "read_branch": None, "read_tag": None}
    rows = pa.Table.from_pylist([{**row, **values}], there.schema)
    merge = there.merge_insert("object_id").when_matched_update_all()
    merge.use_index(False).conflict_retries(0).execute(rows)


def read_by_the_draft(root: str | Path) -> Pairs:
    """Return what a reader finds that knows only the draft's section Read Behavior."""
    found = []
    tables = lance.dataset(f"{root}/__manifest").to_table(filter="object_type = 'table'")
    for row in tables.to_pylist():
        dataset = lance.dataset(f"{root}/{row['location']}")
        match row["read_version"], row["read_branch"], row["read_tag"]:
            case None, None, None:
                pass
            case int(version), None, None:
                dataset = dataset.checkout_version(version)
            case int(version), str(branch), None:
                dataset = dataset.checkout_version((branch, version))
            case None, None, str(tag):
                dataset = dataset.checkout_version(tag)
            case other:
                raise AssertionError(other)
        found += pairs_of(dataset.to_table(columns=["k", "n"]))
    return sorted(found, key=_order)


def on_a_branch(dataset: lance.LanceDataset, name: str, added: pa.Table) -> int:
    """Add rows on a new branch of a leaf; return its version."""
    dataset.create_branch(name, dataset.version)
    branch = dataset.checkout_version((name, None))
    return int(lance.write_dataset(added, branch, mode="append").version)
