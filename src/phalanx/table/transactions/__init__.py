"""Strong mode: staged transactions, the commit that makes them visible, and foreign writes.

May import `table.read`, and the layers below `table`.
Begin with `strong_target` (statements are staged, then committed as one snapshot), then
`strong_mode` (how a namespace enters and leaves strong mode) and `foreign_writes`.
"""
