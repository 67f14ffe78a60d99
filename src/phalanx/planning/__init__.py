"""Planning: which partitions, files and tasks an operation needs, as values without any I/O.

May import `phalanx.model`, `phalanx.arguments` and `phalanx.errors`, but neither Lance nor Spark.
Begin with `pruning.prune` and `pruning.scan_plan`; `joins.plan`, `rewrite`, `import_plan` and
`change_plan` hold the other plans.
"""
