"""Checks of foreign writes to a leaf before they become part of the table."""

from __future__ import annotations

import dataclasses
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc
from lance.fragment import FragmentMetadata

from phalanx.errors import PhalanxError, SchemaMismatch
from phalanx.model.schema.grouping import find_positions
from phalanx.model.schema.rows import to_row_schema
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.partition_key import PartitionKey, group_by_partition, read_keys
from phalanx.model.specs.spec import PartitionSpec
from phalanx.planning.pruning.fields import list_source_columns
from phalanx.planning.pruning.leaf_columns import LEAF_OBJECT_ID
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.scanning import scan_batches
from phalanx.storage.lance.schema import field_ids_of, is_aligned
from phalanx.storage.manifest.manifest import Manifest

_REMEDY = "Undo it with discard_foreign_writes(), and append the rows to the table."


def check_foreign_columns(dataset: lance.LanceDataset, schema: Schema, location: Location) -> None:
    """Refuse columns that differ from the namespace's: names, types, order, metadata, ids.

    A program that replaces a leaf assigns new field ids, which may belong to other columns.
    """
    wanted = to_row_schema(schema)
    if not is_aligned(dataset, schema):
        found_columns = _format_columns(dataset.schema, field_ids_of(dataset))
        raise SchemaMismatch(
            f"Cannot keep the foreign writes to {location}: its columns are {found_columns}, "
            f"expected {_format_columns(wanted, schema.ids)} as in the table. {_REMEDY}"
        )
    for found, field in zip(dataset.schema, wanted, strict=True):
        # The metadata of a field may define how to read its bytes.
        if not found.equals(field, check_metadata=True):
            raise SchemaMismatch(
                f"Cannot keep the foreign writes to {location}: its column {field.name!r} has "
                f"{found.metadata or 'no metadata'}, expected {field.metadata or 'none'}. "
                f"{_REMEDY}"
            )


def check_foreign_partition(
    manifest: Manifest,
    object_id: str,
    location: Location,
    before: lance.LanceDataset,
    after: lance.LanceDataset,
) -> None:
    """Refuse rows of another partition in files that the leaf did not have before.

    A scan that prunes by their own partition would miss them.
    """
    schema = manifest.properties.schema
    spec, expected = _find_partition(manifest, object_id)
    known = {
        fragment.fragment_id: _files_of(fragment.metadata) for fragment in _list_fragments(before)
    }
    fragments = [
        fragment
        for fragment in _list_fragments(after)
        if known.get(fragment.fragment_id) != _files_of(fragment.metadata)
    ]
    if not (fragments and spec.fields):
        return
    columns = list_source_columns(spec, schema)
    for batch in scan_batches(after, columns=columns, fragments=fragments):
        keys = group_by_partition(spec, batch, schema).keys
        wrong = find_positions(keys, expected) < 0
        if wrong.any():
            found, *_ = read_keys(keys.filter(pa.array(wrong)))
            [own] = read_keys(expected)
            raise PhalanxError(
                f"Cannot keep the foreign writes to {location}: it has rows of the partition "
                f"{_format_values(found, spec)}, expected {_format_values(own, spec)} alone "
                f"({spec.label(schema)}). {_REMEDY}"
            )


def _find_partition(manifest: Manifest, object_id: str) -> tuple[PartitionSpec, pa.Table]:
    """Return the spec and key of a leaf, without fields whose source columns were dropped."""
    schema = manifest.properties.schema
    for number, leaves in manifest.list_leaves().items():
        own = leaves.filter(pc.equal(leaves.column(LEAF_OBJECT_ID), object_id))
        if own.num_rows:
            spec = manifest.properties.specs[number]
            known = tuple(
                field
                for field in spec.fields
                if all(schema.path_of(source) is not None for source in field.source_ids)
            )
            key = manifest.leaf_keys(number, own)
            gone = [field.field_id for field in spec.fields if field not in known]
            return dataclasses.replace(spec, fields=known), key.drop_columns(gone)
    raise AssertionError(f"{object_id} is not a leaf")


def _list_fragments(dataset: lance.LanceDataset) -> list[Any]:
    return list(dataset.get_fragments())


def _files_of(fragment: FragmentMetadata) -> tuple[Any, Any]:
    """Return the files of a fragment's rows, including deleted rows."""
    return fragment.files, fragment.overlays


def _format_values(key: PartitionKey, spec: PartitionSpec) -> str:
    return ", ".join(
        f"{field.field_id}={value!r}" for field, value in zip(spec.fields, key.values, strict=True)
    )


def _format_columns(schema: pa.Schema, ids: tuple[int, ...]) -> str:
    columns = ", ".join(
        f"{field.name} {field.type}{'' if field.nullable else ' not null'}" for field in schema
    )
    return f"({columns}) with the field ids {', '.join(map(str, ids))}"
