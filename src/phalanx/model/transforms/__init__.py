"""Partition transforms: one class for each function from source columns to a partition value.

May import `phalanx.model.predicates`, `sql`, `schema` and `murmur3`, but not `specs`.
Begin with `transform` (the contract and identity), then `buckets`, `calendar_parts`, `truncate`
and `expression`; `foreign`, `iceberg`, `ducklake` and `hive` hold the transforms of other systems.
"""
