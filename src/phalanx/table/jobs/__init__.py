"""Writes and row changes by many tasks, and the runner that executes tasks elsewhere."""
