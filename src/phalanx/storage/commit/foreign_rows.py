"""What someone wrote to a leaf past Phalanx, checked before it becomes part of the table."""

from __future__ import annotations

import dataclasses
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc
from lance.fragment import FragmentMetadata

from phalanx.errors import PhalanxError, SchemaMismatch
from phalanx.model.schema.grouping import positions
from phalanx.model.schema.rows import plain_schema
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.partition_key import PartitionKey, keyed, keys_of
from phalanx.model.specs.spec import PartitionSpec
from phalanx.planning.pruning.fields import source_columns
from phalanx.planning.pruning.scan_plan import OBJECT_ID
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.scanning import batches_of
from phalanx.storage.lance.schema import ids_of, is_aligned
from phalanx.storage.manifest.manifest import Manifest

_WHAT_TO_DO = "Take it back with discard_foreign_writes(), and append the rows to the table."


def check_columns_kept(dataset: lance.LanceDataset, schema: Schema, location: Location) -> None:
    """Refuse other columns than the namespace's: names, types, order, metadata, field ids.

    Who replaces a leaf past Phalanx numbers its fields anew: an id may mean another column then.
    """
    wanted = plain_schema(schema)
    if not is_aligned(dataset, schema):
        raise SchemaMismatch(
            f"Cannot keep what someone wrote to {location}: its columns are "
            f"{_shown(dataset.schema, ids_of(dataset))}, expected {_shown(wanted, schema.ids)} as "
            f"in the table. {_WHAT_TO_DO}"
        )
    for found, field in zip(dataset.schema, wanted, strict=True):
        # Metadata of a field can say how its bytes are to be read.
        if not found.equals(field, check_metadata=True):
            raise SchemaMismatch(
                f"Cannot keep what someone wrote to {location}: its column {field.name!r} has "
                f"{found.metadata or 'no metadata'}, expected {field.metadata or 'none'}. "
                f"{_WHAT_TO_DO}"
            )


def check_partition_kept(
    manifest: Manifest,
    object_id: str,
    location: Location,
    before: lance.LanceDataset,
    after: lance.LanceDataset,
) -> None:
    """Refuse rows of another partition than the leaf's, in files that it did not have before.

    A scan would leave them out wherever it prunes by their own partition.
    """
    schema = manifest.properties.schema
    spec, expected = _partition(manifest, object_id)
    known = {fragment.fragment_id: _contents(fragment.metadata) for fragment in _all(before)}
    fragments = [
        fragment
        for fragment in _all(after)
        if known.get(fragment.fragment_id) != _contents(fragment.metadata)
    ]
    if not (fragments and spec.fields):
        return
    columns = source_columns(spec, schema)
    for batch in batches_of(after, columns=columns, fragments=fragments):
        keys = keyed(spec, batch, schema).keys
        wrong = positions(keys, expected) < 0
        if wrong.any():
            found, *_ = keys_of(keys.filter(pa.array(wrong)))
            [own] = keys_of(expected)
            raise PhalanxError(
                f"Cannot keep what someone wrote to {location}: it has rows of the partition "
                f"{_values(found, spec)}, expected {_values(own, spec)} alone "
                f"({spec.label(schema)}). {_WHAT_TO_DO}"
            )


def _partition(manifest: Manifest, object_id: str) -> tuple[PartitionSpec, pa.Table]:
    """The spec of a leaf and its key, without the fields whose source columns are gone."""
    schema = manifest.properties.schema
    for number, leaves in manifest.leaves().items():
        own = leaves.filter(pc.equal(leaves.column(OBJECT_ID), object_id))
        if own.num_rows:
            spec = manifest.properties.specs[number]
            told = tuple(
                field
                for field in spec.fields
                if all(schema.path_of(source) is not None for source in field.source_ids)
            )
            key = manifest.keys_of_leaves(number, own)
            gone = [field.field_id for field in spec.fields if field not in told]
            return dataclasses.replace(spec, fields=told), key.drop_columns(gone)
    raise AssertionError(f"{object_id} is no leaf")


def _all(dataset: lance.LanceDataset) -> list[Any]:
    return list(dataset.get_fragments())


def _contents(fragment: FragmentMetadata) -> tuple[Any, Any]:
    """What holds the rows of a fragment, the deleted ones included."""
    return fragment.files, fragment.overlays


def _values(key: PartitionKey, spec: PartitionSpec) -> str:
    return ", ".join(
        f"{field.field_id}={value!r}" for field, value in zip(spec.fields, key.values, strict=True)
    )


def _shown(schema: pa.Schema, ids: tuple[int, ...]) -> str:
    columns = ", ".join(
        f"{field.name} {field.type}{'' if field.nullable else ' not null'}" for field in schema
    )
    return f"({columns}) with the field ids {', '.join(map(str, ids))}"
