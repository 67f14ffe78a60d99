"""Phalanx: one logical table made of many Lance tables."""
