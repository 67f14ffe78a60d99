"""The Python data source `format("phalanx")`: batch and stream reads and writes.

May import `pushdown` and `runtime` of `phalanx.spark`, and `phalanx.table` and below.
Begin with `source`, which creates the readers and writers, then `reading` and `writing`.
"""
