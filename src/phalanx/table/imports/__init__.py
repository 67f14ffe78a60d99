"""Imports of tables of other systems: sources, plans, and tasks that write their rows."""
