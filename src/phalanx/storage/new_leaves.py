"""New leaves: where they are made, and by how many at once."""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import dataclass

import lance
from lance import LanceDataset, LanceOperation

from phalanx.model.rows import plain_schema
from phalanx.model.schema import Schema
from phalanx.storage import leaf
from phalanx.storage.lance_schema import ids_of, lance_schema
from phalanx.storage.location import Location
from phalanx.storage.naming import leaf_directory
from phalanx.storage.steps import Step, reach


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
        if self.job is None:
            return leaf.create(location, schema)
        return created_once(location, schema)


def created_once(location: Location, schema: Schema) -> int:
    """Of several that make the same leaf one does: a clone is the only exclusive way."""
    if (found := _found(location)) is not None:
        return found
    template = _template(schema)
    try:
        template.deep_clone(
            location.uri, template.version, storage_options=location.storage_options
        )
    except OSError:
        if (found := _found(location)) is None:
            raise
        return found
    reach(Step.LEAF_CREATED)
    return int(location.open().version)


def _found(location: Location) -> int | None:
    try:
        return int(location.open().version)
    except (OSError, ValueError) as error:
        if "not found" not in str(error).lower():
            raise
        return None


def _template(schema: Schema) -> lance.LanceDataset:
    """A leaf without rows in memory, with the namespace's field ids."""
    rows = plain_schema(schema).empty_table()
    dataset = lance.write_dataset(rows, f"memory://{uuid.uuid4().hex}")
    if ids_of(dataset) == schema.ids:
        return dataset
    projection = LanceOperation.Project(lance_schema(schema))
    return LanceDataset.commit(dataset, projection, read_version=dataset.version)
