"""Strong mode: staged transactions, the one commit that publishes them, and foreign writes.

Imports `table.read`, and the layers below `table`.
Begin with `strong_target` (statements are staged, then committed as one snapshot), then
`strong_mode` (how a namespace enters and leaves strong mode) and `foreign_writes`.
"""
