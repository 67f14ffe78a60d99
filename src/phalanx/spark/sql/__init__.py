"""Spark SQL: the catalog, and the planner process that answers the Java classes in `java/`."""
