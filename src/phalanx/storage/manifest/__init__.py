"""The manifest: a Lance table that lists the namespaces, leaves and properties of a table."""
