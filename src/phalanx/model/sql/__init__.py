"""SQL expressions: parsing, type checking and evaluation through DataFusion."""
