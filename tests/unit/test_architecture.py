"""Every file and every function that docs/ARCHITECTURE.md names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "phalanx"
TEXT = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
# `function` in `path`, also over the end of a line.
NAMED = re.compile(r"`([A-Za-z_][\w.]*)`\s+in\s+`([\w/]+\.(?:py|java))`")
LAYERS = "model|planning|storage|foreign|table|spark|cli"
PATHS = sorted(set(re.findall(rf"`((?:{LAYERS})(?:/[\w.]+)*)`", TEXT)))
MOST_MODULES = 15


def is_defined(name: str, path: Path) -> bool:
    """Whether a module defines a function, a class, or `Class.method`."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".java":
        return re.search(rf"\b(?:class|record|interface)\s+{name}\b", text) is not None
    body: list[ast.stmt] = ast.parse(text).body
    for part in name.split("."):
        found = [
            node
            for node in body
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == part
        ]
        if not found:
            return False
        body = found[-1].body
    return True


@pytest.mark.parametrize(("name", "path"), sorted(set(NAMED.findall(TEXT))))
def test_a_function_is_where_the_document_says(name: str, path: str) -> None:
    assert is_defined(name, SOURCE / path)


@pytest.mark.parametrize("path", PATHS)
def test_a_path_exists(path: str) -> None:
    assert (SOURCE / path).exists()


def test_the_document_names_what_it_should() -> None:
    """The patterns above find something, and each walkthrough exists."""
    assert len(set(NAMED.findall(TEXT))) > 50
    assert len(re.findall(r"^### ", TEXT, re.MULTILINE)) == 7


def packages() -> list[str]:
    """The packages of all layers, and the layers themselves."""
    return sorted(str(path.parent.relative_to(SOURCE)) for path in SOURCE.rglob("__init__.py"))


@pytest.mark.parametrize("package", packages())
def test_a_package_can_be_taken_in(package: str) -> None:
    """Each package holds few modules, describes its purpose, and is part of the diagram."""
    folder = SOURCE / package
    assert len(list(folder.glob("*.py"))) - 1 <= MOST_MODULES
    doc = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8")))
    assert doc is not None
    assert "TODO" not in doc
    if "/" in package:
        assert len(re.findall(r"\.(?:\s|$)", doc)) >= 3, doc
        assert re.search(rf"`{package}`|\b{package.rpartition('/')[2]}\b", TEXT)


def test_the_java_package_lists_every_class() -> None:
    folder = SOURCE / "spark" / "sql" / "java" / "phalanx" / "bridge"
    listed = (folder / "package-info.java").read_text(encoding="utf-8")
    classes = {path.stem for path in folder.glob("*.java")} - {"package-info"}
    assert len(classes) > 30
    assert {name for name in classes if not re.search(rf"\b{name}\b", listed)} == set()
