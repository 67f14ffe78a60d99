"""Lance I/O: the manifest, the leaf tables, and the rows that go in and come out."""
