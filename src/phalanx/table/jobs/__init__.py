"""Writes and row changes by many tasks, and the runner that executes tasks elsewhere.

May import `table.history`, `table.write` and the packages below them, but not Spark.
Begin with `write_job` (tasks write files, the driver commits them), then `task_files`, `row_job`
(changes of single rows by their ids) and `work` (the `Runner` that a session is turned into).
"""
