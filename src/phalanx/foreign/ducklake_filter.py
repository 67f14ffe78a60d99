"""What of a projected predicate the catalog's own SQL can decide, so that fewer rows leave it.

Only conditions whose meaning is the same in every database are pushed: whole numbers and texts.
Whatever is left out here is decided afterwards, on the rows that come back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pt

from phalanx.model.predicate import (
    Always,
    And,
    Compare,
    In,
    IsNull,
    NotNull,
    Or,
    Predicate,
)
from phalanx.model.syntax import Column

_MOST_VALUES = 1_000


@dataclass(frozen=True, slots=True)
class StoredValue:
    """Where a partition value stands in a query: its text, and the type that it has."""

    text: str
    cast: str
    type: pa.DataType

    @property
    def typed(self) -> str:
        """The value in its type."""
        return self.text if self.cast == "VARCHAR" else f"CAST({self.text} AS {self.cast})"


def pushed(predicate: Predicate, values: Mapping[str, StoredValue]) -> str | None:
    """A condition in SQL that holds wherever the predicate does; None if nothing can be said."""
    match predicate:
        case Always(value=value):
            return None if value else "FALSE"
        case And(parts=parts):
            known = [text for part in parts if (text := pushed(part, values)) is not None]
            return " AND ".join(known) or None
        case Or(parts=parts):
            texts = [pushed(part, values) for part in parts]
            if None in texts:
                return None
            return f"({' OR '.join(f'({text})' for text in texts)})"
        case Compare(term=term) | In(term=term) | IsNull(term=term) | NotNull(term=term):
            value = values.get(term.path[0]) if isinstance(term, Column) else None
            return None if value is None else _leaf(predicate, value)
    return None


def _leaf(leaf: Predicate, value: StoredValue) -> str | None:
    match leaf:
        case IsNull():
            return f"{value.text} IS NULL"
        case NotNull():
            return f"{value.text} IS NOT NULL"
        case Compare(operator=operator, value=constant) if pt.is_integer(value.type):
            return f"{value.typed} {operator} {_literal(constant)}"
        case In(values=constants) if len(constants) <= _MOST_VALUES and _is_exact(value.type):
            return f"{value.typed} IN ({', '.join(map(_literal, constants))})"
    return None


def _is_exact(kind: pa.DataType) -> bool:
    return bool(pt.is_integer(kind) or pt.is_string(kind))


def _literal(value: pa.Scalar) -> str:
    plain = value.as_py()
    if isinstance(plain, str):
        escaped = plain.replace("'", "''")
        return f"'{escaped}'"
    return str(int(plain))
