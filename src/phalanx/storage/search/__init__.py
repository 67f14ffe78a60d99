"""Search in one leaf: the nearest vectors and the documents of a full-text query."""
