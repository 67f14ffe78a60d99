"""The history of a strong table: snapshots, the change feed and incremental scans."""
