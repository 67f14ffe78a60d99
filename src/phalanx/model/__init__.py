"""The pure core: schemas, SQL expressions, predicates, transforms, partition specs and search.

Does no I/O. May import `phalanx.errors`, Arrow, NumPy and DataFusion, but neither Lance nor
Spark. Begin with `schema.schema`, `predicates.predicate`, `transforms.transform` and `specs.spec`.
"""
