"""Tables of other systems: their catalogs are read, never written, and planned by their own rules."""
