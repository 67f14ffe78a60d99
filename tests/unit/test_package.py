"""What `import phalanx` gives: names, types of arguments, and classes that methods return."""

import functools
import inspect
import re
import subprocess
import sys
import typing
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import pytest

import phalanx
from phalanx import arguments
from phalanx.model.search import indexes

_LAZY = """
import sys, phalanx
assert not {"duckdb", "pyiceberg", "pyspark"} & set(sys.modules)
print(phalanx.ducklake.open.__module__, phalanx.iceberg.open.__module__)
"""
# What results hold for the parts of Phalanx that process them, and not for users.
_INTERNAL_PACKAGES = ("phalanx.model.", "phalanx.storage.", "phalanx.planning.pruning.")
_INTERNAL_MODULES = ("phalanx.foreign.iceberg.state", "phalanx.planning.joins.execution")
_INTERNAL = {"FileRuns", "IcebergDeletes", "ImportUnit", "LeafFiles", "ReadContext"}


def test_modules_of_other_systems_are_imported_when_they_are_used() -> None:
    found = subprocess.run([sys.executable, "-c", _LAZY], capture_output=True, text=True)
    assert (found.stdout, found.stderr) == ("phalanx.ducklake phalanx.iceberg\n", "")


def test_other_names_are_no_attributes() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'delta'"):
        _ = phalanx.delta


def test_all_names_are_there_and_sorted() -> None:
    assert phalanx.__all__ == sorted(phalanx.__all__)
    for name in phalanx.__all__:
        assert hasattr(phalanx, name), name
    assert not {name for name in vars(phalanx.errors) if name[0].isupper()} - {
        *phalanx.__all__,
        *("Iterable", "Any", "Protocol"),
    }


def test_every_class_that_is_returned_is_exported_and_documented() -> None:
    """Start with the public classes and functions, and follow all that they return."""
    modules = (phalanx, phalanx.spark, phalanx.ducklake, phalanx.iceberg)
    public = [getattr(module, name) for module in modules for name in module.__all__]
    unseen: list[type] = [each for each in public if inspect.isclass(each)]
    assert {phalanx.Table, phalanx.spark.JoinPlan, phalanx.spark.ImportPlan} <= set(unseen)
    seen = set()
    while unseen:
        owner = unseen.pop()
        if owner in seen:
            continue
        seen.add(owner)
        assert owner.__doc__, f"{owner.__name__} has no docstring"
        for name, returned in find_returned_classes(owner):
            exported = any(returned is each for each in public)
            if not exported and owner is not phalanx.Table and is_internal(returned):
                continue
            assert exported, f"{owner.__name__}.{name} has {returned.__name__}"
            unseen.append(returned)
    expected = "ScanPlan RewritePlan Health MergeCounts Retained WriteJob ChangeFeed WriteResult"
    assert {getattr(phalanx, name) for name in expected.split()} <= seen


def exported_dataclasses() -> dict[str, type]:
    modules = (phalanx, phalanx.spark, phalanx.ducklake, phalanx.iceberg)
    public = [getattr(module, name) for module in modules for name in module.__all__]
    return {each.__name__: each for each in public if inspect.isclass(each) and is_dataclass(each)}


@pytest.mark.parametrize("name", list(exported_dataclasses()))
def test_each_field_is_documented(name: str) -> None:
    """In the section Attributes, in a table, or as internal."""
    owner = exported_dataclasses()[name]
    text = inspect.getdoc(owner) or ""
    attributes = re.findall(r"^    (\w+): ", text.partition("Attributes:\n")[2], re.MULTILINE)
    tabulated = re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)
    internal = re.findall(r"`(\w+)`", text.partition("Internal: ")[2].partition("\n\n")[0])
    public = [each.name for each in fields(owner) if not each.name.startswith("_")]
    assert set(public) <= {*attributes, *tabulated, *internal}
    assert set(attributes) <= set(public)


def is_internal(kind: type) -> bool:
    return kind.__name__ in _INTERNAL or kind.__module__.startswith(
        (*_INTERNAL_PACKAGES, *_INTERNAL_MODULES)
    )


def find_returned_classes(owner: type) -> Iterator[tuple[str, type]]:
    """The classes of Phalanx that attributes of a class have, and its methods return."""
    for name in dir(owner):
        member = inspect.getattr_static(owner, name)
        called = getattr(member, "fget", None) or getattr(member, "func", None) or member
        called = inspect.unwrap(getattr(called, "__func__", called))
        if not name.startswith("_") and inspect.isfunction(called):
            text = called.__annotations__.get("return", "None")
            yield from ((name, each) for each in classes_in(text, called.__globals__, owner))
    for name, text in inspect.get_annotations(owner).items():
        if not name.startswith("_"):
            names = vars(sys.modules[owner.__module__])
            yield from ((name, each) for each in classes_in(text, names, owner))


def classes_in(annotation: Any, names: dict[str, Any], owner: type) -> Iterator[type]:
    if isinstance(annotation, str):
        annotation = eval(annotation, {**names, "Self": owner})
    if isinstance(annotation, type) and annotation.__module__.partition(".")[0] == "phalanx":
        yield annotation
    for inner in typing.get_args(annotation):
        if not isinstance(inner, str):
            yield from classes_in(inner, names, owner)


# ── arguments ────────────────────────────────────────────────────────────────────────────────


def public_functions() -> Iterator[tuple[str, Any]]:
    """Every function and method that a user calls."""
    for name in ("create", "open", *(each for each in phalanx.__all__ if each.islower())):
        yield name, getattr(phalanx, name)
    for owner in (phalanx.Table, phalanx.Transaction, phalanx.WriteJob, phalanx.Scan):
        for name, member in inspect.getmembers(owner, inspect.isfunction):
            if not name.startswith("_"):
                yield f"{owner.__name__}.{name}", member
    for module in (phalanx.ducklake, phalanx.iceberg):
        yield f"{module.__name__}.open", module.open
        for name in module.__all__:
            each = getattr(module, name)
            for method, member in inspect.getmembers(each, inspect.isfunction):
                if inspect.isclass(each) and not method.startswith("_"):
                    yield f"{name}.{method}", member


def test_options_are_spelled_out() -> None:
    """`**values` are field ids, which are the user's; all other names are declared."""
    for name, function in public_functions():
        if not callable(function) or not inspect.isfunction(inspect.unwrap(function)):
            continue
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD and parameter.name != "values":
                assert "Unpack[" in str(parameter.annotation), name


def test_typed_options_are_those_of_the_dataclasses() -> None:
    for typed, options in (
        (phalanx.RewriteArguments, phalanx.RewriteOptions),
        (phalanx.HealthArguments, phalanx.HealthLimits),
    ):
        names = vars(sys.modules[options.__module__])
        assert typing.get_type_hints(typed) == {
            field.name: eval(field.type, {**names}) for field in fields(options)
        }


def test_typed_options_of_indexes_are_all() -> None:
    declared = typing.get_type_hints(phalanx.IndexArguments)
    known = {"metric": str, **indexes._VECTOR_OPTIONS, **indexes._TEXT_OPTIONS}
    for options in indexes._SCALAR_OPTIONS.values():
        known |= options
    assert set(declared) == set(known)
    assert set(typing.get_args(arguments.IndexKind)) == set(indexes.INDEX_KINDS)
    mentioned = re.findall(r"`(\w+)`", phalanx.IndexArguments.__doc__ or "")
    assert set(declared) <= set(mentioned)


def test_arrow_data_is_recognized() -> None:
    import pyarrow as pa

    assert isinstance(pa.table({"a": [1]}), phalanx.ArrowStreamExportable)
    assert isinstance(phalanx.Scan.__new__(phalanx.Scan), phalanx.ArrowStreamExportable)
    assert not isinstance([{"a": 1}], phalanx.ArrowStreamExportable)


# ── help(phalanx.Table) ──────────────────────────────────────────────────────────────────────


@functools.cache
def public_members() -> dict[str, Any]:
    return {name: each for name, each in vars(phalanx.Table).items() if not name.startswith("_")}


@pytest.mark.parametrize("name", list(public_members()))
def test_each_method_is_documented(name: str) -> None:
    """Arguments, what is returned, and an example."""
    member = public_members()[name]
    called = member.fget if isinstance(member, property) else member
    text = inspect.getdoc(member) or ""
    signature = inspect.signature(called)
    assert "Example:\n    >>> " in text
    taken = [each for each in signature.parameters.values() if each.name != "self"]
    if taken:
        assert "Args:\n" in text
        given = text.partition("Args:\n")[2].partition("\n\n")[0]
        names = re.findall(r"^    \**(\w+): ", given, re.MULTILINE)
        assert names == [each.name for each in taken]
    if not isinstance(member, property) and signature.return_annotation != "None":
        assert "Returns:\n" in text or re.match(r"(Return|Open) ", text)
    raised = re.findall(r"^    (\w+): ", text.partition("Raises:\n")[2].partition("\n\n")[0], re.M)
    for error in raised:
        assert issubclass(getattr(phalanx, error), phalanx.PhalanxError)


def test_the_table_is_one_class() -> None:
    owners = {owner for owner in phalanx.Table.__mro__ if owner.__module__.startswith("phalanx.")}
    public = {
        (owner.__name__, name)
        for owner in owners - {phalanx.Table}
        for name in vars(owner)
        if not name.startswith("_")
    }
    assert not public
