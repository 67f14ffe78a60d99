"""Which column a written name means: the exact one, else the only one that differs in case."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import pyarrow as pa
import pyarrow.types as pt

from phalanx.errors import InvalidSchema

Path: TypeAlias = tuple[str, ...]


def resolve_path(path: Sequence[str], schema: pa.Schema) -> Path:
    """The exact path of a column, or of a field inside struct columns.

    Raises `InvalidSchema` that names close columns if there is none, or the rivals if several.
    """
    exact: list[str] = []
    fields: Iterable[pa.Field] = schema
    for written in path:
        found = _field(written, list(fields), tuple(exact), path)
        exact.append(found.name)
        fields = found.type if pt.is_struct(found.type) else ()
    return tuple(exact)


def close_names(written: str, names: Iterable[str]) -> list[str]:
    """The names that someone who wrote this may have meant, the closest first."""
    by_spelling = {name.lower(): name for name in names}
    close = difflib.get_close_matches(written.lower(), by_spelling, n=2, cutoff=0.7)
    return [by_spelling[name] for name in close]


def _field(written: str, fields: list[pa.Field], above: Path, path: Sequence[str]) -> pa.Field:
    by_name = {field.name: field for field in fields}
    if written in by_name:
        return by_name[written]
    alike = [field for field in fields if field.name.lower() == written.lower()]
    if len(alike) == 1:
        return alike[0]
    wanted = repr(".".join(path))
    if alike:
        choices = " or ".join(_dotted(above, field) for field in alike)
        raise InvalidSchema(f"Column {wanted} is ambiguous: write {choices}.")
    close = close_names(written, by_name)
    deeper = [path for path in _paths(fields, above) if path[-1].lower() == written.lower()]
    if deeper:
        hint = f"Did you mean {' or '.join(repr('.'.join(path)) for path in deeper[:2])}?"
    elif close:
        hint = f"Did you mean {' or '.join(_dotted(above, by_name[name]) for name in close)}?"
    elif fields:
        names = ", ".join(field.name for field in fields[:20]) + (", …" if fields[20:] else "")
        inside = f" of {'.'.join(above)!r}" if above else ""
        hint = f"The columns{inside} are {names}."
    else:
        hint = f"{'.'.join(above)!r} has no fields that a path can reach."
    raise InvalidSchema(f"No column {wanted}. {hint}")


def _paths(fields: Iterable[pa.Field], above: Path) -> Iterator[Path]:
    """Every path that leads through structs."""
    for field in fields:
        yield (*above, field.name)
        if pt.is_struct(field.type):
            yield from _paths(field.type, (*above, field.name))


def _dotted(above: Path, field: pa.Field) -> str:
    return repr(".".join((*above, field.name)))
