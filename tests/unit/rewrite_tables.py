"""Evolved tables to plan rewrites of, and faults in their projection and evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pyarrow as pa

from phalanx.model.predicates.predicate import AtomicPredicate, Opaque
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.evolution import build_next_spec
from phalanx.model.specs.spec import PartitionSpec
from phalanx.model.sql.syntax import Column
from phalanx.model.transforms.transform import Identity, Projection
from phalanx.planning.rewrite import (
    RewriteDataFilesPlanner,
    RewriteOptions,
    RewritePlan,
    file_entries,
)

SCHEMA = Schema.of(
    pa.schema([("id", pa.int64()), ("ts", pa.timestamp("us")), ("country", pa.string())])
)
MEGABYTE = 1 << 20


def build_specs(*partition_by: Any) -> dict[int, PartitionSpec]:
    """Build a spec for each argument; an empty list makes a spec without fields."""
    specs: dict[int, PartitionSpec] = {}
    for place, each in enumerate(partition_by, start=1):
        specs[place] = build_next_spec(each, SCHEMA, specs) if each else PartitionSpec(place, ())
    return specs


def partitions_of(spec: PartitionSpec, values: Sequence[Sequence[Any]]) -> pa.Table:
    columns = pa.schema([(field.field_id, field.result_type) for field in spec.fields])
    arrays = [
        pa.array([row[place] for row in values], kind) for place, kind in enumerate(columns.types)
    ]
    return pa.table(arrays, schema=columns)


@dataclass(frozen=True)
class File:
    """A data file of a test: its partition, its size in bytes, and its delete files."""

    path: str
    values: tuple[Any, ...] = ()
    bytes: int = MEGABYTE
    rows: int = 100
    deletes: tuple[int | None, ...] = ()


def entries_of(spec: PartitionSpec, files: Sequence[File]) -> pa.Table:
    return file_entries(
        partitions_of(spec, [file.values for file in files]) if spec.fields else None,
        [file.path for file in files],
        bytes=[file.bytes for file in files],
        rows=[file.rows for file in files],
        deletes=[
            [
                {"path": f"{file.path}.deletes-{place}", "bytes": 10, "rows": rows}
                for place, rows in enumerate(file.deletes)
            ]
            for file in files
        ],
    )


def planner(
    specs: Mapping[int, PartitionSpec], files: Mapping[int, Sequence[File]], **options: Any
) -> RewriteDataFilesPlanner:
    entries = {spec_id: entries_of(specs[spec_id], each) for spec_id, each in files.items()}
    return RewriteDataFilesPlanner(SCHEMA, specs, entries, RewriteOptions(**options))


def paths(plan: RewritePlan) -> list[list[str]]:
    """The files of each group."""
    return [[file.path for file in group.files] for group in plan.groups]


@dataclass(frozen=True, slots=True)
class Unprojectable(Identity):
    """Identity, but no condition can be projected through it."""

    name: ClassVar[str] = "unprojectable"

    def apply(self, *columns: pa.Array) -> pa.Array:
        raise RuntimeError("the transform is not known here")

    def project(self, leaf: AtomicPredicate, source: pa.DataType, target: Column) -> Projection:
        raise RuntimeError("the transform is not known here")


@dataclass(frozen=True, slots=True)
class Unevaluable(Identity):
    """Identity of text, but what is projected can be evaluated only where the text is a number."""

    name: ClassVar[str] = "unevaluable"

    def project(self, leaf: AtomicPredicate, source: pa.DataType, target: Column) -> Projection:
        (column,) = target.path
        condition = f'CAST("{column}" AS BIGINT) > 5'
        return Projection(Opaque(condition, frozenset({target.path})), False)


@dataclass(frozen=True, slots=True)
class Renamed(Identity):
    """The identity transform with another name, so that a spec can have both."""

    name: ClassVar[str] = "renamed"


def with_fault(spec: PartitionSpec, fault: Identity) -> PartitionSpec:
    """Return the spec with a faulty transform in its first field."""
    first, *others = spec.fields
    return replace(spec, fields=(replace(first, derivation=fault), *others))
