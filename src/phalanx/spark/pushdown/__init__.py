"""What a query pushes down to a scan: conditions, aggregates and partitioning.

May import `runtime` of `phalanx.spark`, and `phalanx.table` and below.
Begin with `conditions`, which translates Spark's expressions, then `queries`.
"""
