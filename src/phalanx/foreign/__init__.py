"""Catalogs of other systems: their schemas, partitionings and files, planned by Phalanx's rules."""
