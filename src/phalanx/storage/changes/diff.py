"""The difference of a leaf before and after a snapshot, found by comparing its fragments.

A fragment is identified by its files, never by its number, which other rows may reuse after a
rollback. Files written by a schema change contain the same rows as before. So do files of a
compaction made outside Phalanx, or undone by a rollback. If rows of such files changed since, a
rollback reports all rows in them as deleted and inserted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from lance import LanceDataset, LanceOperation
from lance.fragment import FragmentMetadata

from phalanx.storage.changes.changed_fragments import (
    ChangedFragment,
    FragmentVersion,
    UpdatesFile,
)
from phalanx.storage.changes.equivalent_files import (
    Contents,
    contents_of,
    find_aligned_contents,
    read_compactions,
    read_foreign_operations,
)
from phalanx.storage.commit.history_rows import LeafChange
from phalanx.storage.leaf.reading import LeafScan
from phalanx.storage.manifest.manifest import Manifest

# Operations after which a deleted row may exist again.
_MAY_UNDELETE = frozenset({"rollback", "foreign", "change"})


@dataclass(frozen=True, slots=True)
class ChangedLeaf:
    """A snapshot's change of a leaf, the scan of its rows, and the file of its updates."""

    change: LeafChange
    scan: LeafScan
    updates: UpdatesFile | None

    @property
    def snapshot(self) -> int:
        """The id of the snapshot that made the change."""
        return self.change.version_row.snapshot


def diff_leaf(manifest: Manifest, leaf: ChangedLeaf) -> list[ChangedFragment]:
    """Return the removed and the added rows by fragment, reading only metadata."""
    entry, before = leaf.change.version_row, leaf.change.before
    old = {} if before is None else _read_fragments(leaf.scan.location.open_leaf(before))
    after = entry.version
    new = {} if after is None else _read_fragments(leaf.scan.location.open_leaf(after))
    removed = {contents: old[contents] for contents in old.keys() - new.keys()}
    added = {contents: new[contents] for contents in new.keys() - old.keys()}
    both = [(old[contents], new[contents]) for contents in old.keys() & new.keys()]
    if removed and added and before is not None:
        if entry.operation == "rollback":
            both += _pair_aligned(manifest, leaf, before, removed, added)
            location = leaf.scan.location
            _remove_compactions(
                read_compactions(manifest, leaf.change.object_id, location), removed, added
            )
        if entry.main is not None:
            _remove_compactions(_read_foreign_compactions(leaf, before, entry.main), removed, added)
    found = list(_diff_deletions(leaf, both))
    if before is not None:
        found += [
            _make_whole_fragment(leaf, before, each, is_added=False) for each in removed.values()
        ]
    if after is not None:
        found += [_make_whole_fragment(leaf, after, each, is_added=True) for each in added.values()]
    return sorted(found, key=lambda rows: (rows.is_added, rows.fragment))


def _read_fragments(dataset: LanceDataset) -> dict[Contents, FragmentMetadata]:
    return {contents_of(each.metadata): each.metadata for each in dataset.get_fragments()}


def _diff_deletions(
    leaf: ChangedLeaf, both: list[tuple[FragmentMetadata, FragmentMetadata]]
) -> Iterator[ChangedFragment]:
    """Return the rows deleted, or restored, in fragments that exist before and after."""
    entry, before = leaf.change.version_row, leaf.change.before
    for old, new in both:
        assert before is not None
        assert entry.version is not None
        if old.deletion_file == new.deletion_file:
            continue
        here, there = FragmentVersion(before, old.id), FragmentVersion(entry.version, new.id)
        removed = replace(
            _make_whole_fragment(leaf, before, old, is_added=False),
            rows=max(0, old.num_rows - new.num_rows),
        )
        yield replace(removed, other_side=there, size=_estimate_bytes(removed, old))
        if not _MAY_UNDELETE.isdisjoint(entry.operation.split("+")):
            added = replace(
                _make_whole_fragment(leaf, entry.version, new, is_added=True),
                rows=max(0, new.num_rows - old.num_rows),
            )
            yield replace(added, other_side=here, size=_estimate_bytes(added, new))


def list_all_fragments(scan: LeafScan, snapshot: int) -> list[ChangedFragment]:
    """Return all rows of a leaf in the scan's version, as if the snapshot had added them."""
    fragments = scan.location.open_leaf(scan.version).get_fragments()
    return [_make_changed_fragment(scan, each.metadata, snapshot, True, None) for each in fragments]


def _make_whole_fragment(
    leaf: ChangedLeaf, version: int, fragment: FragmentMetadata, is_added: bool
) -> ChangedFragment:
    scan = replace(leaf.scan, version=version)
    return _make_changed_fragment(scan, fragment, leaf.snapshot, is_added, leaf.updates)


def _make_changed_fragment(
    scan: LeafScan,
    fragment: FragmentMetadata,
    snapshot: int,
    is_added: bool,
    updates: UpdatesFile | None,
) -> ChangedFragment:
    size = sum(file.file_size_bytes or 0 for file in fragment.files)
    return ChangedFragment(
        scan, fragment.id, snapshot, is_added, None, updates, fragment.num_rows, size
    )


def _estimate_bytes(rows: ChangedFragment, fragment: FragmentMetadata) -> int:
    """Estimate the bytes of some rows of a fragment, assuming rows of equal length."""
    return rows.size * rows.rows // max(1, fragment.num_rows)


def _pair_aligned(
    manifest: Manifest,
    leaf: ChangedLeaf,
    before: int,
    removed: dict[Contents, FragmentMetadata],
    added: dict[Contents, FragmentMetadata],
) -> list[tuple[FragmentMetadata, FragmentMetadata]]:
    """Pair the fragments that differ only by a schema change, and remove them from both."""
    change = leaf.change
    assert change.version_row.version is not None
    versions = [before, change.version_row.version]
    same = find_aligned_contents(manifest, change.object_id, leaf.scan.location, versions)
    by_kind = {same.get(contents, contents): contents for contents in removed}
    found = []
    for contents in list(added):
        known = by_kind.get(same.get(contents, contents))
        if known is not None and removed[known].physical_rows == added[contents].physical_rows:
            found.append((removed.pop(known), added.pop(contents)))
            del by_kind[same.get(contents, contents)]
    return found


def _remove_compactions(
    groups: Iterable[LanceOperation.RewriteGroup],
    removed: dict[Contents, FragmentMetadata],
    added: dict[Contents, FragmentMetadata],
) -> None:
    """Remove fragments that a compaction only rewrote, in either direction."""
    for group in groups:
        old = {contents_of(each): each for each in group.old_fragments}
        new = {contents_of(each): each for each in group.new_fragments}
        for before, after in ((old, new), (new, old)):
            if _has_unchanged(before, removed) and _has_unchanged(after, added):
                for contents in before:
                    del removed[contents]
                for contents in after:
                    del added[contents]


def _read_foreign_compactions(
    leaf: ChangedLeaf, before: int, main: int
) -> Iterator[LanceOperation.RewriteGroup]:
    for operation in read_foreign_operations(leaf.scan.location, before, main):
        if isinstance(operation, LanceOperation.Rewrite):
            yield from operation.groups


def _has_unchanged(
    expected: dict[Contents, FragmentMetadata], found: dict[Contents, FragmentMetadata]
) -> bool:
    return all(
        contents in found and found[contents].deletion_file == fragment.deletion_file
        for contents, fragment in expected.items()
    )
