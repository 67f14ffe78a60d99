"""The history of a strong table: snapshots, the change feed and incremental scans.

May import `table.transactions` and `table.read`, and the layers below `table`.
Begin with `snapshots` (list, read, roll back, compare), then `change_feed` (rows inserted, deleted
and updated) and `incremental_scan` (new rows, as streams read them).
"""
