"""Reading a table: plans, scans, searches, and the tables that describe it.

May import `storage` and the layers below it, and no other package of `table`.
Begin with `scan` (plan and read), then `scan_tasks` (a scan split for many machines), `search`,
`inspection` (partitions, files and specs as Arrow tables) and `rewrite_planning`.
"""
