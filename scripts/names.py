"""Find public names that two modules define for different things: `python scripts/names.py`.

One word has one meaning: a search for a name must find one definition. The script compares the
functions, classes and constants at the top of the modules of `src/phalanx`, and the classes of the
Java sources. It skips the commands of the shell, which have the names of the operations that they
run. `ALLOWED` lists the other exceptions, each with its reason.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "phalanx"

# Commands of the shell: `phalanx vacuum` runs `Table.vacuum`.
COMMANDS = ("cli/app.py", "cli/commands")
# Name: why several modules may define it.
ALLOWED = {
    "open": "The entry points phalanx.open, phalanx.ducklake.open and phalanx.iceberg.open.",
}


def find_definitions(module: Path) -> Iterator[str]:
    """Yield the public names that a module defines at its top level."""
    for node in ast.parse(module.read_text(encoding="utf-8")).body:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Assign(targets=targets):
                yield from (each.id for each in targets if isinstance(each, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name), value=value) if value is not None:
                yield name


def find_java_definitions(source: Path) -> Iterator[str]:
    """Yield the classes, records, interfaces and enums of a Java source."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", source.read_text(encoding="utf-8"), flags=re.DOTALL)
    yield from re.findall(r"\b(?:class|record|interface|enum)\s+([A-Z]\w*)", text)


def find_repeated(folder: Path) -> dict[str, list[str]]:
    """Return the names that are defined in several places, with these places."""
    places: defaultdict[str, list[str]] = defaultdict(list)
    for language, suffix, find in (
        ("", "*.py", find_definitions),
        ("Java ", "*.java", find_java_definitions),
    ):
        for module in sorted(folder.rglob(suffix)):
            place = module.relative_to(folder).as_posix()
            for name in find(module):
                if not name.startswith("_") and not place.startswith(COMMANDS):
                    places[language + name].append(place)
    return {name: found for name, found in sorted(places.items()) if len(found) > 1}


def main() -> int:
    """Print every repeated name that is not allowed; return 1 if there is one."""
    repeated = find_repeated(SOURCE)
    wrong = {name: found for name, found in repeated.items() if name not in ALLOWED}
    for name, found in wrong.items():
        print(f"{name}: defined in {', '.join(found)}")
    for name in sorted(set(ALLOWED) - set(repeated)):
        print(f"{name}: allowed in scripts/names.py, but defined once. Remove it from the list.")
    if wrong:
        print(
            f"{len(wrong)} public names are defined in several modules. Rename them, or add them "
            "to ALLOWED in scripts/names.py with the reason."
        )
    return 1 if wrong or set(ALLOWED) - set(repeated) else 0


if __name__ == "__main__":
    sys.exit(main())
