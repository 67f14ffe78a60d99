"""Erasure, checked by the bytes of every file, with no code of Phalanx."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.fs as pafs
import pytest
from lance import blob_array, blob_field
from lance.file import LanceFileReader

import phalanx
from integration.stores import Store

# A unique word in lower case, which a text index keeps as it is.
SECRET = "qzxjalice7f3b91c2d4e8a605"
NUMBER = 918_273_645_546_372_819
VECTOR = [float(4096 + 7 * place) for place in range(8)]
_PATTERNS = (
    SECRET.encode(),
    struct.pack("<q", NUMBER),
    struct.pack("<8f", *VECTOR),
)
_TEXTS = (SECRET, str(NUMBER), str(VECTOR)[1:-1])


def copy_files(store: Store, uri: str, to: Path) -> Path:
    """Copy all files of a table to a new local folder."""
    filesystem, path = store._filesystem(uri)
    pafs.copy_files(path, str(to), source_filesystem=filesystem)
    return to


def holders(root: Path) -> list[str]:
    """Return every file below a folder that has one of the secrets, raw or decoded."""
    return sorted(
        str(path.relative_to(root))
        for path in root.rglob("*")
        if path.is_file()
        and (
            any(pattern in path.read_bytes() for pattern in _PATTERNS)
            or any(text in _decode(path) for text in _TEXTS)
        )
    )


def _decode(path: Path) -> str:
    if path.suffix == ".arrow":
        return str(pa.ipc.open_file(pa.OSFile(str(path))).read_all().to_pydict())
    if path.suffix == ".lance":
        return str(LanceFileReader(str(path)).read_all().to_table().to_pydict())
    return ""


DICTIONARY = pa.dictionary(pa.int32(), pa.string())
SCHEMA = pa.schema(
    [
        ("k", pa.string()),
        ("n", pa.int64()),
        ("big", pa.int64()),
        ("text", pa.string()),
        ("tags", pa.list_(pa.string())),
        ("who", pa.struct([("name", pa.string()), ("parts", pa.list_(pa.string()))])),
        ("more", pa.list_(pa.struct([("name", pa.string())]))),
        ("dict", DICTIONARY),
        ("dicts", pa.struct([("one", DICTIONARY), ("some", pa.list_(DICTIONARY))])),
        ("raw", pa.large_binary()),
        ("vector", pa.list_(pa.float32(), 8)),
    ]
)


def row(k: str, n: int, word: str, number: int, vector: list[float]) -> dict[str, Any]:
    return {
        "k": k,
        "n": n,
        "big": number,
        "text": f"said {word} often",
        "tags": [word, "plain"],
        "who": {"name": word, "parts": ["x", word]},
        "more": [{"name": word}],
        "dict": word,
        "dicts": {"one": word, "some": [word, None]},
        "raw": word.encode() * 40,
        "vector": vector,
    }


def rows(*found: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(found), SCHEMA)


def plain(k: str, n: int) -> dict[str, Any]:
    return row(k, n, f"word{n}", n, [float(n + place) for place in range(8)])


def secret(k: str, n: int = 13) -> dict[str, Any]:
    return row(k, n, SECRET, NUMBER, VECTOR)


def create_with_secrets(store: Store, **options: Any) -> phalanx.Table:
    """Create a table with a secret in every kind of column, index and history."""
    table = phalanx.create(
        store.fresh(), SCHEMA, ["k"], storage_options=store.storage_options, **options
    )
    others = (plain("a", n) for n in range(100, 160))
    table.append(rows(secret("a"), *others, secret("b"), plain("c", 300)))
    table.append(rows(plain("b", 200)))
    for column, kind in (
        *(("big", "BTREE"), ("big", "ZONEMAP"), ("big", "BLOOMFILTER"), ("text", "INVERTED")),
        *(("text", "NGRAM"), ("tags", "LABEL_LIST"), ("text", "BITMAP"), ("who.name", "BTREE")),
        ("vector", "IVF_FLAT"),
    ):
        more = {"num_partitions": 2, "min_rows": 1} if kind == "IVF_FLAT" else {"min_rows": 1}
        table.create_index(column, kind, **more)
    return table


@pytest.mark.parametrize("mode", ["strong", "weak"])
@pytest.mark.parametrize("before", ["", "deleted", "updated"])
def test_values_of_all_kinds_are_gone(store: Store, tmp_path: Path, mode: str, before: str) -> None:
    table = create_with_secrets(store, transaction=mode, checksums=True)
    if before == "deleted":
        table.delete("n = 13 AND k = 'a'")
    elif before == "updated":
        table.update("n = 13", {"n": "n", "k": "'b'"})
    held = holders(copy_files(store, table.uri, tmp_path / "before"))
    for folder in ("/data/", "/_indices/"):
        assert any(folder in path for path in held)
    old = {path for path in store.files(table.uri) if "/_indices/" in path}
    left = table.scan("n <> 13").count_rows()

    done = table.erase("n = 13")

    after = copy_files(store, table.uri, tmp_path / "after")
    assert holders(after) == []
    # What an index holds of a value need not look like the value: none of its files is left.
    affected = {path.partition("/")[0] for path in held}
    now = set(store.files(table.uri))
    assert not [path for path in old & now if path.split("/_indices/")[0][-22:] in affected]
    assert done.files_verified
    assert table.scan().count_rows() == table.scan("n <> 13").count_rows() == left == 62
    again = phalanx.open(table.uri, storage_options=store.storage_options)
    assert again.scan("big = 140").count_rows() == again.scan("n = 140").count_rows() == 1
    assert again.search("text", "word140", k=3)["n"].to_pylist() == [140]
    assert again.search("vector", [140.0 + n for n in range(8)], k=1)["n"].to_pylist() == [140]
    assert not [each for each in again.health() if each.kind == "unindexed-rows"]
    # Each file has its checksum, and each checksum its file.
    found = again.verify(deep=True)
    assert found == []
    assert found.checksums == found.files > 0
    kept = {str(path.relative_to(after)) for path in after.rglob("*") if path.is_file()}
    for path in kept:
        if "_phalanx_checksums/" in path:
            assert path.replace("_phalanx_checksums/", "").removesuffix(".json") in kept


CASES = [("k, text", ""), ("k, text", "deleted"), ("k, text", "dropped"), ("big", "deleted")]
CASES += [("truncate(40, text), bucket(2, n)", "")]


@pytest.mark.parametrize(("spec", "before"), CASES)
def test_values_of_partitions_that_have_no_other_rows(
    store: Store, tmp_path: Path, spec: str, before: str
) -> None:
    """The manifest holds such values, though the predicate does not mention their columns."""
    schema = pa.schema([SCHEMA.field(name) for name in ("k", "n", "big", "text")])
    data = pa.Table.from_pylist(
        [
            {"k": "a", "n": 13, "big": NUMBER, "text": SECRET},
            {"k": "a", "n": 14, "big": 1, "text": "other"},
        ],
        schema,
    )
    for mode in ("strong", "weak") if before != "dropped" else ("strong",):
        table = phalanx.create(
            store.fresh(), schema, spec, transaction=mode, storage_options=store.storage_options
        )
        table.append(data)
        if before == "deleted":
            table.delete("n = 13")
        elif before == "dropped":
            table.drop_partitions(f"text = '{SECRET}'")
        found = holders(copy_files(store, table.uri, tmp_path / f"{mode} before"))
        assert any(path.startswith("__manifest/") for path in found)
        done = table.erase("n = 13")
        after = copy_files(store, table.uri, tmp_path / f"{mode} after")
        assert holders(after) == []
        assert done.partitions == (before != "dropped")
        assert table.scan().to_arrow()["n"].to_pylist() == [14]
        assert table.partitions().num_rows == 1
        table.append(data)
        assert sorted(table.scan().to_arrow()["n"].to_pylist()) == [13, 14, 14]
        assert not table.verify(deep=True)


def test_a_partition_that_still_has_rows_keeps_its_values(store: Store, tmp_path: Path) -> None:
    table = phalanx.create(
        store.fresh(),
        SCHEMA,
        ["k"],
        transaction="strong",
        storage_options=store.storage_options,
    )
    table.append(rows(secret(SECRET), plain(SECRET, 14)))
    table.erase("n = 13")
    # The row that stays has the value too.
    assert holders(copy_files(store, table.uri, tmp_path / "after"))
    assert table.scan().to_arrow()["n"].to_pylist() == [14]


@pytest.mark.parametrize("version", ["2.0", "2.2"])
def test_blobs_are_in_no_table(tmp_path: Path, version: str) -> None:
    """A table refuses blobs everywhere, so none needs to be erased."""
    old = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    data = pa.table({"k": ["a"], "n": [13]})
    leaf = tmp_path / "leaf"
    field: pa.Field = old if version == "2.0" else blob_field("b")
    values = pa.array([b"x"], old.type) if version == "2.0" else blob_array([b"x"])
    lance.write_dataset(data.append_column(field, values), leaf, data_storage_version=version)
    with pytest.raises(phalanx.PhalanxError, match="'b'"):
        phalanx.create(tmp_path / "made", data.schema.append(field), ["k"])
    table = phalanx.create(tmp_path / "t", data.schema.append(pa.field("b", old.type)), ["k"])
    with pytest.raises(phalanx.SchemaMismatch, match="column 'b'"):
        table.adopt(leaf)
    with pytest.raises(phalanx.PhalanxError, match="'c'"):
        table.add_column(field.with_name("c"))
