"""Iceberg tables through pyiceberg: plan scans and rewrites, run rewrites, read their rows."""
