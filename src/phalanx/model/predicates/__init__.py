"""Predicates over rows: their form, binding of `where` texts, evaluation and rendering as SQL."""
