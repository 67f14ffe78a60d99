"""Reading a table: plans, scans, searches, and the tables that describe it."""
