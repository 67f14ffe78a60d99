"""Streams of Arrow batches in bounded memory: shuffle by partition, spill to disk, hash join."""
