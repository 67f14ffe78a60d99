"""The state of a table in any layout: its properties, its leaves, and the names of partitions.

May import `phalanx.storage.lance` and the pure layers. Begin with `table_state` (the interface that
the manifest and the Hive layout implement), then `properties` (schema, specs, mode).
"""
