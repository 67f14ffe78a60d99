"""Predicates over rows: their form, binding of `where` texts, evaluation and rendering as SQL.

May import `model.sql`, `model.schema` and the modules directly in `model`, but neither
`model.transforms` nor `model.specs`. Begin with `predicate` (the values), then `binding` (from
text) and `rendering` (to Lance and DataFusion).
"""
