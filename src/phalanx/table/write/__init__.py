"""Writing to a table: append, overwrite, delete, update, merge, adopt and retain.

May import `table.read` and `table.transactions`, and the layers below `table`.
Begin with `incoming_rows` (the `Target` that statements write to, and the rows they stage), then
`operations`, `transaction` and `merge`.
"""
