"""The health of a table: findings about its partitions, specs and files, each with a remedy."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from statistics import median
from typing import Any, Literal, TypeAlias, get_args, overload

from phalanx.arguments import HealthArguments
from phalanx.errors import ForeignWrite, InvalidArgument, PhalanxError, format_value
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.partition_key import PartitionKey, to_json_value
from phalanx.model.specs.spec import PartitionSpec
from phalanx.planning.formatting import format_bytes, format_count
from phalanx.planning.pruning.partition_where import build_partition_where
from phalanx.planning.rewrite import RewriteGroup, RewriteOptions
from phalanx.planning.spec_suggestions import suggest_coarser_spec, suggest_finer_spec
from phalanx.storage.cleanup.debris import MISSING_VERSION
from phalanx.storage.lance.failures import is_missing_file, summarize_error
from phalanx.storage.manifest.manifest import Manifest
from phalanx.storage.state.table_state import DuplicatePartition
from phalanx.table.maintenance.indexes import count_unindexed_rows
from phalanx.table.maintenance.storage_comparison import (
    MissingLeaf,
    find_leftovers,
    find_missing_files,
    find_missing_leaves,
)
from phalanx.table.maintenance.vacuum import vacuum
from phalanx.table.read.inspection import bytes_of
from phalanx.table.read.rewrite_planning import (
    PlannedFiles,
    PlannedLeaf,
    open_leaves,
    plan_rewrite_files,
)

FindingKind: TypeAlias = Literal[
    "missing-partitions",
    "missing-files",
    "missing-history",
    "foreign-writes",
    "doubled-partitions",
    "compaction",
    "deleted-rows",
    "unindexed-rows",
    "skew",
    "tiny-partitions",
    "huge-partitions",
    "old-spec",
    "empty-spec",
    "orphans",
    "leftovers",
]


FINDING_KINDS: tuple[FindingKind, ...] = get_args(FindingKind)


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthLimits:
    """The thresholds of findings. Sizes are bytes of partitions under the newest spec.

    | | |
    |---|---|
    | `skew_ratio` | a partition is skewed if it is this many times as large as the median … |
    | `skew_bytes` | … and at least this large: smaller ones delay no task … |
    | `skew_partitions` | … and if at least this many partitions have rows |
    | `tiny_bytes` | a partition smaller than this is tiny … |
    | `tiny_partitions` | … which is a finding if at least this many, and more than half, are |
    | `huge_bytes` | a partition larger than this is huge |
    | `orphan_bytes` | this many bytes of orphan files are a finding |

    The defaults of `RewriteOptions` decide which partitions need compaction and which files have
    many deleted rows.
    """

    skew_ratio: int = 10
    skew_bytes: int = 128 << 20
    skew_partitions: int = 5
    tiny_bytes: int = 16 << 20
    tiny_partitions: int = 50
    huge_bytes: int = 100 << 30
    orphan_bytes: int = 1

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InvalidArgument(
                    f"Cannot check health with {each.name}={format_value(value)}: expected a "
                    "positive integer."
                )


def parse_limits(options: HealthArguments) -> HealthLimits:
    """Return the limits that the options set, with defaults for the others."""
    known = [each.name for each in fields(HealthLimits)]
    for name, value in options.items():
        if name not in known:
            raise InvalidArgument(
                f"Cannot check health with {name}={format_value(value)}: there is no such limit. "
                f"Expected one of {', '.join(known)}."
            )
    return HealthLimits(**options)


@dataclass(frozen=True, slots=True)
class PartitionSize:
    """A partition and its size.

    Attributes:
        key: The spec and the partition values.
        fields: The ids of the partition fields.
        files: The number of data files.
        rows: The number of rows, without deleted ones.
        deleted_rows: The number of deleted rows that are still stored.
        bytes: The size of the data files.
    """

    key: PartitionKey
    fields: tuple[str, ...]
    files: int
    rows: int
    deleted_rows: int
    bytes: int

    def to_dict(self) -> dict[str, Any]:
        """Return the partition as JSON values."""
        return {
            "spec_id": self.key.spec_id,
            "values": {name: to_json_value(value) for name, value in self._field_values()},
            "files": self.files,
            "rows": self.rows,
            "deleted_rows": self.deleted_rows,
            "bytes": self.bytes,
        }

    def __str__(self) -> str:
        values = (
            f"{name}={'NULL' if value is None else to_json_value(value)}"
            for name, value in self._field_values()
        )
        return " ".join([f"v{self.key.spec_id}", *values])

    def _field_values(self) -> Iterator[tuple[str, Any]]:
        return zip(self.fields, self.key.values, strict=True)


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem, and the command that fixes it, for the shell and for Python.

    The commands omit the storage options, which may be secret. In Python the table is called
    `table`.

    Attributes:
        kind: The kind of problem, such as "compaction" or "tiny-partitions".
        message: The problem in a sentence.
        command: The command that fixes it in the shell.
        python: The call that fixes it in Python.
        figures: The numbers that the message is based on, by name, over all partitions affected.
        partitions: The partitions that are affected most, the worst first.
        spec_id: The spec affected; None if the problem is not one of a spec.
    """

    kind: FindingKind
    message: str
    command: str
    python: str
    figures: Mapping[str, int]
    partitions: tuple[PartitionSize, ...] = ()
    spec_id: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as JSON values."""
        return {
            "kind": self.kind,
            "message": self.message,
            "command": self.command,
            "python": self.python,
            "spec_id": self.spec_id,
            "figures": dict(self.figures),
            "partitions": [each.to_dict() for each in self.partitions],
        }

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}\n  {self.command}"


@dataclass(frozen=True, slots=True)
class Health(Sequence[Finding]):
    """The findings about a table, ordered by kind.

    Attributes:
        findings: The findings.
        more: The number of further findings, which are left out.
    """

    findings: tuple[Finding, ...] = ()
    more: int = 0

    @overload
    def __getitem__(self, index: int) -> Finding: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Finding, ...]: ...
    def __getitem__(self, index: int | slice) -> Finding | tuple[Finding, ...]:
        return self.findings[index]

    def __len__(self) -> int:
        return len(self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Return the findings as JSON values."""
        return {"findings": [each.to_dict() for each in self.findings], "more_findings": self.more}

    def __str__(self) -> str:
        if not self.findings:
            return "healthy: nothing to do"
        lines = [str(each) for each in self.findings]
        return "\n".join(
            lines + [f"and {format_count(self.more, 'finding')} more"] * bool(self.more)
        )


# The most findings, and the most partitions of one finding; the rest is only counted.
MAX_FINDINGS = 50
MAX_PARTITIONS = 20
# The most partitions that a message or a `where` names.
_MAX_NAMED = 3
# Characters that a shell interprets in double quotes.
_SHELL_SPECIAL = re.compile(r'[$`"\\!]')
# The default of `Table.vacuum`.
_VACUUM_AGE = timedelta(days=7)


def check_health(manifest: Manifest, limits: HealthLimits) -> Health:
    """Return the findings about a table, without changing it.

    Opens every leaf once. Only the search for orphan files, a dry run of vacuum, opens the leaves
    again.
    """
    missing: list[MissingLeaf] = []
    while True:
        try:
            files = plan_rewrite_files(_exclude_missing(manifest, missing), RewriteOptions())
            break
        except (PhalanxError, OSError, ValueError):
            # A vacuum, or something outside Phalanx, removed files while we read.
            latest = manifest.load_latest()
            gone = find_missing_leaves(latest)
            if latest is manifest and gone == missing:
                raise
            manifest, missing = latest, gone
    checkup = _HealthCheck(manifest, files, files.leaves, limits, tuple(missing))
    found = sorted(checkup.find_all(), key=lambda each: FINDING_KINDS.index(each.kind))
    return Health(tuple(found[:MAX_FINDINGS]), max(0, len(found) - MAX_FINDINGS))


def _exclude_missing(manifest: Manifest, missing: Sequence[MissingLeaf]) -> Manifest:
    return manifest.without_leaves(leaf.object_id for leaf in missing) if missing else manifest


@dataclass(frozen=True, slots=True)
class _HealthCheck:
    """All checks of a table, based on a plan to rewrite its files."""

    manifest: Manifest
    files: PlannedFiles
    leaves: Sequence[PlannedLeaf]
    limits: HealthLimits
    missing: tuple[MissingLeaf, ...]

    def find_all(self) -> Iterator[Finding]:
        """Yield all findings, in no particular order."""
        yield from self._find_missing()
        yield from self._find_duplicates()
        yield from self._find_rewrites()
        yield from self._find_unindexed()
        yield from self._find_bad_sizes()
        yield from self._find_old_specs()
        if not self.missing:
            yield from self._find_orphans()
        yield from self._find_leftovers()

    # ── missing partitions and files ─────────────────────────────────────────────────────────

    def _find_missing(self) -> Iterator[Finding]:
        """Find partitions, and files of partitions, that are listed but not in storage."""
        if self.missing:
            first, *others = self.missing
            yield self._missing_finding(
                "missing-partitions",
                f"{format_count(len(self.missing), 'partition')} of the manifest "
                f"{'is' if not others else 'are'} not in storage, such as the one at "
                f"{first.location}. Something removed files outside Phalanx.",
                [each.key for each in self.missing],
                {},
            )
        if files := find_missing_files(self.manifest, self.leaves):
            damaged = [leaf for leaf in self.leaves if leaf.object_id in files]
            count = sum(map(len, files.values()))
            yield self._missing_finding(
                "missing-files",
                f"{format_count(len(damaged), 'partition')} "
                f"{'needs' if len(damaged) == 1 else 'need'} {format_count(count, 'file')} that "
                "storage does not have, such as "
                f"{damaged[0].location}/{files[damaged[0].object_id][0]}. "
                "Something removed files outside Phalanx.",
                [leaf.key for leaf in damaged],
                {"files": count},
            )

    def _missing_finding(
        self, kind: FindingKind, fact: str, keys: Sequence[PartitionKey], figures: Mapping[str, int]
    ) -> Finding:
        properties, uri = self.manifest.properties, self.manifest.root.uri
        where = build_partition_where(keys, properties.specs, properties.schema) or "true"
        call = f"import phalanx; phalanx.open({uri!r}).drop_partitions({where!r})"
        return Finding(
            kind,
            f"{fact} Restore them from a copy, or drop the partitions and lose their rows.",
            f"python -c {_quote_argument(call)}",
            f"table.drop_partitions({where!r})",
            {"partitions": len(keys), **figures},
        )

    # ── files ────────────────────────────────────────────────────────────────────────────────

    def _find_duplicates(self) -> Iterator[Finding]:
        """Find partitions of which several leaves have rows."""
        found = [
            leaves
            for each in self.manifest.find_duplicate_partitions()
            if len(leaves := self._leaves_with_rows(each)) > 1
        ]
        if not found:
            return
        sizes = [self._measure(leaf) for leaves in found for leaf in leaves[:1]]
        locations = " and ".join(str(leaf.location) for leaf in found[0])
        has = "has" if len(found) == 1 else "have"
        yield self._rewrite_finding(
            "doubled-partitions",
            f"{format_count(len(found), 'partition')} {has} several leaves, listed by another "
            f"writer: {sizes[0]} has {locations}.",
            {"leaves": sum(map(len, found))},
            sizes,
        )

    def _leaves_with_rows(self, doubled: DuplicatePartition) -> list[PlannedLeaf]:
        """Return the leaves of a partition that have rows."""
        found = open_leaves(self.manifest, doubled.spec_id, doubled.leaves)
        return [leaf for leaf in found if any(each.num_rows for each in leaf.fragments)]

    def _find_rewrites(self) -> Iterator[Finding]:
        """Find partitions with small files to compact, or with files of many deleted rows."""
        groups = self.files.plan.groups
        heavy = [group for group in groups if self._count_heavy_files(group)]
        # A rewrite also takes a single file if it has many deleted rows.
        alone = {group.id for group in heavy if len(group.files) == 1}
        several = [group for group in groups if group.id not in alone]
        if several:
            chosen = self._measure_groups(several, lambda each: each.files)
            files = sum(len(group.files) for group in several)
            size = sum(group.bytes for group in several)
            needs = "needs" if len(chosen) == 1 else "need"
            yield self._rewrite_finding(
                "compaction",
                f"{format_count(len(chosen), 'partition')} {needs} compaction, "
                f"{format_count(files, 'file')} with {format_bytes(size)}: "
                f"{_format_partitions(chosen)}.",
                {"files": files, "bytes": size},
                chosen,
            )
        if heavy:
            chosen = self._measure_groups(heavy, lambda each: each.deleted_rows)
            files = sum(self._count_heavy_files(group) for group in heavy)
            rows = sum(each.deleted_rows for each in chosen)
            ratio = self.files.plan.options.delete_ratio_threshold
            has = "has" if len(chosen) == 1 else "have"
            yield self._rewrite_finding(
                "deleted-rows",
                f"{format_count(len(chosen), 'partition')} {has} {format_count(files, 'file')} "
                f"with {ratio:.0%} or more of the rows deleted: {_format_partitions(chosen)}.",
                {"files": files, "deleted_rows": rows},
                chosen,
            )

    def _count_heavy_files(self, group: RewriteGroup) -> int:
        """Count the files of a group with many deleted rows."""
        ratio = self.files.plan.options.delete_ratio_threshold
        return sum(
            sum(each.rows or 0 for each in file.deletes) / max(file.rows, 1) >= ratio
            for file in group.files
        )

    def _measure_groups(
        self, groups: Sequence[RewriteGroup], badness: Callable[[PartitionSize], int]
    ) -> list[PartitionSize]:
        """Return the partitions of the groups, worst first."""
        return _sort_worst_first(
            (self._measure(leaf) for leaf, _ in self.files.group_by_leaf(groups)), badness
        )

    def _rewrite_finding(
        self,
        kind: FindingKind,
        message: str,
        figures: Mapping[str, int],
        chosen: Sequence[PartitionSize],
    ) -> Finding:
        where = None
        if len(chosen) <= _MAX_NAMED and len(chosen) < len(self.leaves):
            properties = self.manifest.properties
            keys = [each.key for each in chosen]
            where = build_partition_where(keys, properties.specs, properties.schema)
        return Finding(
            kind,
            message,
            self._shell_command("rewrite", *([] if where is None else ["--where", where])),
            f"table.rewrite({'' if where is None else repr(where)})",
            {"partitions": len(chosen), **figures},
            tuple(chosen[:MAX_PARTITIONS]),
        )

    def _find_unindexed(self) -> Iterator[Finding]:
        """Find rows that a declared index should cover and does not."""
        rows = count_unindexed_rows(self.manifest, self.leaves)
        if not rows:
            return
        by_id = {
            leaf.object_id: self._measure(leaf) for leaf in self.leaves if leaf.object_id in rows
        }
        chosen = _sort_worst_first(by_id.values(), lambda each: each.rows)
        total = sum(rows.values())
        yield Finding(
            "unindexed-rows",
            f"{format_count(total, 'row')} in {format_count(len(chosen), 'partition')} are not "
            f"indexed yet: {_format_partitions(chosen)}.",
            self._shell_command("index"),
            "table.optimize_indexes()",
            {"partitions": len(chosen), "rows": total},
            tuple(chosen[:MAX_PARTITIONS]),
        )

    # ── partitions ───────────────────────────────────────────────────────────────────────────

    def _find_bad_sizes(self) -> Iterator[Finding]:
        """Find partitions under the newest spec that are too small or too large."""
        spec_id, limits = self.manifest.properties.spec.id, self.limits
        leaves = [leaf for leaf in self.leaves if leaf.key.spec_id == spec_id]
        sizes = _sort_worst_first(map(self._measure, leaves), lambda each: each.bytes)
        middle = int(median([each.bytes for each in sizes])) if sizes else 0
        huge = [each for each in sizes if each.bytes > limits.huge_bytes]
        least = max(limits.skew_bytes, limits.skew_ratio * middle)
        skewed = [each for each in sizes[len(huge) :] if each.bytes >= least]
        tiny = [each for each in sizes if each.bytes < limits.tiny_bytes]
        if skewed and len(sizes) >= limits.skew_partitions:
            yield self._evolve_finding(
                "skew",
                f"{_count_as_subject(skewed)} at least {limits.skew_ratio} times as large as the "
                f"median of {format_bytes(middle)}",
                suggest_finer_spec,
                skewed[0].bytes // max(middle, limits.tiny_bytes),
                skewed,
            )
        if len(tiny) >= limits.tiny_partitions and 2 * len(tiny) > len(sizes):
            yield self._evolve_finding(
                "tiny-partitions",
                f"{_count_as_subject(tiny)} smaller than {format_bytes(limits.tiny_bytes)}, of "
                f"{len(sizes):,}",
                suggest_coarser_spec,
                limits.tiny_bytes // max(middle, 1),
                _sort_worst_first(tiny, lambda each: -each.bytes),
            )
        if huge:
            yield self._evolve_finding(
                "huge-partitions",
                f"{_count_as_subject(huge)} larger than {format_bytes(limits.huge_bytes)}",
                suggest_finer_spec,
                2 * huge[0].bytes // limits.huge_bytes,
                huge,
            )

    def _evolve_finding(
        self,
        kind: FindingKind,
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
            f"{fact}: {_format_partitions(chosen)}. Under {advice} they would be "
            f"{'larger' if change is suggest_coarser_spec else 'smaller'}.",
            f"{self._shell_command('evolve', 'SPEC' if text is None else text)} && "
            f"{self._shell_command('rewrite', '--target-spec', str(target))}",
            f"table.evolve({'SPEC' if text is None else repr(text)}); "
            f"table.rewrite(target_spec={target})",
            {"partitions": len(chosen), "bytes": sum(each.bytes for each in chosen)},
            tuple(chosen[:MAX_PARTITIONS]),
            spec.id,
        )

    # ── specs ────────────────────────────────────────────────────────────────────────────────

    def _find_old_specs(self) -> Iterator[Finding]:
        properties = self.manifest.properties
        newest = properties.spec
        for spec_id, leaves in sorted(self.manifest.list_leaves().items()):
            if spec_id == newest.id or not leaves.num_rows:
                continue
            label = properties.specs[spec_id].label(properties.schema) or "nothing"
            own_leaves = [leaf for leaf in self.leaves if leaf.key.spec_id == spec_id]
            sizes = _sort_worst_first(map(self._measure, own_leaves), lambda each: each.bytes)
            if not sizes:
                yield Finding(
                    "empty-spec",
                    f"Spec v{spec_id} by {label} no longer holds files. A vacuum removes those of "
                    "older versions.",
                    self._shell_command("vacuum"),
                    "table.vacuum()",
                    {"partitions": leaves.num_rows},
                    (),
                    spec_id,
                )
                continue
            files, size = sum(each.files for each in sizes), sum(each.bytes for each in sizes)
            yield Finding(
                "old-spec",
                f"Spec v{spec_id} by {label} still holds {format_count(files, 'file')} with "
                f"{format_bytes(size)} in {format_count(len(sizes), 'partition')}. The newest is "
                f"v{newest.id} by {newest.label(properties.schema) or 'nothing'}.",
                self._shell_command("rewrite", "--target-spec", str(newest.id)),
                f"table.rewrite(target_spec={newest.id})",
                {"partitions": len(sizes), "files": files, "bytes": size},
                tuple(sizes[:MAX_PARTITIONS]),
                spec_id,
            )

    # ── orphan files ─────────────────────────────────────────────────────────────────────────

    def _find_orphans(self) -> Iterator[Finding]:
        try:
            found = vacuum(self.manifest, _VACUUM_AGE, dry_run=True)
        except ForeignWrite as error:
            uri = self.manifest.root.uri
            call = f"import phalanx; phalanx.open({uri!r}).keep_foreign_writes()"
            yield Finding(
                "foreign-writes",
                str(error),
                f"python -c {_quote_argument(call)}",
                "table.keep_foreign_writes()",
                {},
            )
            return
        except (PhalanxError, OSError, ValueError) as error:
            if not is_missing_file(error):
                raise
            yield self._describe_missing_history(summarize_error(error))
            return
        for leaf, why in found.left_alone.items():
            if why == MISSING_VERSION:
                yield self._describe_missing_history(f"{leaf}: {why}.")
        if found.bytes < self.limits.orphan_bytes:
            return
        snapshots, files = len(found.snapshots), found.files.num_rows
        yield Finding(
            "orphans",
            f"{format_count(files, 'file')} with {format_bytes(found.bytes)} "
            f"{'has' if files == 1 else 'have'} not been needed for {_VACUUM_AGE.days} days.",
            self._shell_command("vacuum"),
            "table.vacuum()",
            {"files": files, "bytes": found.bytes, "snapshots": snapshots},
        )

    def _describe_missing_history(self, reason: str) -> Finding:
        return Finding(
            "missing-history",
            f"An older snapshot cannot be read until it is expired. {reason}",
            self._shell_command("vacuum", "--older-than", "0d"),
            "table.vacuum(timedelta(0))",
            {},
        )

    def _find_leftovers(self) -> Iterator[Finding]:
        """Find former partitions whose files are still in storage."""
        for each in find_leftovers(self.manifest):
            uri = each.location.uri
            if each.why is None:
                yield Finding(
                    "leftovers",
                    f"{uri} is no longer a partition, but some of its files remain.",
                    self._shell_command("vacuum"),
                    "table.vacuum()",
                    {},
                )
                continue
            call = f"import phalanx; phalanx.open({self.manifest.root.uri!r}).adopt({uri!r})"
            yield Finding(
                "leftovers",
                f"{uri} is no longer a partition, and vacuum does not remove it: {each.why}. Adopt "
                "it again, or remove it by other means.",
                f"python -c {_quote_argument(call)}",
                f"table.adopt({uri!r})",
                {},
            )

    # ── formatting ───────────────────────────────────────────────────────────────────────────

    def _measure(self, leaf: PlannedLeaf) -> PartitionSize:
        spec = self.manifest.properties.specs[leaf.key.spec_id]
        return PartitionSize(
            leaf.key,
            tuple(field.field_id for field in spec.fields),
            len(leaf.fragments),
            sum(each.num_rows for each in leaf.fragments),
            sum(each.num_deletions for each in leaf.fragments),
            sum(map(bytes_of, leaf.fragments)),
        )

    def _shell_command(self, command: str, *arguments: str) -> str:
        return " ".join(
            map(_quote_argument, ["phalanx", command, self.manifest.root.uri, *arguments])
        )


def _sort_worst_first(
    sizes: Iterable[PartitionSize], badness: Callable[[PartitionSize], int]
) -> list[PartitionSize]:
    return sorted(sizes, key=lambda each: (-badness(each), each.key.sort_key()))


def _count_as_subject(partitions: Sequence[PartitionSize]) -> str:
    is_or_are = "is" if len(partitions) == 1 else "are"
    return f"{format_count(len(partitions), 'partition')} {is_or_are}"


def _format_partitions(partitions: Sequence[PartitionSize]) -> str:
    """Return the first partitions and their sizes as text."""
    named = [f"{each} ({format_bytes(each.bytes)})" for each in partitions[:_MAX_NAMED]]
    more = len(partitions) - len(named)
    return ", ".join(named) + (f" and {more:,} more" if more else "")


def _quote_argument(argument: str) -> str:
    """Quote an argument for a shell; in double quotes if it contains single ones, as SQL does."""
    if "'" in argument and not _SHELL_SPECIAL.search(argument):
        return f'"{argument}"'
    return shlex.quote(argument)
