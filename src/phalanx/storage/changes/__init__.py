"""Which rows a snapshot inserted, deleted and updated: the storage side of the change data feed.

Snapshots are compared by the files of their leaves; updates are recorded in a file of their own.
May import `storage.commit` and what is below it. Begin with `diff` (fragments that differ),
`changed_fragments` (reading their rows) and `updates` (pairs of old and new rows).
"""
