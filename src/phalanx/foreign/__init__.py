"""Tables of other systems: planned by the rules of each, from its own catalog."""
