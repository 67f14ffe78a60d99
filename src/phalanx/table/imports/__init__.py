"""Imports of tables of other systems: sources, plans, and tasks that write their rows.

May import the whole of `table` except `joins`, and `phalanx.foreign` for DuckLake and Iceberg.
Begin with `prepare` (plan an import), then `sources` (open a source), `chunks` (commits that
happen once) and `tasks` (what executors run).
"""
