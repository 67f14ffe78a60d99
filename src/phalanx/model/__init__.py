"""The pure core: schemas, SQL expressions, predicates, transforms, partition specs and search.

It does no I/O, and may import only `phalanx.errors`, Arrow, NumPy and DataFusion: neither Lance nor
Spark. Begin with `schema.schema`, `predicates.predicate`, `transforms.transform` and `specs.spec`.
"""
