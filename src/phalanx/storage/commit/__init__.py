"""Writing leaves, and the one manifest commit that makes a strong transaction visible."""
