"""Writing leaves, and the one manifest commit that makes a strong transaction visible.

A strong write stages versions of leaves, commits a snapshot to the manifest and then publishes the
leaves' main branches; a weak write changes each main branch by itself. May import
`storage.manifest`, `storage.leaf`, `storage.streams` and what is below them. Begin with `head` (the
manifest commit), `publishing` (updates the main branches) and `writing` (files and weak mode).
"""
