"""Iceberg tables through pyiceberg: plan scans and rewrites, run rewrites, read rows for an import.

May import `phalanx.foreign.file_systems`, the pure layers and pyiceberg. Begin with `table` and
`state`; `manifests` and `deletes` read the metadata, `rows` reads data files, `rewrite` and
`writing` replace them, and `trust` rejects what an untrusted table must not do.
"""

import importlib.util

if importlib.util.find_spec("pyiceberg") is None:
    raise ModuleNotFoundError("phalanx.iceberg needs pyiceberg: install phalanx-lance[iceberg].")
