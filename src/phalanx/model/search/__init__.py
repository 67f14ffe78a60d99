"""Search: declared indexes, vector distances, BM25 scores and rankings.

May import `model.schema` and the modules directly in `model`, but not `model.sql`. Begin with
`indexes` (what a table declares), then `vectors` and `ranking`.
"""
