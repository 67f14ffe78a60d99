"""Functions of `phalanx.spark` that run whole jobs: ingest, import, join, merge and search."""
