"""What a projected predicate says about the texts that a catalog stores as partition values.

Each different text is cast once, and asked once whether it can match. The catalog's own SQL then
compares texts, which is fast and means the same in every database.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from phalanx.model.predicates.evaluation import holds
from phalanx.model.predicates.predicate import Always, And, Opaque, Or, Predicate, columns_of

# Longer lists are not worth writing down: what they say is decided on the rows that come back.
_MOST_TEXTS = 1_000


@dataclass(frozen=True, slots=True, eq=False)
class StoredValues:
    """The different values of a partition key: as texts, and in their type; NULL is one of them."""

    texts: pa.Array
    values: pa.Array


def pushed(predicate: Predicate, keys: Mapping[str, tuple[str, StoredValues]]) -> str | None:
    """A condition in SQL that holds wherever the predicate does; None if nothing can be said.

    `keys` has for each column of the predicate the text's expression, and the values there are.
    """
    match predicate:
        case Always(value=value):
            return None if value else "FALSE"
        case Opaque():
            return None
        case And(parts=parts):
            known = [text for part in parts if (text := pushed(part, keys)) is not None]
            return " AND ".join(known) or None
        case Or(parts=parts):
            texts = [pushed(part, keys) for part in parts]
            if None in texts:
                return None
            return f"({' OR '.join(f'({text})' for text in texts)})"
    (path,) = columns_of(predicate)
    column, stored = keys[path[0]]
    return _among(column, stored, predicate, path[0])


def _among(column: str, stored: StoredValues, leaf: Predicate, name: str) -> str | None:
    """That a text is one of those whose values satisfy the leaf."""
    matching = stored.texts.filter(holds(leaf, {name: stored.values}, len(stored.values)))
    if len(matching) == len(stored.texts) or len(matching) > _MOST_TEXTS:
        return None
    texts = [_literal(text) for text in matching.drop_null().to_pylist()]
    parts = [f"{column} IN ({', '.join(texts)})"] if texts else []
    if matching.null_count:
        parts.append(f"{column} IS NULL")
    return f"({' OR '.join(parts)})" if parts else "FALSE"


def damaged(stored: StoredValues) -> str | None:
    """A text that is no value of its type; None if there is none."""
    wrong = stored.texts.filter(pc.and_(stored.values.is_null(), stored.texts.is_valid()))
    return wrong[0].as_py() if len(wrong) else None


def _literal(text: str) -> str:
    escaped = text.replace("'", "''")
    return f"'{escaped}'"
