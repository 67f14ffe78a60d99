"""Functions of `phalanx.spark` that run whole jobs: ingest, import, join, merge and search.

May import `source`, `pushdown` and `runtime` of `phalanx.spark`, and `phalanx.table` and below.
Begin with `join`, whose work runs on executors, or with `ingest` and `table_imports`.
"""
