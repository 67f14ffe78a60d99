"""Tables of other systems, read and planned by the rules of their own catalogs.

Modules here may import `phalanx.planning` and `phalanx.model`, but neither `phalanx.storage` nor
Lance. Begin with `ducklake.table` and `iceberg.table`, which the public modules `phalanx.ducklake`
and `phalanx.iceberg` open; `file_systems` opens the files that a catalog lists.
"""
