"""Schemas and rows: field ids, JSON forms of Arrow schemas, and the check that rows fit."""
