"""Hides pandas, which takes a third of each worker's start. PyArrow works without it."""

raise ImportError("left out")
