"""Indexes that a table declares, and that every partition should have."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from phalanx.errors import InvalidArgument, InvalidManifest, format_value
from phalanx.model.schema.names import find_close_names
from phalanx.model.schema.schema import Schema
from phalanx.model.search.vectors import (
    is_vector,
    metrics_of,
    resolve_metric,
    resolve_search_column,
)
from phalanx.model.stored_json import COUNT, INT, OBJECT, TEXT, check_object, parse_json

VECTOR_KINDS = (
    "IVF_FLAT",
    "IVF_PQ",
    "IVF_SQ",
    "IVF_RQ",
    "IVF_HNSW_FLAT",
    "IVF_HNSW_PQ",
    "IVF_HNSW_SQ",
)
INVERTED = "INVERTED"
SCALAR_KINDS = ("BTREE", "BITMAP", "LABEL_LIST", "NGRAM", "ZONEMAP", "BLOOMFILTER")
INDEX_KINDS = (*VECTOR_KINDS, INVERTED, *SCALAR_KINDS)
_SYNONYMS = {"FTS": INVERTED}
# Fewer vectors are fast to compare one by one, and too few to train a quantizer.
_MIN_VECTORS = 256
_VECTOR_OPTIONS = {
    "num_partitions": int,
    "target_partition_size": int,
    "num_sub_vectors": int,
    "num_bits": int,
    "sample_rate": int,
    "max_iters": int,
    "m": int,
    "ef_construction": int,
}
_TEXT_OPTIONS = {
    "with_position": bool,
    "base_tokenizer": str,
    "language": str,
    "max_token_length": int,
    "lower_case": bool,
    "stem": bool,
    "remove_stop_words": bool,
    "custom_stop_words": list,
    "ascii_folding": bool,
    "min_ngram_length": int,
    "max_ngram_length": int,
    "prefix_only": bool,
    "block_size": int,
}
_SCALAR_OPTIONS: Mapping[str, Mapping[str, type]] = {
    "ZONEMAP": {"rows_per_zone": int},
    "BLOOMFILTER": {"number_of_items": int, "probability": float},
}


@dataclass(frozen=True, slots=True)
class IndexSpec:
    """A declared index of a column.

    Attributes:
        name: The name of the index.
        field_id: The field id of the column.
        kind: The kind, such as "IVF_PQ", "INVERTED" or "BTREE".
        options: Lance's options of that kind, as pairs of name and value.
        min_rows: A partition with fewer rows has no such index.
    """

    name: str
    field_id: int
    kind: str
    options: tuple[tuple[str, Any], ...] = ()
    min_rows: int = 1

    @property
    def keywords(self) -> dict[str, Any]:
        """The options by name."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in self.options}

    @property
    def is_vector_index(self) -> bool:
        """Whether it is an index of vectors."""
        return self.kind in VECTOR_KINDS

    @property
    def metric(self) -> str | None:
        """The metric of a vector index."""
        return self.keywords.get("metric")

    @property
    def family(self) -> tuple[int, str]:
        """A column has one index per family: all vector kinds are one, other kinds their own."""
        return self.field_id, "vectors" if self.is_vector_index else self.kind

    def to_dict(self) -> dict[str, Any]:
        """Return the index as a JSON object."""
        return {
            "name": self.name,
            "field_id": self.field_id,
            "kind": self.kind,
            "options": self.keywords,
            "min_rows": self.min_rows,
        }

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> IndexSpec:
        """Return the index that a JSON object describes."""
        return cls(
            found["name"],
            found["field_id"],
            found["kind"],
            _freeze_options(found["options"]),
            found["min_rows"],
        )


_STORED_KEYS = {"name": TEXT, "field_id": INT, "kind": TEXT, "options": OBJECT, "min_rows": COUNT}


def indexes_to_json(indexes: Sequence[IndexSpec]) -> str:
    """Write the declared indexes as JSON; an empty text if there are none."""
    return json.dumps([each.to_dict() for each in indexes]) if indexes else ""


def indexes_from_json(text: str, root: str) -> tuple[IndexSpec, ...]:
    """Read the declared indexes from JSON."""
    what = f"the list of indexes of {root}"
    listed = parse_json(text, what) if text else []
    if not isinstance(listed, list):
        raise InvalidManifest(
            f"Cannot read {what}: it is {format_value(text)}, expected a list. Restore it."
        )
    for each in listed:
        check_object(each, what, _STORED_KEYS)
    return tuple(map(IndexSpec.from_dict, listed))


def declare_index(
    column: object,
    kind: object,
    options: Mapping[str, Any],
    min_rows: int | None,
    schema: Schema,
    indexes: Sequence[IndexSpec],
) -> IndexSpec:
    """Return the index that a user asks for; refuse one that no partition could have."""
    field = resolve_search_column(column, schema)
    known = kind.upper() if isinstance(kind, str) else ""
    known = _SYNONYMS.get(known, known)
    if known not in INDEX_KINDS:
        raise InvalidArgument(
            f"Cannot make an index of the kind {kind!r}: expected one of {', '.join(INDEX_KINDS)}."
        )
    _check_type(field, known)
    chosen = dict(options)
    if known in VECTOR_KINDS:
        metric = chosen.get("metric")
        usual = metrics_of(field.type)[0]
        chosen["metric"] = resolve_metric(usual if metric is None else metric, field)
        if known != "IVF_FLAT" and chosen["metric"] == "hamming":
            raise InvalidArgument(
                f"Cannot make an index of the kind {known} on column {field.name!r} "
                f"({field.type}): vectors of bytes support only IVF_FLAT."
            )
        if "PQ" in known:
            chosen.setdefault("num_sub_vectors", _choose_sub_vectors(field.type.list_size))
    _check_options(chosen, known)
    parts = chosen.get("num_sub_vectors")
    if parts and field.type.list_size % parts:
        raise InvalidArgument(
            f"Cannot make an index of the kind {known} with num_sub_vectors={parts}: expected a "
            f"divisor of {field.type.list_size}, the size of column {field.name!r}."
        )
    fewest = _MIN_VECTORS if known in VECTOR_KINDS else 1
    if min_rows is not None:
        if not isinstance(min_rows, int) or isinstance(min_rows, bool) or min_rows < 1:
            raise InvalidArgument(
                f"Cannot make an index with min_rows={min_rows!r}: expected a positive integer."
            )
        fewest = min_rows
    field_id = schema.id_of(tuple(field.name.split(".")))
    made = IndexSpec("", field_id, known, _freeze_options(chosen), fewest)
    for other in indexes:
        if other.family == made.family:
            return IndexSpec(other.name, field_id, known, made.options, fewest)
    taken = {each.name for each in indexes}
    name = f"{field.name}_idx"
    if name in taken:
        name = f"{field.name}_{known.lower()}_idx"
    while name in taken:
        name += "_"
    return IndexSpec(name, field_id, known, made.options, fewest)


def _choose_sub_vectors(size: int) -> int:
    """Choose the number of sub-vectors for quantization: of 16 numbers each, or else of 8."""
    return next((size // part for part in (16, 8) if size % part == 0), size)


def _check_type(field: pa.Field, kind: str) -> None:
    given = field.type
    if kind in VECTOR_KINDS:
        fits, expected = is_vector(given), "a fixed-size list of float16, float32, float64 or uint8"
    elif kind in (INVERTED, "NGRAM"):
        fits, expected = is_searchable_text(given), "text"
    elif kind == "LABEL_LIST":
        fits, expected = pt.is_list(given) or pt.is_large_list(given), "a list"
    else:
        # Lance cannot index a dictionary.
        fits = not (pt.is_nested(given) or pt.is_dictionary(given))
        expected = "a column of single values that is not a dictionary"
    if not fits:
        raise InvalidArgument(
            f"Cannot make an index of the kind {kind} on column {field.name!r} ({given}): expected "
            f"{expected}."
        )


def is_searchable_text(kind: pa.DataType) -> bool:
    """Return whether a column of this type supports full-text search."""
    return bool(pt.is_string(kind) or pt.is_large_string(kind))


def _check_options(chosen: Mapping[str, Any], kind: str) -> None:
    known: Mapping[str, type] = _SCALAR_OPTIONS.get(kind, {})
    if kind in VECTOR_KINDS:
        known = {"metric": str, **_VECTOR_OPTIONS}
    elif kind == INVERTED:
        known = _TEXT_OPTIONS
    for name, value in chosen.items():
        if name not in known:
            close = find_close_names(name, known)
            hint = f"Expected {', '.join(known)}." if known else "This kind has no options."
            if close:
                hint = f"Did you mean {close[0]!r}?"
            raise InvalidArgument(
                f"Cannot make an index of the kind {kind} with {name}={format_value(value)}: there "
                f"is no such option. {hint}"
            )
        wanted = known[name]
        right = isinstance(value, (int, float) if wanted is float else wanted)
        if not right or (wanted is int and (isinstance(value, bool) or value < 1)):
            words = {int: "a positive integer", bool: "True or False", str: "a text"}
            raise InvalidArgument(
                f"Cannot make an index of the kind {kind} with {name}={format_value(value)}: "
                f"expected {words.get(wanted, wanted.__name__)}."
            )


def _freeze_options(options: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    frozen = {name: tuple(v) if isinstance(v, list) else v for name, v in options.items()}
    return tuple(sorted(frozen.items()))
