"""Joins of two tables leaf by leaf, without a shuffle where the specs are compatible."""
