"""The state of a table in any layout: its properties, its leaves, and the names of partitions."""
