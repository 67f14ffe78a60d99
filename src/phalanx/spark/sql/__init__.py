"""Spark SQL: the catalog, and the planner process that answers the Java classes in `java/`.

May import `source`, `pushdown` and `runtime` of `phalanx.spark`, and `phalanx.table` and below.
Begin with `planner` and docs/BRIDGE.md, then `catalog`; `bridge` compiles the Java classes.
"""
