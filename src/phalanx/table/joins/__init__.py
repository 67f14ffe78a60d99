"""Storage partitioned joins of two tables: their plan, and the reader of its tasks."""
