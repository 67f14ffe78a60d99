"""The files of a table that want a rewrite, by our own plan over the fragments of its leaves."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from lance.fragment import FragmentMetadata

from phalanx.model.specs.partition_key import PartitionKey, keys_of
from phalanx.planning.pruning.scan_plan import OBJECT_ID, located
from phalanx.planning.rewrite import (
    MultiSpecPartitionFilter,
    RewriteDataFilesPlanner,
    RewriteGroup,
    RewriteOptions,
    RewritePlan,
    file_entries,
)
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.parallel import in_parallel
from phalanx.storage.state.table_state import LeafListing
from phalanx.table.read.inspection import bytes_of


@dataclass(frozen=True, slots=True)
class FileLeaf:
    """A leaf of the plan, in the version that it was planned for."""

    key: PartitionKey
    object_id: str
    location: Location
    version: int
    fragments: tuple[FragmentMetadata, ...]


@dataclass(frozen=True, slots=True)
class PlannedFiles:
    """A plan of a rewrite, and for each file in it the leaf and the fragment that it is."""

    plan: RewritePlan
    _places: Mapping[str, tuple[FileLeaf, int]]

    @property
    def leaves(self) -> list[FileLeaf]:
        """Every leaf with files that the filter keeps, also those of which none is rewritten."""
        return list({leaf.object_id: leaf for leaf, _ in self._places.values()}.values())

    def leaf(self, group: RewriteGroup) -> FileLeaf:
        """The leaf that the files of a group are in."""
        return self._places[group.files[0].path][0]

    def fragments(self, group: RewriteGroup) -> tuple[int, ...]:
        """The numbers of the fragments in a group."""
        return tuple(self._places[file.path][1] for file in group.files)

    def by_leaf(self, groups: Iterable[RewriteGroup]) -> list[tuple[FileLeaf, list[RewriteGroup]]]:
        """The groups of each leaf."""
        found: dict[str, tuple[FileLeaf, list[RewriteGroup]]] = {}
        for group in groups:
            leaf = self.leaf(group)
            found.setdefault(leaf.object_id, (leaf, []))[1].append(group)
        return list(found.values())


def planned(
    manifest: LeafListing, options: RewriteOptions, specs: Collection[int] | None = None
) -> PlannedFiles:
    """Which files are rewritten together, of all specs or of some; no other leaf is opened."""
    properties = manifest.properties
    filter = None
    if options.partition_filter is not None:
        filter = MultiSpecPartitionFilter(
            options.partition_filter,
            properties.specs,
            properties.schema,
            case_sensitive=options.case_sensitive,
        )
    entries: dict[int, pa.Table] = {}
    places: dict[str, tuple[FileLeaf, int]] = {}
    retirable = []
    # Files of two leaves are not rewritten together: these become one leaf first.
    others = pa.array(
        [
            name
            for each in manifest.doubled()
            for name in each.leaves.column(OBJECT_ID).to_pylist()[1:]
        ],
        pa.string(),
    )
    for spec_id, all_leaves in sorted(manifest.leaves().items()):
        if specs is not None and spec_id not in specs:
            continue
        chosen = leaves = all_leaves.filter(
            pc.invert(pc.is_in(all_leaves.column(OBJECT_ID), others))
        )
        if filter is not None:
            keys = manifest.keys_of_leaves(spec_id, leaves)
            chosen = leaves.filter(pa.array(filter.decide(spec_id, keys, leaves.num_rows).kept))
        keys = manifest.keys_of_leaves(spec_id, chosen)
        found = opened_leaves(manifest, spec_id, chosen)
        entries[spec_id] = _entries(keys, found, manifest.root, places)
        is_empty = chosen.num_rows == leaves.num_rows and not entries[spec_id].num_rows
        if is_empty and spec_id != properties.spec.id:
            retirable.append(spec_id)
    planner = RewriteDataFilesPlanner(
        properties.schema, properties.specs, entries, options, filter=filter
    )
    return PlannedFiles(replace(planner.plan(), retirable=tuple(retirable)), places)


def opened_leaves(manifest: LeafListing, spec_id: int, leaves: pa.Table) -> list[FileLeaf]:
    """Some leaves of a spec with their files, in the versions that are read."""
    keys = manifest.keys_of_leaves(spec_id, leaves)

    def opened(each: tuple[PartitionKey, str, tuple[str, int | None]]) -> FileLeaf:
        key, name, (place, version) = each
        location = manifest.root.child(place)
        dataset = location.open_leaf(version)
        fragments = tuple(fragment.metadata for fragment in dataset.get_fragments())
        return FileLeaf(key, name, location, int(dataset.version), fragments)

    names = leaves.column(OBJECT_ID).to_pylist()
    return in_parallel(opened, list(zip(keys_of(keys), names, located(leaves), strict=True)))


def _entries(
    keys: pa.Table,
    leaves: Sequence[FileLeaf],
    root: Location,
    places: dict[str, tuple[FileLeaf, int]],
) -> pa.Table:
    """The fragments as files; each goes by the path of its first file."""
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
        deletes=[_deletes(path, each) for path, each in zip(paths, fragments, strict=True)],
    )


def _deletes(path: str, fragment: FragmentMetadata) -> list[dict[str, Any]]:
    if fragment.deletion_file is None:
        return []
    # Lance tells neither where it is nor how large; there is one for a fragment at most.
    return [{"path": f"{path}:deletions", "bytes": 0, "rows": fragment.num_deletions}]
