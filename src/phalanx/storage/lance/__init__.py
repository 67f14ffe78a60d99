"""Access to single Lance tables: open, scan, commit versions, list and delete files."""
