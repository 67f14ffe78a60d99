"""Lance tables that name their versions as Lance once did, and so can have none that are detached.

Lance can rename them. But a client that has the table open goes on with the old names, and its
commits are lost, or nobody can open the table: so it is for the owner to say when.
"""

from __future__ import annotations

import lance
from lance import LanceDataset, LanceOperation

from phalanx.errors import PhalanxError
from phalanx.storage.lance.location import Location

_SIGN = "v1 manifest paths"


def is_undetachable(error: OSError) -> bool:
    """Whether Lance refused a detached version because of the old names."""
    return _SIGN in str(error).lower()


def check_detachable(dataset: lance.LanceDataset, location: Location, purpose: str) -> None:
    """Refuse a table with the old names; of another one vacuum has a version to remove."""
    try:
        # Nothing else that Lance offers tells how versions are named.
        LanceDataset.commit(
            dataset,
            LanceOperation.Append([]),
            read_version=dataset.version,
            detached=True,
            **location.write_options,
        )
    except OSError as error:
        if not is_undetachable(error):
            raise
        raise PhalanxError(
            f"Cannot {purpose}: {location} has v1 manifest paths, expected v2. While no client has "
            f"it open, call lance.dataset({location.uri!r}).migrate_manifest_paths_v2(), and try "
            "again."
        ) from None
