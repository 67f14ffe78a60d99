"""Removal of files and tables: expired snapshots, orphan files, erased rows, whole tables.

This package decides what can be removed and removes it; `table.maintenance` calls it. May import
every other package of `storage`. Begin with `expiry` (snapshots), `unlisted` (files of one Lance
table) and `debris` (files of a namespace); `erasure` and `table_folders` stand by themselves.
"""
