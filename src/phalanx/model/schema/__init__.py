"""Schemas and rows: field ids, JSON forms of Arrow schemas, and the check that rows fit.

May import the modules directly in `model` and `phalanx.errors`, and knows no SQL. Begin with
`schema` (the table's schema), then `field_ids` and `rows`.
"""
