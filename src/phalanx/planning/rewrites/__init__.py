"""The steps of planning a rewrite of data files: filter, group and select.

May import `phalanx.planning.pruning`, `phalanx.planning.formatting` and the layers below
`phalanx.planning`. `phalanx.planning.rewrite` is its public interface.
Begin with `plan` and `entries`, then follow the steps in `filter`, `groups` and `selection`.
"""
