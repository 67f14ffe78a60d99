"""Partition transforms: one class for each function from source columns to a partition value."""
