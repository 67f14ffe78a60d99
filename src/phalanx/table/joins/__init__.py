"""Storage partitioned joins of two tables: their plan, and the reader of its tasks.

May import the whole of `table` except `imports`, and the layers below `table`.
Begin with `prepare` (plan a join), then `reader` (the columns and the rows of a task).
"""
