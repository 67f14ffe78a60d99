"""Search: declared indexes, vector distances, BM25 scores and rankings."""
