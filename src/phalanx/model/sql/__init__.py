"""SQL expressions: parsing, type checking and evaluation through DataFusion.

May import `model.schema` and the modules directly in `model`, but neither `model.predicates` nor
`model.transforms`. Begin with `syntax` (expressions as values), then `engine` (parse, bind and
evaluate) and `literals` (constants).
"""
