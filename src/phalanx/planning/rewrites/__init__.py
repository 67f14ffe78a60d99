"""The steps of planning a rewrite of data files: filter, group and select.

The package may import `phalanx.planning.pruning`, `phalanx.planning.formatting` and
`phalanx.model`; `phalanx.planning.rewrite` is its public interface.
Begin with `plan` and `entries`, then follow the steps in `filter`, `groups` and `selection`.
"""
