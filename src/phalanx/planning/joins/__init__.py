"""Joins of two tables leaf by leaf, without a shuffle where the specs are compatible.

May import all other modules of `phalanx.planning`, and the layers below `phalanx.planning`.
Begin with `plan`, then `compatibility` (which fields group a join), `leaves` and `groups` (which
leaves are joined together) and `execution` (tasks and shuffles).
"""
