"""Search in one leaf: the nearest vectors and the documents of a full-text query.

May import `phalanx.storage.leaf`, `state`, `lance` and the pure layers, but not `manifest`; merging
the results of many leaves is done by `phalanx.table.read.search`. Begin with `open_leaf` (the leaf
being searched), then `vectors` or `full_text`, which uses `tokenizer`.
"""
