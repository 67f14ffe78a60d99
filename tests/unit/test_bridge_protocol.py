"""docs/BRIDGE.md lists the questions that Java asks and that Python answers, with their fields."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import phalanx

SQL = Path(phalanx.__file__).parent / "spark" / "sql"
JAVA = SQL / "java" / "phalanx" / "bridge"
DOCUMENT = Path(__file__).parents[2] / "docs" / "BRIDGE.md"


def find_listed_fields(text: str) -> set[str]:
    """The fields in the tables of a part of the document."""
    found: set[str] = set()
    for table in re.findall(r"^\| field \| value \|\n\|[-|]+\|\n((?:\|.*\n)*)", text, re.MULTILINE):
        for row in table.splitlines():
            found.update(re.findall(r"`(\w+)`", row.split("|")[1]))
    return found


def read_documented_fields() -> dict[str, set[str]]:
    """Return the documented fields of each question."""
    found = {}
    for group in re.split(r"^## ", DOCUMENT.read_text(), flags=re.MULTILINE):
        if group.startswith("Questions about"):
            common, *sections = re.split(r"^### ", group, flags=re.MULTILINE)
            for section in sections:
                name = re.match(r"`(\w+)`\n", section)
                assert name is not None
                found[name[1]] = find_listed_fields(common) | find_listed_fields(section)
    return found


def read_fields(node: ast.AST, functions: dict[str, ast.FunctionDef]) -> set[str]:
    """Return the fields of `question` that code reads, also in functions that get it."""
    found: set[str] = set()
    for each in ast.walk(node):
        match each:
            case ast.Subscript(value=ast.Name("question"), slice=ast.Constant(str(name))):
                found.add(name)
            case ast.Call(
                func=ast.Attribute(value=ast.Name("question"), attr="get"),
                args=[ast.Constant(str(name)), *_],
            ):
                found.add(name)
            case ast.Call(
                func=ast.Attribute(attr=str(name)) | ast.Name(str(name)),
                args=[ast.Name("question")],
            ):
                found |= read_fields(functions[name], functions)
    return found


def find_read_fields() -> dict[str, set[str]]:
    """The fields of each question that the class in Python reads."""
    tree = ast.parse((SQL / "planner.py").read_text())
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    found = {}
    for method in ("answer", "_answer_catalog"):
        (match,) = (node for node in ast.walk(functions[method]) if isinstance(node, ast.Match))
        common = set()
        if method == "_answer_catalog":
            (first, *_) = (node for node in functions[method].body if isinstance(node, ast.Assign))
            common = read_fields(first, functions)
        for case in match.cases:
            assert isinstance(case.pattern, ast.MatchValue)
            assert isinstance(case.pattern.value, ast.Constant)
            fields = set[str]().union(*(read_fields(each, functions) for each in case.body))
            found[str(case.pattern.value.value)] = common | fields
    return found


def test_the_document_lists_the_questions_that_python_answers_with_their_fields() -> None:
    assert read_documented_fields() == find_read_fields()


def test_one_class_in_java_asks_just_these_questions() -> None:
    text = (JAVA / "Planner.java").read_text()
    assert set(re.findall(r'\bask\("(\w+)"', text)) == set(read_documented_fields())
    code = text.split("private static ObjectNode toJson(TableChange change)")[0]
    sent = set(re.findall(r'\b(?:fields|more)\s*\.(?:put|set|putArray)\("(\w+)"', code))
    assert sent == set[str]().union(*read_documented_fields().values())


def test_no_other_class_in_java_speaks_with_python() -> None:
    for path in JAVA.glob("*.java"):
        if path.name != "Planner.java":
            text = path.read_text()
            assert '"ask"' not in text, path.name
            assert not re.search(r"\bask\(|ProcessBuilder", text), path.name
