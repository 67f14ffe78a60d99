"""Partition pruning: from a predicate on rows to the leaves that may hold matching rows.

May import `phalanx.planning.formatting` and the layers below `phalanx.planning`.
Begin with `prune` and `projection`, which uses `points` and `date_chain`, then `residual` and
`scan_plan`; `leaf_columns` names the columns of the tables of leaves.
"""
