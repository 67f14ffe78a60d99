"""Lance I/O: the manifest, the leaf tables, and the rows that go in and come out.

The layers below import no Lance. This one may import `phalanx.planning`, `phalanx.model` and
`phalanx.errors`. Begin with `manifest.manifest` and `leaf.leaf`, then `commit.head`.
"""
