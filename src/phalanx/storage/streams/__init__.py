"""Streams of Arrow batches in bounded memory: shuffle by partition, spill to disk, hash join.

Works on Arrow data only. May import the pure layers, but no other package of `phalanx.storage`.
Begin with `shuffle` (rows split by partition before they are written), then `hash_join` and
`spill_buffer`.
"""
