"""Benchmarks: ratios measured in one run against the alternative a user would choose."""
