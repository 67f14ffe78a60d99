"""The options of a search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from phalanx.errors import InvalidArgument, PhalanxError, format_value

# The usual constant of reciprocal rank fusion, from the original paper.
DEFAULT_RRF = 60
TEXT_OPERATORS = ("or", "and")


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """The options of a search.

    | | |
    |---|---|
    | `metric` | of vectors: l2, cosine, dot; hamming for uint8. Default: the index's metric |
    | `use_index` | False: compare with every vector, for exact results |
    | `nprobes` | the number of IVF partitions to search, in each leaf |
    | `refine_factor` | compare this many times k candidates of a quantized index exactly |
    | `ef` | the number of candidates of an HNSW index |
    | `operator` | of text search: "or" matches any word, "and" all words |
    | `hybrid` | of vector search: a text column and words to search there; ranks are fused |
    | `rrf` | the constant of rank fusion: a rank scores 1 / (rrf + rank) |
    """

    metric: str | None = None
    use_index: bool = True
    nprobes: int | None = None
    refine_factor: int | None = None
    ef: int | None = None
    operator: str = "or"
    hybrid: tuple[str, str] | None = None
    rrf: int = DEFAULT_RRF

    def __post_init__(self) -> None:
        if not isinstance(self.use_index, bool):
            raise _option_error("use_index", self.use_index, "True or False")
        for name in ("nprobes", "refine_factor", "ef", "rrf"):
            value = getattr(self, name)
            if value is not None or name == "rrf":
                check_count(name, value)
        if self.operator not in TEXT_OPERATORS:
            raise _option_error("operator", self.operator, "'or' or 'and'")
        pair = self.hybrid
        if pair is not None and not (
            isinstance(pair, tuple | list)
            and len(pair) == 2
            and all(isinstance(each, str) for each in pair)
        ):
            raise _option_error("hybrid", pair, "a column of text and the words to look for there")


def check_count(name: str, value: Any) -> int:
    """Return the value if it is a positive 32-bit integer; raise an error otherwise."""
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 1 << 31:
        raise _option_error(name, value, "a positive integer")
    return value


def _option_error(name: str, value: object, expected: str) -> PhalanxError:
    return InvalidArgument(f"Cannot search with {name}={format_value(value)}: expected {expected}.")
