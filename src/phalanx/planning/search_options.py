"""What may be chosen about a search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from phalanx.errors import PhalanxError, shown

# The constant of reciprocal rank fusion that its authors chose, and most others since.
RRF = 60
OPERATORS = ("or", "and")


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """How the best rows are looked for.

    | | |
    |---|---|
    | `metric` | of vectors: l2, cosine, dot; hamming of uint8. By default the declared index's |
    | `use_index` | False: compare with every vector, which is exact |
    | `nprobes` | how many partitions of an IVF index are searched, in each leaf |
    | `refine_factor` | how many times k candidates of a quantized index are compared exactly |
    | `ef` | how many candidates an HNSW index keeps |
    | `operator` | of words: "or", any of them, or "and", all of them |
    | `hybrid` | of a vector search: a column of text and what to look for there, to be fused |
    | `rrf` | the constant of the fusion: ranks count 1 / (rrf + rank) |
    """

    metric: str | None = None
    use_index: bool = True
    nprobes: int | None = None
    refine_factor: int | None = None
    ef: int | None = None
    operator: str = "or"
    hybrid: tuple[str, str] | None = None
    rrf: int = RRF

    def __post_init__(self) -> None:
        if not isinstance(self.use_index, bool):
            raise _refused("use_index", self.use_index, "True or False")
        for name in ("nprobes", "refine_factor", "ef", "rrf"):
            value = getattr(self, name)
            if value is not None or name == "rrf":
                checked_count(name, value)
        if self.operator not in OPERATORS:
            raise _refused("operator", self.operator, "'or' or 'and'")
        pair = self.hybrid
        if pair is not None and not (
            isinstance(pair, tuple | list)
            and len(pair) == 2
            and all(isinstance(each, str) for each in pair)
        ):
            raise _refused("hybrid", pair, "a column of text and the words to look for there")


def checked_count(name: str, value: Any) -> int:
    """The number, if it counts something."""
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 1 << 31:
        raise _refused(name, value, "a whole number from 1 on")
    return value


def _refused(name: str, value: object, expected: str) -> PhalanxError:
    return PhalanxError(f"Cannot search with {name}={shown(value)}: expected {expected}.")
