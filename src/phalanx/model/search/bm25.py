"""BM25, as Lance has it: how well documents match the terms of a query, by shared statistics."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

K1, B = 1.2, 0.75
Numbers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Documents:
    """Some documents: how many have any token at all, and their tokens together."""

    count: int = 0
    tokens: int = 0

    def __add__(self, other: Documents) -> Documents:
        return Documents(self.count + other.count, self.tokens + other.tokens)

    @property
    def mean_length(self) -> float:
        """The tokens of a document."""
        return self.tokens / self.count if self.count else 1.0


def weight(documents: int, containing: npt.ArrayLike) -> Floats:
    """What a term counts that so many of the documents contain."""
    found = np.asarray(containing, np.float64)
    return np.log1p((documents - found + 0.5) / (found + 0.5))


def scores(counts: Numbers, lengths: Numbers, documents: Documents, containing: Numbers) -> Floats:
    """The score of each document, of which `counts` has a row: how often each term is in it."""
    saturation = _saturation(lengths, documents)[:, None]
    of_terms = weight(documents.count, containing) * counts * (K1 + 1) / (counts + saturation)
    found: Floats = of_terms.sum(axis=1)
    return found


def frequencies(
    score: npt.NDArray[np.float32], lengths: Numbers, documents: Documents
) -> Numbers | None:
    """How often a term is in each document that contains it, from its scores for that term alone.

    The reverse of `scores`: all documents that contain the term must be there. None if the scores
    are not those of these statistics.
    """
    part = score.astype(np.float64) / weight(documents.count, len(score))
    with np.errstate(divide="ignore", invalid="ignore"):
        found = part * _saturation(lengths, documents) / (K1 + 1 - part)
    nearest = np.rint(found)
    # Very often is often enough: there the score hardly grows, and its last digits are gone.
    unsure = np.abs(found - nearest) > 0.05 + 1e-3 * nearest
    if not np.isfinite(found).all() or (nearest < 1).any() or unsure.any():
        return None
    return nearest.astype(np.int64)


def _saturation(lengths: Numbers, documents: Documents) -> Floats:
    return np.asarray(K1 * (1 - B + B * lengths / documents.mean_length), np.float64)
