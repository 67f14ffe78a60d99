"""Planning a rewrite of very many files, compared with a loop over them in pyiceberg."""

from __future__ import annotations

import gc
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from pyiceberg.expressions import parser
from pyiceberg.expressions.visitors import expression_evaluator, inclusive_projection
from pyiceberg.partitioning import PartitionField
from pyiceberg.partitioning import PartitionSpec as IcebergSpec
from pyiceberg.schema import Schema as IcebergSchema
from pyiceberg.transforms import (
    IdentityTransform,
    Transform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.typedef import Record
from pyiceberg.types import DateType, IntegerType, NestedField, StringType

from bench.measure import Beside, Measured, faster, time_alternately
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.evolution import build_next_spec
from phalanx.model.specs.spec import PartitionSpec
from phalanx.planning.rewrite import (
    RewriteDataFilesPlanner,
    RewriteOptions,
    RewritePlan,
    file_entries,
)

FILES = 1_000_000
PARTITIONS = 100_000
MEGABYTE = 1 << 20
FIRST_DAY = date(2015, 1, 1)
WHERE = (
    "day >= '2019-03-01' and day < '2023-01-01' "
    "and country in ('c10x', 'c12x', 'c15x', 'c18x', 'c19x') "
    "and tenant > 100"
)
COLUMNS = pa.schema([("day", pa.date32()), ("country", pa.string()), ("tenant", pa.int32())])
ICEBERG = IcebergSchema(
    NestedField(1, "day", DateType(), required=False),
    NestedField(2, "country", StringType(), required=False),
    NestedField(3, "tenant", IntegerType(), required=False),
)
# Both systems have the same partition values, except that Iceberg counts years from 1970.
PARTITION_BY: Mapping[int, tuple[str, tuple[tuple[int, Transform[Any, Any]], ...]]] = {
    1: ("day, country", ((1, IdentityTransform()), (2, IdentityTransform()))),
    2: ("year(day), tenant", ((1, YearTransform()), (3, IdentityTransform()))),
    3: ("truncate(3, country), day", ((2, TruncateTransform(3)), (1, IdentityTransform()))),
}


@dataclass(frozen=True, slots=True)
class Files:
    """The same files twice: as columns, and as entries with the partition records of pyiceberg."""

    schema: Schema
    specs: Mapping[int, PartitionSpec]
    columns: Mapping[int, pa.Table]
    entries: list[tuple[int, Record, str, int]]


def benchmarks(rows: int) -> Iterator[Measured | Beside]:
    """Measure the planning of rewrites, which does not depend on `rows`."""
    files = _files()
    # Keep the objects of the other side out of the garbage collector.
    gc.collect()
    gc.freeze()
    options = RewriteOptions(partition_filter=WHERE)
    plan, groups = _plan(files, options), _loop(files, options)
    assert plan.candidate_files == sum(map(len, groups.values())), "the two plans differ"
    times = time_alternately(
        {
            "plan": lambda: _plan(files, options),
            "groups": lambda: _plan(files, options).groups,
            "loop": lambda: _loop(files, options),
            "all": lambda: _plan(files, RewriteOptions()),
            "all groups": lambda: _plan(files, RewriteOptions()).groups,
        },
        2,
    )
    gc.unfreeze()
    what = f"plan a rewrite: {FILES:,} files, {PARTITIONS:,} partitions, {len(files.specs)} specs"
    name = "a loop over pyiceberg's evaluator"
    yield faster(what, times["plan"], name, times["loop"], 10)
    yield faster(
        f"plan the same rewrite, and make an object of each of {len(plan.groups):,} groups",
        times["groups"],
        name,
        times["loop"],
        10,
    )
    yield Beside(
        "plan a rewrite of all partitions, without a filter",
        {"columns": times["all"], "objects": times["all groups"]},
    )


def _plan(files: Files, options: RewriteOptions) -> RewritePlan:
    return RewriteDataFilesPlanner(files.schema, files.specs, files.columns, options).plan()


def _loop(files: Files, options: RewriteOptions) -> dict[tuple[int, Record], list[str]]:
    evaluators = {spec_id: _evaluator(spec_id) for spec_id in PARTITION_BY}
    groups: dict[tuple[int, Record], list[str]] = {}
    for spec_id, partition, path, size in files.entries:
        if (
            evaluators[spec_id](partition)
            and not options.min_file_size <= size <= options.max_file_size
        ):
            groups.setdefault((spec_id, partition), []).append(path)
    return groups


def _evaluator(spec_id: int) -> Callable[[Record], bool]:
    fields = enumerate(PARTITION_BY[spec_id][1])
    spec = IcebergSpec(
        *(
            PartitionField(source, 1000 + place, transform, f"field_{place}")
            for place, (source, transform) in fields
        ),
        spec_id=spec_id,
    )
    projected = inclusive_projection(ICEBERG, spec)(parser.parse(WHERE))
    partition = IcebergSchema(*spec.partition_type(ICEBERG).fields)
    return expression_evaluator(partition, projected, case_sensitive=True)


def _files() -> Files:
    schema = Schema.of(COLUMNS)
    random = np.random.default_rng(7)
    specs: dict[int, PartitionSpec] = {}
    columns: dict[int, pa.Table] = {}
    entries: list[tuple[int, Record, str, int]] = []
    count = math.ceil(FILES / len(PARTITION_BY))
    for spec_id, (partition_by, _) in PARTITION_BY.items():
        specs[spec_id] = build_next_spec(partition_by, schema, specs)
        partitions = specs[spec_id].compute_partition_values(_rows(random, spec_id, count), schema)
        paths = [f"s3://lake/events/{spec_id}/{place:08}-0-1.parquet" for place in range(count)]
        sizes = random.integers(MEGABYTE, 450 * MEGABYTE, count)
        columns[spec_id] = file_entries(
            partitions,
            paths,
            bytes=sizes,
            rows=sizes // 100,
            positions=np.arange(count),
            deletes=[
                [{"path": f"{path}.deletes", "bytes": 1000, "rows": 10}] if place % 50 == 0 else []
                for place, path in enumerate(paths)
            ],
        )
        records = zip([spec_id] * count, _records(partitions), paths, sizes.tolist(), strict=True)
        entries += records
    return Files(schema, specs, columns, entries)


def _rows(random: np.random.Generator, spec_id: int, count: int) -> pa.Table:
    """A row of the partition for each file; ten files have the same partition."""
    partition = random.permutation(count) % (PARTITIONS // len(PARTITION_BY))
    if spec_id == 2:
        days, countries, tenants = partition % 12 * 366, partition % 10, partition // 12
    else:
        days, countries, tenants = partition % 3_333, partition // 3_333 % 10, partition
    first = (FIRST_DAY - date(1970, 1, 1)).days
    names = pc.binary_join_element_wise("c", pa.array(countries + 10).cast(pa.string()), "x", "")
    arrays = [pa.array(first + days, pa.int32()).cast(pa.date32()), names]
    return pa.table([*arrays, pa.array(tenants, pa.int32())], schema=COLUMNS)


def _records(partitions: pa.Table) -> Iterator[Record]:
    """The partitions as pyiceberg has them: days and years since 1970."""
    columns = []
    for name, column in zip(partitions.column_names, partitions.columns, strict=True):
        if pt.is_date(column.type):
            column = column.cast(pa.int32())
        elif name.endswith("year"):
            column = pc.subtract(column, 1970)
        columns.append(column.to_pylist())
    return itertools.starmap(Record, zip(*columns, strict=True))
