"""DuckLake tables: read their catalog, plan scans and rewrites, and read rows for an import.

May import `phalanx.foreign.file_systems` and the pure layers; DuckDB is imported only when a
catalog is opened. Begin with `table` and `plan`; `connection` and `catalog` read the catalog,
`import_source` and `units` read the rows.
"""
