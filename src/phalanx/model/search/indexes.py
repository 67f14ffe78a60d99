"""Indexes that a table declares: every partition should have them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from phalanx.errors import InvalidManifest, PhalanxError, shown
from phalanx.model.schema.names import close_names
from phalanx.model.schema.schema import Schema
from phalanx.model.search.vectors import checked_metric, is_vector, metrics_of, searched_column
from phalanx.model.stored_json import COUNT, INT, OBJECT, TEXT, check_object, parse

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
KINDS = (*VECTOR_KINDS, INVERTED, *SCALAR_KINDS)
_SYNONYMS = {"FTS": INVERTED}
# Fewer vectors are compared one by one in no time, and are too few to train a quantizer with.
_FEWEST_VECTORS = 256
_OF_VECTORS = {
    "num_partitions": int,
    "target_partition_size": int,
    "num_sub_vectors": int,
    "num_bits": int,
    "sample_rate": int,
    "max_iters": int,
    "m": int,
    "ef_construction": int,
}
_OF_TEXTS = {
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
_OF_SCALARS: Mapping[str, Mapping[str, type]] = {
    "ZONEMAP": {"rows_per_zone": int},
    "BLOOMFILTER": {"number_of_items": int, "probability": float},
}


@dataclass(frozen=True, slots=True)
class IndexSpec:
    """An index on a column, which goes by its field id: its kind, and what was chosen about it.

    A partition with fewer rows than `min_rows` has none.
    """

    name: str
    field_id: int
    kind: str
    options: tuple[tuple[str, Any], ...] = ()
    min_rows: int = 1

    @property
    def keywords(self) -> dict[str, Any]:
        """The options by their names."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in self.options}

    @property
    def is_of_vectors(self) -> bool:
        """Whether it finds vectors."""
        return self.kind in VECTOR_KINDS

    @property
    def metric(self) -> str | None:
        """What vectors are compared by."""
        return self.keywords.get("metric")

    @property
    def family(self) -> tuple[int, str]:
        """What there is only one of: the indexes by vectors of a column, or those of one kind."""
        return self.field_id, "vectors" if self.is_of_vectors else self.kind

    def to_dict(self) -> dict[str, Any]:
        """The index as JSON has it."""
        return {
            "name": self.name,
            "field_id": self.field_id,
            "kind": self.kind,
            "options": self.keywords,
            "min_rows": self.min_rows,
        }

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> IndexSpec:
        """The index that JSON describes."""
        return cls(
            found["name"],
            found["field_id"],
            found["kind"],
            _frozen(found["options"]),
            found["min_rows"],
        )


_STORED = {"name": TEXT, "field_id": INT, "kind": TEXT, "options": OBJECT, "min_rows": COUNT}


def indexes_to_json(indexes: Sequence[IndexSpec]) -> str:
    """The declared indexes as text; none are no text."""
    return json.dumps([each.to_dict() for each in indexes]) if indexes else ""


def indexes_from_json(text: str, root: str) -> tuple[IndexSpec, ...]:
    """The declared indexes in a text."""
    what = f"the list of indexes of {root}"
    listed = parse(text, what) if text else []
    if not isinstance(listed, list):
        raise InvalidManifest(
            f"Cannot read {what}: it is {shown(text)}, expected a list. Restore it."
        )
    for each in listed:
        check_object(each, what, _STORED)
    return tuple(map(IndexSpec.from_dict, listed))


def declared(
    column: object,
    kind: object,
    options: Mapping[str, Any],
    min_rows: int | None,
    schema: Schema,
    indexes: Sequence[IndexSpec],
) -> IndexSpec:
    """The index that a user asks for; refuses what no partition could have."""
    field = searched_column(column, schema)
    known = kind.upper() if isinstance(kind, str) else ""
    known = _SYNONYMS.get(known, known)
    if known not in KINDS:
        raise PhalanxError(
            f"Cannot make an index of the kind {kind!r}: expected one of {', '.join(KINDS)}."
        )
    _check_type(field, known)
    chosen = dict(options)
    if known in VECTOR_KINDS:
        metric = chosen.get("metric")
        usual = metrics_of(field.type)[0]
        chosen["metric"] = checked_metric(usual if metric is None else metric, field)
        if known != "IVF_FLAT" and chosen["metric"] == "hamming":
            raise PhalanxError(
                f"Cannot make an index of the kind {known} on column {field.name!r} "
                f"({field.type}): vectors of bytes have IVF_FLAT only."
            )
        if "PQ" in known:
            chosen.setdefault("num_sub_vectors", _sub_vectors(field.type.list_size))
    _check_options(chosen, known)
    parts = chosen.get("num_sub_vectors")
    if parts and field.type.list_size % parts:
        raise PhalanxError(
            f"Cannot make an index of the kind {known} with num_sub_vectors={parts}: expected a "
            f"divisor of {field.type.list_size}, the size of column {field.name!r}."
        )
    fewest = _FEWEST_VECTORS if known in VECTOR_KINDS else 1
    if min_rows is not None:
        if not isinstance(min_rows, int) or isinstance(min_rows, bool) or min_rows < 1:
            raise PhalanxError(
                f"Cannot make an index with min_rows={min_rows!r}: expected a whole number from 1 "
                "on."
            )
        fewest = min_rows
    field_id = schema.id_of(tuple(field.name.split(".")))
    made = IndexSpec("", field_id, known, _frozen(chosen), fewest)
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


def _sub_vectors(size: int) -> int:
    """Into how many parts vectors are cut for quantization: of 16 numbers, or else of 8."""
    return next((size // part for part in (16, 8) if size % part == 0), size)


def _check_type(field: pa.Field, kind: str) -> None:
    given = field.type
    if kind in VECTOR_KINDS:
        fits, expected = is_vector(given), "a fixed-size list of float16, float32, float64 or uint8"
    elif kind in (INVERTED, "NGRAM"):
        fits, expected = is_text(given), "text"
    elif kind == "LABEL_LIST":
        fits, expected = pt.is_list(given) or pt.is_large_list(given), "a list"
    else:
        # Lance makes none of a dictionary.
        fits = not (pt.is_nested(given) or pt.is_dictionary(given))
        expected = "a column of single values, and no dictionary"
    if not fits:
        raise PhalanxError(
            f"Cannot make an index of the kind {kind} on column {field.name!r} ({given}): expected "
            f"{expected}."
        )


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of this type can be searched by words."""
    return bool(pt.is_string(kind) or pt.is_large_string(kind))


def _check_options(chosen: Mapping[str, Any], kind: str) -> None:
    known: Mapping[str, type] = _OF_SCALARS.get(kind, {})
    if kind in VECTOR_KINDS:
        known = {"metric": str, **_OF_VECTORS}
    elif kind == INVERTED:
        known = _OF_TEXTS
    for name, value in chosen.items():
        if name not in known:
            close = close_names(name, known)
            hint = f"Expected {', '.join(known)}." if known else "This kind has no options."
            if close:
                hint = f"Did you mean {close[0]!r}?"
            raise PhalanxError(
                f"Cannot make an index of the kind {kind} with {name}={shown(value)}: there is no "
                f"such option. {hint}"
            )
        wanted = known[name]
        right = isinstance(value, (int, float) if wanted is float else wanted)
        if not right or (wanted is int and (isinstance(value, bool) or value < 1)):
            words = {int: "a whole number from 1 on", bool: "True or False", str: "a text"}
            raise PhalanxError(
                f"Cannot make an index of the kind {kind} with {name}={shown(value)}: expected "
                f"{words.get(wanted, wanted.__name__)}."
            )


def _frozen(options: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    frozen = {name: tuple(v) if isinstance(v, list) else v for name, v in options.items()}
    return tuple(sorted(frozen.items()))
