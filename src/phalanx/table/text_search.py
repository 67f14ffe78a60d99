"""Full-text search over leaves: first the statistics of all of them, then scores by these."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from phalanx.model.best import Best
from phalanx.model.predicates.predicate import TRUE
from phalanx.model.search.bm25 import Documents, scores
from phalanx.storage.lance.parallel import in_parallel
from phalanx.storage.leaf.reading import SCAN_THREADS, LeafScan, in_order
from phalanx.storage.search.full_text import (
    Counted,
    LeafDocuments,
    TextQuery,
    Uncounted,
    documents_of,
    taken_apart,
    texts_of,
)
from phalanx.storage.search.open_leaf import OpenLeaf


def best_texts(scans: Sequence[LeafScan], query: TextQuery, k: int) -> Best:
    """The k rows that match best, with the negative of their scores: the best has the least.

    Documents are weighed by the statistics of all rows of all these leaves, so that scores of
    different leaves compare, whether a leaf has an index or not.
    """
    best = Best(k)
    if not query.terms:
        return best

    def known(place: int) -> LeafDocuments:
        return documents_of(OpenLeaf.of(scans[place]), place, query)

    def read(place: int) -> Iterator[Uncounted]:
        return texts_of(OpenLeaf.of(scans[place]), place, query, told[place])

    told = in_parallel(known, range(len(scans)), SCAN_THREADS)
    documents = sum((each.known for each in told), Documents())
    counted = [part for each in told for part in each.counted]
    unread = [place for place, each in enumerate(told) if each.fragments != () or each.found]
    for more, parts in taken_apart(in_order(unread, SCAN_THREADS, read), query):
        documents += more
        counted += parts
    containing = sum(
        (np.count_nonzero(part.counts, axis=0) for part in counted),
        np.zeros(len(query.terms), np.int64),
    )

    def offer(part: Counted) -> None:
        matched = np.ones(len(part.ids), bool)
        if query.every_term:
            matched &= (part.counts > 0).all(axis=1)
        if scans[part.place].predicate != TRUE and matched.any():
            leaf = OpenLeaf.of(scans[part.place])
            allowed = np.concatenate([ids for _, ids in leaf.filtered([])] or [part.ids[:0]])
            matched &= np.isin(part.ids, allowed)
        values = scores(part.counts[matched], part.lengths[matched], documents, containing)
        best.offer(-values.astype(np.float32), part.place, part.ids[matched])

    in_parallel(offer, counted, SCAN_THREADS)
    return best
