"""Tables of other systems: their catalogs are read and planned by their own rules."""
