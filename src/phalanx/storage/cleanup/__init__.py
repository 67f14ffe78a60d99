"""Removal of files and tables: expired snapshots, orphan files, erased rows, whole tables."""
