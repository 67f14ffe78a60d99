"""Operations that maintain a table: health, rewrite, vacuum, erase, verify, indexes, upgrade.

May import `phalanx.table.jobs` and the packages of `table` below it, but not
`phalanx.table.table`. Begin with `rewrite`, which plans and runs a compaction, and `vacuum`, which
expires snapshots and removes files; each other module is one operation of `Table`.
"""
