"""Tables in the Hive-style layout: folders named `key=value` list the leaves, without a manifest.

This package lists, creates and writes such tables, and upgrades them to the newest format. May
import `storage.commit`, `storage.manifest` and what is below them. Begin with `root` (the state of
a table) and `files` (its folders); `upgrade` converts a table.
"""
