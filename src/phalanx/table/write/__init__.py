"""Writing to a table: append, overwrite, delete, update, merge, adopt and retain."""
