"""DuckLake tables: read their catalog, plan scans and rewrites, and read rows for an import."""
