"""Partitions with several leaves, whose rows are brought into one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from phalanx.model.schema.rows import plain_schema
from phalanx.planning.rewrite import MultiSpecPartitionFilter, RewriteOptions
from phalanx.storage.commit.writing import LeafWrite, emptying
from phalanx.storage.lance.parallel import WRITE_THREADS, in_parallel
from phalanx.storage.leaf import leaf
from phalanx.storage.leaf.reading import LeafScan
from phalanx.storage.manifest.manifest import Manifest
from phalanx.storage.state.table_state import DoubledPartition, LeafListing, Leaves
from phalanx.storage.streams.shuffle import for_writing
from phalanx.table.read.rewrite_planning import FileLeaf, opened_leaves
from phalanx.table.transactions import strong_mode as strong
from phalanx.table.write.incoming_rows import Target
from phalanx.table.write.operations import REPEAT
from phalanx.table.write.transaction import run_alone


@dataclass(frozen=True, slots=True)
class _Doubled:
    """A partition with several leaves: the first, the others with rows, and those without."""

    spec_id: int
    first: FileLeaf
    filled: tuple[FileLeaf, ...]
    empty: pa.Table
    others: pa.Table

    @classmethod
    def of(cls, manifest: LeafListing, found: DoubledPartition) -> _Doubled:
        first, *others = opened_leaves(manifest, found.spec_id, found.leaves)
        has_rows = [any(each.num_rows for each in leaf.fragments) for leaf in others]
        rest = found.leaves.slice(1)
        mask = pa.array(has_rows, pa.bool_())
        return cls(
            found.spec_id,
            first,
            tuple(leaf for leaf, filled in zip(others, has_rows, strict=True) if filled),
            rest.filter(pa.array([not filled for filled in has_rows], pa.bool_())),
            rest.filter(mask),
        )


def unite(manifest: Callable[[], Manifest], options: RewriteOptions) -> int:
    """Bring all rows of each partition into its first leaf; how many partitions had several.

    In one transaction: a table in weak mode is in strong mode meanwhile, as in a move of rows to
    another spec. In strong mode the leaves without rows are then dropped; in weak mode they stay,
    because a writer may be about to write to them.
    """
    current = manifest()
    if not any(each.filled for each in _chosen(current, options)):
        return 0
    if current.properties.mode == "weak":
        strong.set_mode(current, "strong", returns=True)
    try:
        count = run_alone(manifest(), lambda target: _united(target, options))
        if not manifest().properties.returns:
            run_alone(manifest(), lambda target: _dropped(target, options))
        return count
    finally:
        current = manifest()
        if current.properties.returns:
            strong.set_mode(current, "weak")


def _chosen(manifest: LeafListing, options: RewriteOptions) -> Iterator[_Doubled]:
    """The partitions with several leaves that the filter keeps."""
    properties = manifest.properties
    filter = None
    for each in manifest.doubled():
        if options.partition_filter is not None:
            filter = filter or MultiSpecPartitionFilter(
                options.partition_filter,
                properties.specs,
                properties.schema,
                case_sensitive=options.case_sensitive,
            )
            keys = manifest.keys_of_leaves(each.spec_id, each.leaves.slice(0, 1))
            if not filter.decide(each.spec_id, keys, 1).kept[0]:
                continue
        yield _Doubled.of(manifest, each)


def _united(target: Target, options: RewriteOptions) -> int:
    manifest = target.manifest
    schema = manifest.properties.schema
    found = [each for each in _chosen(manifest, options) if each.filled]

    def written(each: _Doubled) -> LeafWrite:
        first = each.first
        dataset = target.open_leaf(first.location, first.version)
        names = tuple(dataset.schema.names)
        plain = plain_schema(schema)
        batches = (
            batch
            for other in each.filled
            for batch in LeafScan(other.location, other.version, schema, names).batches()
        )
        reader = pa.RecordBatchReader.from_batches(
            pa.schema([plain.field(name) for name in names]), for_writing(batches)
        )
        fragments = leaf.write(dataset, first.location, reader)
        return LeafWrite(first.key, first.object_id, first.location, first.version, fragments)

    writes = in_parallel(written, found, WRITE_THREADS)
    gone = emptying(manifest, _together((each.spec_id, each.others) for each in found))
    target.commit([*writes, *gone], "rewrite", REPEAT)
    return len(found)


def _dropped(target: Target, options: RewriteOptions) -> int:
    """Drop the leaves without rows of partitions that have another."""
    chosen = _chosen(target.manifest, options)
    return target.drop(_together((each.spec_id, each.empty) for each in chosen), REPEAT)


def _together(leaves: Iterator[tuple[int, pa.Table]]) -> Leaves:
    found: Leaves = {}
    for number, some in leaves:
        before = found.get(number)
        found[number] = some if before is None else pa.concat_tables([before, some])
    return found
