"""Lance I/O: the manifest, the leaf tables, and the rows that go in and come out.

May import `phalanx.planning`, `phalanx.model`, `phalanx.errors` and Lance, which the layers below
do not import. Begin with `manifest.manifest` and `leaf.leaf`, then `commit.head`.
"""
