"""The health of a table: what its partitions, specs and files want to have done."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from statistics import median

from phalanx.errors import ForeignWrite, PhalanxError
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.partition_key import PartitionKey
from phalanx.model.specs.spec import PartitionSpec
from phalanx.planning.pruning.partition_where import where_of
from phalanx.planning.pruning.scan_plan import counted, readable
from phalanx.planning.rewrite import RewriteGroup, RewriteOptions
from phalanx.planning.spec_suggestions import coarser, finer
from phalanx.storage.lance.failures import is_gone, plain_reason
from phalanx.storage.manifest.manifest import Manifest
from phalanx.storage.state.table_state import DoubledPartition
from phalanx.table.findings import KINDS, Finding, Health, Kind, PartitionSize
from phalanx.table.health_limits import HealthLimits
from phalanx.table.leftovers import leftovers
from phalanx.table.maintenance.indexes import unindexed
from phalanx.table.maintenance.storage_comparison import MissingLeaf, missing_files, missing_leaves
from phalanx.table.maintenance.vacuum import vacuum
from phalanx.table.read.inspection import bytes_of
from phalanx.table.read.rewrite_planning import FileLeaf, PlannedFiles, opened_leaves, planned

# No more findings than these are told, nor more partitions of one; the rest is counted.
MOST_FINDINGS = 50
MOST_PARTITIONS = 20
# So many partitions are named in a sentence, or in a `where`.
_MOST_NAMED = 3
# What a shell obeys in double quotes.
_OBEYED = re.compile(r'[$`"\\!]')
# What `Table.vacuum` keeps unless it is told otherwise.
_KEPT = timedelta(days=7)


def health(manifest: Manifest, limits: HealthLimits) -> Health:
    """What should be done about a table; nothing is changed.

    Every leaf is opened once. Only the search for files that nothing needs, which is a vacuum's,
    looks at the leaves by itself.
    """
    missing: list[MissingLeaf] = []
    while True:
        try:
            files = planned(_without(manifest, missing), RewriteOptions())
            break
        except (PhalanxError, OSError, ValueError):
            # A vacuum removed what was about to be looked at, or something else did.
            latest = manifest.latest()
            gone = missing_leaves(latest)
            if latest is manifest and gone == missing:
                raise
            manifest, missing = latest, gone
    checkup = _Checkup(manifest, files, files.leaves, limits, tuple(missing))
    found = sorted(checkup.findings(), key=lambda each: KINDS.index(each.kind))
    return Health(tuple(found[:MOST_FINDINGS]), max(0, len(found) - MOST_FINDINGS))


def _without(manifest: Manifest, missing: Sequence[MissingLeaf]) -> Manifest:
    return manifest.without_leaves(leaf.object_id for leaf in missing) if missing else manifest


@dataclass(frozen=True, slots=True)
class _Checkup:
    """A table as its plan of a rewrite shows it, looked at in several ways."""

    manifest: Manifest
    files: PlannedFiles
    leaves: Sequence[FileLeaf]
    limits: HealthLimits
    missing: tuple[MissingLeaf, ...]

    def findings(self) -> Iterator[Finding]:
        """Everything that is found, in no order."""
        yield from self._missing()
        yield from self._doubled()
        yield from self._rewrites()
        yield from self._unindexed()
        yield from self._sizes()
        yield from self._old_specs()
        if not self.missing:
            yield from self._orphans()
        yield from self._leftovers()

    # ── what is not there ────────────────────────────────────────────────────────────────────

    def _missing(self) -> Iterator[Finding]:
        """Partitions, and files of partitions, that are listed and that storage does not have."""
        if self.missing:
            first, *others = self.missing
            yield self._gone(
                "missing-partitions",
                f"{counted(len(self.missing), 'partition')} of the manifest "
                f"{'is' if not others else 'are'} not in storage, such as the one at "
                f"{first.location}. Something removed files past Phalanx.",
                [each.key for each in self.missing],
                {},
            )
        if files := missing_files(self.manifest, self.leaves):
            hurt = [leaf for leaf in self.leaves if leaf.object_id in files]
            count = sum(map(len, files.values()))
            yield self._gone(
                "missing-files",
                f"{counted(len(hurt), 'partition')} "
                f"{'needs' if len(hurt) == 1 else 'need'} {counted(count, 'file')} that storage "
                f"does not have, such as {hurt[0].location}/{files[hurt[0].object_id][0]}. "
                "Something removed files past Phalanx.",
                [leaf.key for leaf in hurt],
                {"files": count},
            )

    def _gone(
        self, kind: Kind, fact: str, keys: Sequence[PartitionKey], figures: Mapping[str, int]
    ) -> Finding:
        properties, uri = self.manifest.properties, self.manifest.root.uri
        where = where_of(keys, properties.specs, properties.schema) or "true"
        call = f"import phalanx; phalanx.open({uri!r}).drop_partitions({where!r})"
        return Finding(
            kind,
            f"{fact} Restore them from a copy, or give up their rows by dropping the partitions.",
            f"python -c {_quoted(call)}",
            f"table.drop_partitions({where!r})",
            {"partitions": len(keys), **figures},
        )

    # ── files ────────────────────────────────────────────────────────────────────────────────

    def _doubled(self) -> Iterator[Finding]:
        """Partitions of which several leaves have rows."""
        found = [
            leaves for each in self.manifest.doubled() if len(leaves := self._filled(each)) > 1
        ]
        if not found:
            return
        sizes = [self._size(leaf) for leaves in found for leaf in leaves[:1]]
        places = " and ".join(str(leaf.location) for leaf in found[0])
        has = "has" if len(found) == 1 else "have"
        yield self._rewrite(
            "doubled-partitions",
            f"{counted(len(found), 'partition')} {has} several leaves, which another writer has "
            f"listed: {sizes[0]} has {places}.",
            {"leaves": sum(map(len, found))},
            sizes,
        )

    def _filled(self, doubled: DoubledPartition) -> list[FileLeaf]:
        """The leaves of a partition that have rows."""
        found = opened_leaves(self.manifest, doubled.spec_id, doubled.leaves)
        return [leaf for leaf in found if any(each.num_rows for each in leaf.fragments)]

    def _rewrites(self) -> Iterator[Finding]:
        """What a rewrite would do: to many files, or to a few with many deleted rows."""
        groups = self.files.plan.groups
        heavy = [group for group in groups if self._heavy_files(group)]
        # A file with many deleted rows is rewritten also where it is alone.
        alone = {group.id for group in heavy if len(group.files) == 1}
        several = [group for group in groups if group.id not in alone]
        if several:
            chosen = self._partitions(several, lambda each: each.files)
            files = sum(len(group.files) for group in several)
            size = sum(group.bytes for group in several)
            wants = "wants" if len(chosen) == 1 else "want"
            yield self._rewrite(
                "compaction",
                f"{counted(len(chosen), 'partition')} {wants} compaction, "
                f"{counted(files, 'file')} with {readable(size)}: {_named(chosen)}.",
                {"files": files, "bytes": size},
                chosen,
            )
        if heavy:
            chosen = self._partitions(heavy, lambda each: each.deleted_rows)
            files = sum(self._heavy_files(group) for group in heavy)
            rows = sum(each.deleted_rows for each in chosen)
            ratio = self.files.plan.options.delete_ratio_threshold
            has = "has" if len(chosen) == 1 else "have"
            yield self._rewrite(
                "deleted-rows",
                f"{counted(len(chosen), 'partition')} {has} {counted(files, 'file')} of whose rows "
                f"{ratio:.0%} or more are deleted: {_named(chosen)}.",
                {"files": files, "deleted_rows": rows},
                chosen,
            )

    def _heavy_files(self, group: RewriteGroup) -> int:
        """How many files of a group have many deleted rows."""
        ratio = self.files.plan.options.delete_ratio_threshold
        return sum(
            sum(each.rows or 0 for each in file.deletes) / max(file.rows, 1) >= ratio
            for file in group.files
        )

    def _partitions(
        self, groups: Sequence[RewriteGroup], badness: Callable[[PartitionSize], int]
    ) -> list[PartitionSize]:
        """The partitions of the groups, the worst first."""
        return _worst_first((self._size(leaf) for leaf, _ in self.files.by_leaf(groups)), badness)

    def _rewrite(
        self,
        kind: Kind,
        message: str,
        figures: Mapping[str, int],
        chosen: Sequence[PartitionSize],
    ) -> Finding:
        where = None
        if len(chosen) <= _MOST_NAMED and len(chosen) < len(self.leaves):
            properties = self.manifest.properties
            keys = [each.key for each in chosen]
            where = where_of(keys, properties.specs, properties.schema)
        return Finding(
            kind,
            message,
            self._shell("rewrite", *([] if where is None else ["--where", where])),
            f"table.rewrite({'' if where is None else repr(where)})",
            {"partitions": len(chosen), **figures},
            tuple(chosen[:MOST_PARTITIONS]),
        )

    def _unindexed(self) -> Iterator[Finding]:
        """Rows that the declared indexes do not cover, where they would be indexed."""
        rows = unindexed(self.manifest, self.leaves)
        if not rows:
            return
        by_id = {leaf.object_id: self._size(leaf) for leaf in self.leaves if leaf.object_id in rows}
        chosen = _worst_first(by_id.values(), lambda each: each.rows)
        total = sum(rows.values())
        yield Finding(
            "unindexed-rows",
            f"{counted(total, 'row')} in {counted(len(chosen), 'partition')} are in no index yet: "
            f"{_named(chosen)}.",
            self._shell("index"),
            "table.optimize_indexes()",
            {"partitions": len(chosen), "rows": total},
            tuple(chosen[:MOST_PARTITIONS]),
        )

    # ── partitions ───────────────────────────────────────────────────────────────────────────

    def _sizes(self) -> Iterator[Finding]:
        """Partitions under the newest spec that are too small, or too large."""
        spec_id, limits = self.manifest.properties.spec.id, self.limits
        leaves = [leaf for leaf in self.leaves if leaf.key.spec_id == spec_id]
        sizes = _worst_first(map(self._size, leaves), lambda each: each.bytes)
        middle = int(median([each.bytes for each in sizes])) if sizes else 0
        huge = [each for each in sizes if each.bytes > limits.huge_bytes]
        least = max(limits.skew_bytes, limits.skew_ratio * middle)
        skewed = [each for each in sizes[len(huge) :] if each.bytes >= least]
        tiny = [each for each in sizes if each.bytes < limits.tiny_bytes]
        if skewed and len(sizes) >= limits.skew_partitions:
            yield self._evolve(
                "skew",
                f"{_are(skewed)} at least {limits.skew_ratio} times as large as the median of "
                f"{readable(middle)}",
                finer,
                skewed[0].bytes // max(middle, limits.tiny_bytes),
                skewed,
            )
        if len(tiny) >= limits.tiny_partitions and 2 * len(tiny) > len(sizes):
            yield self._evolve(
                "tiny-partitions",
                f"{_are(tiny)} smaller than {readable(limits.tiny_bytes)}, of {len(sizes):,}",
                coarser,
                limits.tiny_bytes // max(middle, 1),
                _worst_first(tiny, lambda each: -each.bytes),
            )
        if huge:
            yield self._evolve(
                "huge-partitions",
                f"{_are(huge)} larger than {readable(limits.huge_bytes)}",
                finer,
                2 * huge[0].bytes // limits.huge_bytes,
                huge,
            )

    def _evolve(
        self,
        kind: Kind,
        fact: str,
        change: Callable[[Mapping[int, PartitionSpec], Schema, int], str | None],
        times: int,
        chosen: Sequence[PartitionSize],
    ) -> Finding:
        properties = self.manifest.properties
        spec = properties.spec
        text = change(properties.specs, properties.schema, times)
        advice = "a spec without fields" if text == "" else f"a spec such as {text!r}"
        if text is None:
            advice = "another spec"
        target = spec.id + 1
        return Finding(
            kind,
            f"{fact}: {_named(chosen)}. Under {advice} they would be "
            f"{'larger' if change is coarser else 'smaller'}.",
            f"{self._shell('evolve', 'SPEC' if text is None else text)} && "
            f"{self._shell('rewrite', '--target-spec', str(target))}",
            f"table.evolve({'SPEC' if text is None else repr(text)}); "
            f"table.rewrite(target_spec={target})",
            {"partitions": len(chosen), "bytes": sum(each.bytes for each in chosen)},
            tuple(chosen[:MOST_PARTITIONS]),
            spec.id,
        )

    # ── specs ────────────────────────────────────────────────────────────────────────────────

    def _old_specs(self) -> Iterator[Finding]:
        properties = self.manifest.properties
        newest = properties.spec
        for spec_id, leaves in sorted(self.manifest.leaves().items()):
            if spec_id == newest.id or not leaves.num_rows:
                continue
            label = properties.specs[spec_id].label(properties.schema) or "nothing"
            mine = [leaf for leaf in self.leaves if leaf.key.spec_id == spec_id]
            sizes = _worst_first(map(self._size, mine), lambda each: each.bytes)
            if not sizes:
                yield Finding(
                    "empty-spec",
                    f"Spec v{spec_id} by {label} holds no files any more and can be retired; what "
                    "is left of it goes with a vacuum.",
                    self._shell("vacuum"),
                    "table.vacuum()",
                    {"partitions": leaves.num_rows},
                    (),
                    spec_id,
                )
                continue
            files, size = sum(each.files for each in sizes), sum(each.bytes for each in sizes)
            yield Finding(
                "old-spec",
                f"Spec v{spec_id} by {label} still holds {counted(files, 'file')} with "
                f"{readable(size)} in {counted(len(sizes), 'partition')}. The newest is "
                f"v{newest.id} by {newest.label(properties.schema) or 'nothing'}.",
                self._shell("rewrite", "--target-spec", str(newest.id)),
                f"table.rewrite(target_spec={newest.id})",
                {"partitions": len(sizes), "files": files, "bytes": size},
                tuple(sizes[:MOST_PARTITIONS]),
                spec_id,
            )

    # ── files that nothing needs ─────────────────────────────────────────────────────────────

    def _orphans(self) -> Iterator[Finding]:
        try:
            found = vacuum(self.manifest, _KEPT, dry_run=True)
        except ForeignWrite as error:
            uri = self.manifest.root.uri
            call = f"import phalanx; phalanx.open({uri!r}).keep_foreign_writes()"
            yield Finding(
                "foreign-writes",
                str(error),
                f"python -c {_quoted(call)}",
                "table.keep_foreign_writes()",
                {},
            )
            return
        except (PhalanxError, OSError, ValueError) as error:
            if not is_gone(error):
                raise
            yield Finding(
                "missing-history",
                f"An older snapshot cannot be read, and nothing can be vacuumed before it is "
                f"expired. {plain_reason(error)}",
                self._shell("vacuum", "--older-than", "0d"),
                "table.vacuum(timedelta(0))",
                {},
            )
            return
        if found.bytes < self.limits.orphan_bytes:
            return
        snapshots, files = len(found.snapshots), found.files.num_rows
        yield Finding(
            "orphans",
            f"Nothing has needed {counted(files, 'file')} with {readable(found.bytes)} for "
            f"{_KEPT.days} days.",
            self._shell("vacuum"),
            "table.vacuum()",
            {"files": files, "bytes": found.bytes, "snapshots": snapshots},
        )

    def _leftovers(self) -> Iterator[Finding]:
        """Partitions that are not listed any more, and whose files are still there."""
        for each in leftovers(self.manifest):
            uri = each.location.uri
            if each.why is None:
                yield Finding(
                    "leftovers",
                    f"{uri} was a partition, and its files are not all removed yet.",
                    self._shell("vacuum"),
                    "table.vacuum()",
                    {},
                )
                continue
            call = f"import phalanx; phalanx.open({self.manifest.root.uri!r}).adopt({uri!r})"
            yield Finding(
                "leftovers",
                f"{uri} is no partition any more, and vacuum does not remove it: {each.why}. Adopt "
                "it again, or remove it by other means.",
                f"python -c {_quoted(call)}",
                f"table.adopt({uri!r})",
                {},
            )

    # ── words ────────────────────────────────────────────────────────────────────────────────

    def _size(self, leaf: FileLeaf) -> PartitionSize:
        spec = self.manifest.properties.specs[leaf.key.spec_id]
        return PartitionSize(
            leaf.key,
            tuple(field.field_id for field in spec.fields),
            len(leaf.fragments),
            sum(each.num_rows for each in leaf.fragments),
            sum(each.num_deletions for each in leaf.fragments),
            sum(map(bytes_of, leaf.fragments)),
        )

    def _shell(self, command: str, *arguments: str) -> str:
        return " ".join(map(_quoted, ["phalanx", command, self.manifest.root.uri, *arguments]))


def _worst_first(
    sizes: Iterable[PartitionSize], badness: Callable[[PartitionSize], int]
) -> list[PartitionSize]:
    return sorted(sizes, key=lambda each: (-badness(each), each.key.sort_key()))


def _are(partitions: Sequence[PartitionSize]) -> str:
    is_or_are = "is" if len(partitions) == 1 else "are"
    return f"{counted(len(partitions), 'partition')} {is_or_are}"


def _named(partitions: Sequence[PartitionSize]) -> str:
    """The first partitions with their sizes, for people."""
    named = [f"{each} ({readable(each.bytes)})" for each in partitions[:_MOST_NAMED]]
    more = len(partitions) - len(named)
    return ", ".join(named) + (f" and {more:,} more" if more else "")


def _quoted(argument: str) -> str:
    """An argument for a shell: in double quotes where it is text with quotes, as SQL is."""
    if "'" in argument and not _OBEYED.search(argument):
        return f'"{argument}"'
    return shlex.quote(argument)
