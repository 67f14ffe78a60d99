"""Resolution of column names: the exact match, else the only one that differs in case."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import pyarrow as pa
import pyarrow.types as pt

from phalanx.errors import InvalidSchema

FieldPath: TypeAlias = tuple[str, ...]


def resolve_path(path: Sequence[str], schema: pa.Schema) -> FieldPath:
    """Return the exact path of a column, or of a field inside struct columns.

    Raise `InvalidSchema` if no column matches, naming similar ones, or if several match.
    """
    exact: list[str] = []
    fields: Iterable[pa.Field] = schema
    for written in path:
        found = _resolve_field(written, list(fields), tuple(exact), path)
        exact.append(found.name)
        fields = found.type if pt.is_struct(found.type) else ()
    return tuple(exact)


def find_close_names(written: str, names: Iterable[str]) -> list[str]:
    """Return up to two names similar to the written one, the closest first."""
    by_spelling = {name.lower(): name for name in names}
    close = difflib.get_close_matches(written.lower(), by_spelling, n=2, cutoff=0.7)
    return [by_spelling[name] for name in close]


def _resolve_field(
    written: str, fields: list[pa.Field], above: FieldPath, path: Sequence[str]
) -> pa.Field:
    by_name = {field.name: field for field in fields}
    if written in by_name:
        return by_name[written]
    matching = [field for field in fields if field.name.lower() == written.lower()]
    if len(matching) == 1:
        return matching[0]
    wanted = repr(".".join(path))
    if matching:
        choices = " or ".join(_quote_path(above, field) for field in matching)
        raise InvalidSchema(f"Column {wanted} is ambiguous: write {choices}.")
    close = find_close_names(written, by_name)
    deeper = [path for path in _list_paths(fields, above) if path[-1].lower() == written.lower()]
    if deeper:
        hint = f"Did you mean {' or '.join(repr('.'.join(path)) for path in deeper[:2])}?"
    elif close:
        hint = f"Did you mean {' or '.join(_quote_path(above, by_name[name]) for name in close)}?"
    elif fields:
        names = ", ".join(field.name for field in fields[:20]) + (", …" if fields[20:] else "")
        inside = f" of {'.'.join(above)!r}" if above else ""
        hint = f"The columns{inside} are {names}."
    else:
        hint = f"{'.'.join(above)!r} has no fields that a path can reach."
    raise InvalidSchema(f"No column {wanted}. {hint}")


def _list_paths(fields: Iterable[pa.Field], above: FieldPath) -> Iterator[FieldPath]:
    """Iterate over the paths of all fields, through structs."""
    for field in fields:
        yield (*above, field.name)
        if pt.is_struct(field.type):
            yield from _list_paths(field.type, (*above, field.name))


def _quote_path(above: FieldPath, field: pa.Field) -> str:
    return repr(".".join((*above, field.name)))
