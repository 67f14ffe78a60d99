"""Planning of a rewrite: which fragments of which leaves are rewritten together."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from lance.fragment import FragmentMetadata

from phalanx.model.specs.partition_key import PartitionKey, read_keys
from phalanx.planning.pruning.leaf_columns import LEAF_OBJECT_ID, list_leaf_versions
from phalanx.planning.rewrite import (
    MultiSpecPartitionFilter,
    RewriteDataFilesPlanner,
    RewriteGroup,
    RewriteOptions,
    RewritePlan,
    file_entries,
)
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.parallel import map_parallel
from phalanx.storage.state.table_state import TableState
from phalanx.table.read.inspection import bytes_of


@dataclass(frozen=True, slots=True)
class PlannedLeaf:
    """A leaf of the plan, at the version that it was planned for."""

    key: PartitionKey
    object_id: str
    location: Location
    version: int
    fragments: tuple[FragmentMetadata, ...]


@dataclass(frozen=True, slots=True)
class PlannedFiles:
    """A rewrite plan, with the leaf and the fragment id of each file in it."""

    plan: RewritePlan
    _leaf_by_path: Mapping[str, tuple[PlannedLeaf, int]]

    @property
    def leaves(self) -> list[PlannedLeaf]:
        """All leaves with files that pass the filter, including leaves that are not rewritten."""
        return list({leaf.object_id: leaf for leaf, _ in self._leaf_by_path.values()}.values())

    def leaf_of(self, group: RewriteGroup) -> PlannedLeaf:
        """Return the leaf that holds the files of a group."""
        return self._leaf_by_path[group.files[0].path][0]

    def fragment_ids(self, group: RewriteGroup) -> tuple[int, ...]:
        """Return the ids of the fragments in a group."""
        return tuple(self._leaf_by_path[file.path][1] for file in group.files)

    def group_by_leaf(
        self, groups: Iterable[RewriteGroup]
    ) -> list[tuple[PlannedLeaf, list[RewriteGroup]]]:
        """Return each leaf with its groups."""
        found: dict[str, tuple[PlannedLeaf, list[RewriteGroup]]] = {}
        for group in groups:
            leaf = self.leaf_of(group)
            found.setdefault(leaf.object_id, (leaf, []))[1].append(group)
        return list(found.values())


def plan_rewrite_files(
    state: TableState, options: RewriteOptions, specs: Collection[int] | None = None
) -> PlannedFiles:
    """Plan which files are rewritten together, of all specs or of some.

    Only leaves that pass the partition filter are opened.
    """
    properties = state.properties
    filter = None
    if options.partition_filter is not None:
        filter = MultiSpecPartitionFilter(
            options.partition_filter,
            properties.specs,
            properties.schema,
            case_sensitive=options.case_sensitive,
        )
    entries: dict[int, pa.Table] = {}
    places: dict[str, tuple[PlannedLeaf, int]] = {}
    retirable = []
    # A group never spans two leaves. Duplicate leaves of a partition are combined first.
    others = pa.array(
        [
            name
            for each in state.find_duplicate_partitions()
            for name in each.leaves.column(LEAF_OBJECT_ID).to_pylist()[1:]
        ],
        pa.string(),
    )
    for spec_id, all_leaves in sorted(state.list_leaves().items()):
        if specs is not None and spec_id not in specs:
            continue
        chosen = leaves = all_leaves.filter(
            pc.invert(pc.is_in(all_leaves.column(LEAF_OBJECT_ID), others))
        )
        if filter is not None:
            keys = state.leaf_keys(spec_id, leaves)
            chosen = leaves.filter(pa.array(filter.decide(spec_id, keys, leaves.num_rows).kept))
        keys = state.leaf_keys(spec_id, chosen)
        found = open_leaves(state, spec_id, chosen)
        entries[spec_id] = _make_entries(keys, found, state.root, places)
        is_empty = chosen.num_rows == leaves.num_rows and not entries[spec_id].num_rows
        if is_empty and spec_id != properties.spec.id:
            retirable.append(spec_id)
    planner = RewriteDataFilesPlanner(
        properties.schema, properties.specs, entries, options, filter=filter
    )
    return PlannedFiles(replace(planner.plan(), retirable=tuple(retirable)), places)


def open_leaves(state: TableState, spec_id: int, leaves: pa.Table) -> list[PlannedLeaf]:
    """Open some leaves of a spec at the versions that readers see, and list their fragments."""
    keys = state.leaf_keys(spec_id, leaves)

    def open_one(each: tuple[PartitionKey, str, tuple[str, int | None]]) -> PlannedLeaf:
        key, name, (place, version) = each
        location = state.root.leaf(place)
        dataset = location.open_leaf(version)
        fragments = tuple(fragment.metadata for fragment in dataset.get_fragments())
        return PlannedLeaf(key, name, location, int(dataset.version), fragments)

    names = leaves.column(LEAF_OBJECT_ID).to_pylist()
    return map_parallel(
        open_one, list(zip(read_keys(keys), names, list_leaf_versions(leaves), strict=True))
    )


def _make_entries(
    keys: pa.Table,
    leaves: Sequence[PlannedLeaf],
    root: Location,
    places: dict[str, tuple[PlannedLeaf, int]],
) -> pa.Table:
    """Return the fragments as file entries, each under the path of its first data file."""
    owners: list[int] = []
    paths: list[str] = []
    fragments: list[FragmentMetadata] = []
    for number, leaf in enumerate(leaves):
        inside = leaf.location.uri.removeprefix(f"{root.uri}/")
        for fragment in leaf.fragments:
            path = f"{inside}/data/{fragment.files[0].path}"
            owners.append(number)
            paths.append(path)
            fragments.append(fragment)
            places[path] = leaf, fragment.id
    return file_entries(
        keys.take(pa.array(owners, pa.int64())) if keys.num_columns else None,
        paths,
        bytes=[bytes_of(each) for each in fragments],
        rows=[each.physical_rows for each in fragments],
        positions=[each.id for each in fragments],
        deletes=[_delete_entries(path, each) for path, each in zip(paths, fragments, strict=True)],
    )


def _delete_entries(path: str, fragment: FragmentMetadata) -> list[dict[str, Any]]:
    if fragment.deletion_file is None:
        return []
    # Lance exposes neither its path nor its size. A fragment has at most one.
    return [{"path": f"{path}:deletions", "bytes": 0, "rows": fragment.num_deletions}]
