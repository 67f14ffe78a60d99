"""BM25 as Lance computes it: scores of documents for the terms of a query.

All searched leaves share one set of statistics, so that their scores are comparable.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

K1, B = 1.2, 0.75
CountArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class CorpusStats:
    """The number of documents with at least one token, and their total number of tokens."""

    count: int = 0
    tokens: int = 0

    def __add__(self, other: CorpusStats) -> CorpusStats:
        return CorpusStats(self.count + other.count, self.tokens + other.tokens)

    @property
    def mean_length(self) -> float:
        """The mean number of tokens of a document."""
        return self.tokens / self.count if self.count else 1.0


def compute_term_weights(documents: int, containing: npt.ArrayLike) -> FloatArray:
    """Compute the weights of terms from the number of documents that contain each."""
    found = np.asarray(containing, np.float64)
    return np.log1p((documents - found + 0.5) / (found + 0.5))


def score_documents(
    counts: CountArray, lengths: CountArray, documents: CorpusStats, containing: CountArray
) -> FloatArray:
    """Score each document; `counts` has a row per document and a column per term."""
    saturation = _compute_saturation(lengths, documents)[:, None]
    of_terms = (
        compute_term_weights(documents.count, containing)
        * counts
        * (K1 + 1)
        / (counts + saturation)
    )
    found: FloatArray = of_terms.sum(axis=1)
    return found


def recover_term_counts(
    score: npt.NDArray[np.float32], lengths: CountArray, documents: CorpusStats
) -> CountArray | None:
    """Compute how often a term occurs in each document from the scores for that term alone.

    The inverse of `score_documents`: `score` must have all documents that contain the term. Return
    None if the scores do not result from these statistics.
    """
    part = score.astype(np.float64) / compute_term_weights(documents.count, len(score))
    with np.errstate(divide="ignore", invalid="ignore"):
        found = part * _compute_saturation(lengths, documents) / (K1 + 1 - part)
    nearest = np.rint(found)
    # Large counts need not be exact: there the score hardly grows and its digits are lost.
    unsure = np.abs(found - nearest) > 0.05 + 1e-3 * nearest
    if not np.isfinite(found).all() or (nearest < 1).any() or unsure.any():
        return None
    return nearest.astype(np.int64)


def _compute_saturation(lengths: CountArray, documents: CorpusStats) -> FloatArray:
    return np.asarray(K1 * (1 - B + B * lengths / documents.mean_length), np.float64)
