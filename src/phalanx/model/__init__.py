"""The pure core: schema, transforms, expressions, predicates, specs. No I/O, Lance or Spark."""
