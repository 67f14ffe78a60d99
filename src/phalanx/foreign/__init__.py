"""Tables of other systems, read and planned by the rules of their own catalogs.

May import the pure layers (`phalanx.planning`, `phalanx.model`, `phalanx.arguments` and
`phalanx.errors`), but neither `phalanx.storage` nor Lance. Begin with `ducklake.table` and
`iceberg.table`, which the public modules `phalanx.ducklake` and `phalanx.iceberg` open;
`file_systems` opens the files that a catalog lists.
"""
