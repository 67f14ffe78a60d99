"""The manifest: a Lance table that lists the namespaces, leaves and properties of a table.

This package reads one version of the manifest, and writes its rows, columns and properties. May
import `storage.leaf`, `storage.state`, `storage.lance` and the pure layers, but not
`storage.search`. Begin with `manifest` (reading) and `changes` (writing); `cached_rows` keeps small
manifests in memory, and `columns` has the columns that the format defines.
"""
