"""Partition specs and partition keys, their stored forms, and what users write to define them."""
