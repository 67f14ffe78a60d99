"""Access to single Lance tables: open, scan, commit versions, list and delete files.

May import the pure layers (`phalanx.model`, `phalanx.planning`, `phalanx.errors`) and Lance, but no
other package of `phalanx.storage`. Begin with `location` (where a table is and how it is opened),
then `scanning` and `versions`; `failures` and `retries` handle errors and commit conflicts.
"""
