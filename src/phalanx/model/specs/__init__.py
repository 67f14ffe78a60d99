"""Partition specs and partition keys, their stored forms, and what users write to define them.

May import all other packages of `phalanx.model`.
Begin with `spec` and `partition_key`, then `partition_by` (user input) and `evolution` (new spec
versions); `expression_draft` and the `hive_*` modules are the other layouts.
"""
