"""Planning: which partitions, files and tasks an operation needs, as values without any I/O.

The package may import `phalanx.model` and `phalanx.errors`, but neither Lance nor Spark.
Begin with `pruning.prune` and `pruning.scan_plan`; `joins.plan`, `rewrite`, `import_plan` and
`change_plan` hold the other plans.
"""
