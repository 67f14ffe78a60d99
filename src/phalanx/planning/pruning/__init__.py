"""Partition pruning: from a predicate on rows to the leaves that may hold matching rows."""
