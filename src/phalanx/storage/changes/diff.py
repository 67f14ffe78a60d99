"""What a snapshot did to the rows of a leaf: its fragments before and after, compared.

A fragment is told from others by its files, never by its number: after a rollback other rows may
come under the same one. Files that a change of the schema wrote hold the same rows as before, and
so do those of a compaction that someone made past Phalanx, or that a rollback undoes. Only where
rows of such files were changed since, a rollback tells all rows in them as gone and come again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from lance import LanceDataset, LanceOperation
from lance.fragment import FragmentMetadata

from phalanx.storage.changes.changed_fragments import ChangedRows, FragmentVersion, RecordedUpdates
from phalanx.storage.changes.equivalent_files import (
    Contents,
    aligned_contents,
    compactions_of,
    contents_of,
    foreign_operations,
)
from phalanx.storage.commit.history_rows import LeafChange
from phalanx.storage.leaf.reading import LeafScan
from phalanx.storage.manifest.manifest import Manifest

# After these a row that was deleted may be there again.
_MAY_BRING_BACK = frozenset({"rollback", "foreign", "change"})


@dataclass(frozen=True, slots=True)
class ChangedLeaf:
    """A snapshot's change of a leaf, what to read of it, and where its updates are written."""

    change: LeafChange
    scan: LeafScan
    updates: RecordedUpdates | None

    @property
    def snapshot(self) -> int:
        """The snapshot that made the change."""
        return self.change.entry.snapshot


def changed_rows(manifest: Manifest, leaf: ChangedLeaf) -> list[ChangedRows]:
    """The rows that went and those that came, by fragment; only metadata is read."""
    entry, before = leaf.change.entry, leaf.change.before
    old = {} if before is None else _fragments(leaf.scan.location.open_leaf(before))
    after = entry.version
    new = {} if after is None else _fragments(leaf.scan.location.open_leaf(after))
    gone = {contents: old[contents] for contents in old.keys() - new.keys()}
    came = {contents: new[contents] for contents in new.keys() - old.keys()}
    both = [(old[contents], new[contents]) for contents in old.keys() & new.keys()]
    if gone and came and before is not None:
        if entry.operation == "rollback":
            both += _restored(manifest, leaf, before, gone, came)
            place = leaf.scan.location
            _forget_compactions(compactions_of(manifest, leaf.change.object_id, place), gone, came)
        if entry.main is not None:
            _forget_compactions(_foreign_compactions(leaf, before, entry.main), gone, came)
    found = list(_of_both(leaf, both))
    if before is not None:
        found += [_whole(leaf, before, each, came=False) for each in gone.values()]
    if after is not None:
        found += [_whole(leaf, after, each, came=True) for each in came.values()]
    return sorted(found, key=lambda rows: (rows.came, rows.fragment))


def _fragments(dataset: LanceDataset) -> dict[Contents, FragmentMetadata]:
    return {contents_of(each.metadata): each.metadata for each in dataset.get_fragments()}


def _of_both(
    leaf: ChangedLeaf, both: list[tuple[FragmentMetadata, FragmentMetadata]]
) -> Iterator[ChangedRows]:
    """What became of fragments that are there before and after."""
    entry, before = leaf.change.entry, leaf.change.before
    for old, new in both:
        assert before is not None
        assert entry.version is not None
        if old.deletion_file == new.deletion_file:
            continue
        here, there = FragmentVersion(before, old.id), FragmentVersion(entry.version, new.id)
        gone = replace(
            _whole(leaf, before, old, came=False), rows=max(0, old.num_rows - new.num_rows)
        )
        yield replace(gone, unchanged=there, size=_share(gone, old))
        if not _MAY_BRING_BACK.isdisjoint(entry.operation.split("+")):
            came = replace(
                _whole(leaf, entry.version, new, came=True),
                rows=max(0, new.num_rows - old.num_rows),
            )
            yield replace(came, unchanged=here, size=_share(came, new))


def all_rows(scan: LeafScan, snapshot: int) -> list[ChangedRows]:
    """All rows of a leaf in the scan's version, as if the snapshot had brought them."""
    fragments = scan.location.open_leaf(scan.version).get_fragments()
    return [_rows(scan, each.metadata, snapshot, True, None) for each in fragments]


def _whole(leaf: ChangedLeaf, version: int, fragment: FragmentMetadata, came: bool) -> ChangedRows:
    scan = replace(leaf.scan, version=version)
    return _rows(scan, fragment, leaf.snapshot, came, leaf.updates)


def _rows(
    scan: LeafScan,
    fragment: FragmentMetadata,
    snapshot: int,
    came: bool,
    updates: RecordedUpdates | None,
) -> ChangedRows:
    size = sum(file.file_size_bytes or 0 for file in fragment.files)
    return ChangedRows(scan, fragment.id, snapshot, came, None, updates, fragment.num_rows, size)


def _share(rows: ChangedRows, fragment: FragmentMetadata) -> int:
    """The bytes of some rows of a fragment, if all are of one length."""
    return rows.size * rows.rows // max(1, fragment.num_rows)


def _restored(
    manifest: Manifest,
    leaf: ChangedLeaf,
    before: int,
    gone: dict[Contents, FragmentMetadata],
    came: dict[Contents, FragmentMetadata],
) -> list[tuple[FragmentMetadata, FragmentMetadata]]:
    """The fragments of which only the schema was changed meanwhile, taken out of the others."""
    change = leaf.change
    assert change.entry.version is not None
    versions = [before, change.entry.version]
    same = aligned_contents(manifest, change.object_id, leaf.scan.location, versions)
    by_kind = {same.get(contents, contents): contents for contents in gone}
    found = []
    for contents in list(came):
        known = by_kind.get(same.get(contents, contents))
        if known is not None and gone[known].physical_rows == came[contents].physical_rows:
            found.append((gone.pop(known), came.pop(contents)))
            del by_kind[same.get(contents, contents)]
    return found


def _forget_compactions(
    groups: Iterable[LanceOperation.RewriteGroup],
    gone: dict[Contents, FragmentMetadata],
    came: dict[Contents, FragmentMetadata],
) -> None:
    """Take out fragments that were only written anew as others, or are back in their place."""
    for group in groups:
        old = {contents_of(each): each for each in group.old_fragments}
        new = {contents_of(each): each for each in group.new_fragments}
        for before, after in ((old, new), (new, old)):
            if _are_as_said(before, gone) and _are_as_said(after, came):
                for contents in before:
                    del gone[contents]
                for contents in after:
                    del came[contents]


def _foreign_compactions(
    leaf: ChangedLeaf, before: int, main: int
) -> Iterator[LanceOperation.RewriteGroup]:
    for operation in foreign_operations(leaf.scan.location, before, main):
        if isinstance(operation, LanceOperation.Rewrite):
            yield from operation.groups


def _are_as_said(
    said: dict[Contents, FragmentMetadata], found: dict[Contents, FragmentMetadata]
) -> bool:
    return all(
        contents in found and found[contents].deletion_file == fragment.deletion_file
        for contents, fragment in said.items()
    )
