"""Passwords, keys and tokens stay out of `repr`, messages and plans."""

import dataclasses
import importlib
import pickle
import pkgutil
from pathlib import Path

import pyarrow as pa
import pytest

import phalanx
from phalanx.errors import PhalanxError, format_value, hide_secrets
from phalanx.foreign.ducklake.connection import CatalogLocation
from phalanx.storage.lance.failures import summarize_error
from phalanx.storage.lance.location import Location

SECRET = "hunter2"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("postgres://me:{}@host/db?sslpassword={}", "postgres://me:***@host/db?sslpassword=***"),
        ("postgres://me:{}@{}@host/db", "postgres://me:***@host/db"),
        ("dbname=x password={} host=y", "dbname=x password=*** host=y"),
        ("password = 'it''s {}' x", "password = *** x"),
        (r"password='it\'s {}' x", "password=*** x"),
        ("jdbc:postgresql://h/db?user=a&password={}&ssl=on", "jdbc:postgresql://h/db?user=a"),
        ("{{'aws_secret_access_key': '{}', 'region': 'x'}}", "'region': 'x'"),
        ("https://account/x?sv=1&sig={}&se=2", "https://account/x?sv=1&sig=***&se=2"),
        ("azure_storage_account_key={}, a=1", "a=1"),
    ],
)
def test_secrets_are_left_out_of_texts(text: str, kept: str) -> None:
    for given in (text.format(SECRET, SECRET), f"Cannot open it: {text.format(SECRET, SECRET)}"):
        assert SECRET not in hide_secrets(given)
        assert SECRET not in format_value(given)
        assert SECRET not in summarize_error(OSError(given))
        assert kept in hide_secrets(given)


@pytest.mark.parametrize(
    "text", ["Column 'token' (utf8): expected int64.", "s3://bucket/a=1/b", "abfss://c@a.host/x"]
)
def test_other_texts_stay_as_they_are(text: str) -> None:
    assert hide_secrets(text) == text


def test_no_value_shows_the_options_of_a_store() -> None:
    """A class that holds options is found by its fields' names, and must hide their values."""
    names = {"storage_options", "_storage_options", "given", "target", "properties", "options"}
    texts = ("str, str", "Mapping[str", "str")
    shows = [
        f"{module.name}.{kind.__name__}.{field.name}"
        for module in pkgutil.walk_packages(phalanx.__path__, "phalanx.")
        if not module.name.endswith("__main__")
        for kind in vars(importlib.import_module(module.name)).values()
        if isinstance(kind, type) and dataclasses.is_dataclass(kind)
        for field in dataclasses.fields(kind)
        if field.name in names and any(text in str(field.type) for text in texts) and field.repr
    ]
    # Options of indexes, and what an Iceberg file of deletes is for.
    known = {"_DeleteEntry.target", "IndexSpec.options", "Tokenizer.options"}
    assert [each for each in shows if not each.endswith(tuple(known))] == []


def test_what_a_user_holds_shows_none(tmp_path: Path) -> None:
    options = {"aws_secret_access_key": SECRET, "token": SECRET}
    schema = pa.schema([("id", pa.int64())])
    phalanx.create(tmp_path / "t", schema, ["id"], transaction="strong")
    table = phalanx.open(tmp_path / "t", storage_options=options)
    table.append(pa.table({"id": [1, 2]}, schema))
    held = [
        Location.of(tmp_path, options),
        table,
        table.at(1),
        table.scan("id = 1"),
        table.plan("id = 1"),
        table.plan().to_dict(),
        table.health(),
        table.plan_rewrite(),
        table.changes(1),
        table.vacuum(dry_run=True),
        CatalogLocation.of(f"postgres:dbname=x password={SECRET}"),
        CatalogLocation.of(f"postgres://me:{SECRET}@host/db"),
    ]
    with table.transaction() as transaction:
        held += [transaction, transaction.scan()]
    for each in held:
        assert SECRET not in repr(each)
        assert SECRET not in str(each)
    assert pickle.loads(pickle.dumps(held[0])).storage_options == options


def test_a_place_has_no_password_in_it() -> None:
    with pytest.raises(PhalanxError, match=r"s3://key:\*\*\*@bucket/t.*storage_options"):
        phalanx.open(f"s3://key:{SECRET}@bucket/t")
    with pytest.raises(PhalanxError, match="of type int: expected a string"):
        phalanx.open("s3://bucket/t", storage_options={"aws_secret_access_key": 5})  # type: ignore[dict-item]
