"""Benchmarks: ratios measured in one run against what a user would take instead."""
