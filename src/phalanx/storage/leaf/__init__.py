"""One leaf: a Lance table with the namespace's field ids, holding the rows of one partition.

May import `phalanx.storage.state`, `phalanx.storage.lance` and the pure layers. Begin with `leaf`
(create, write files, apply a change) and `reading`; `staging` makes detached versions for strong
mode, `reconcile` and `fields` handle leaves whose schema differs from the table's.
"""
