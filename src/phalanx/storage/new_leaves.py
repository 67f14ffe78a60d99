"""New leaves: where they are made, and by how many at once."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from phalanx.model.schema.schema import Schema
from phalanx.storage.lance.location import Location
from phalanx.storage.leaf import leaf
from phalanx.storage.state.naming import leaf_directory


@dataclass(frozen=True, slots=True)
class NewLeaves:
    """How a writer makes leaves: alone, or as one of the tasks of a job, which share them."""

    job: str | None = None

    def directory(self, object_id: str) -> str:
        """The directory of a new leaf: one that no other has, and the same for a whole job."""
        if self.job is None:
            return leaf_directory(object_id)
        digest = hashlib.blake2b(f"{self.job}/{object_id}".encode(), digest_size=4)
        return leaf_directory(object_id, digest.hexdigest())

    def create(self, location: Location, schema: Schema) -> int:
        """The leaf without rows, unless another task has made it; its version."""
        return leaf.create(location, schema) if self.job is None else created_once(location, schema)


def created_once(location: Location, schema: Schema) -> int:
    """Of several that make the same leaf one does."""
    if (found := _found(location)) is not None:
        return found
    try:
        return leaf.create(location, schema)
    except OSError:
        if (found := _found(location)) is None:
            raise
        return found


def _found(location: Location) -> int | None:
    try:
        return int(location.open().version)
    except (OSError, ValueError) as error:
        if "not found" not in str(error).lower():
            raise
        return None
