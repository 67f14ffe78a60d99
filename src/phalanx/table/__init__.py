"""Tables as users see them: `Table`, and how to create and open one.

This layer runs the plans of `planning` on the leaves and manifests of `storage`. May import
`phalanx.storage`, `phalanx.foreign` and the pure layers, but not Spark: work for Spark goes to a
runner that `phalanx/__init__.py` registers. Begin with `table.py`, whose methods delegate to the
packages below, and `handle.py`, which checks what a write needs.
"""
