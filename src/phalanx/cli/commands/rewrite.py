"""The command `rewrite`: small files become larger ones, or rows go to the newest spec."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.filesize import decimal

from phalanx.cli.console import json_text
from phalanx.cli.console.local_spark import local_spark
from phalanx.cli.console.messages import counting_groups, working
from phalanx.cli.console.options import (
    Output,
    OutputOption,
    StorageOptions,
    Uri,
    size_of,
    storage_options,
)
from phalanx.cli.console.results import Column, cell, column, printable, show
from phalanx.cli.failures import note, warn
from phalanx.cli.results import tell
from phalanx.model.specs.partition_key import json_value
from phalanx.planning.pruning.scan_plan import counted
from phalanx.planning.rewrite import RewriteGroup, RewriteOptions, RewritePlan
from phalanx.table.maintenance.rewrite import MOST_COMMITS, Rewritten
from phalanx.table.opening import open as open_table

_SHOWN_GROUPS = 100
_DEFAULTS = RewriteOptions()


class JobOrder(StrEnum):
    """Which groups are rewritten first."""

    NONE = "none"
    BYTES_ASC = "bytes-asc"
    BYTES_DESC = "bytes-desc"
    FILES_ASC = "files-asc"
    FILES_DESC = "files-desc"


def rewrite(
    uri: Uri,
    where: Annotated[
        str | None,
        typer.Option(
            help="An SQL predicate: only partitions that may hold a match.", show_default=False
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be rewritten.")
    ] = False,
    target_spec: Annotated[
        int | None,
        typer.Option(metavar="N", help="Move rows of older specs to this one.", show_default=False),
    ] = None,
    target_file_size: Annotated[
        str, typer.Option(metavar="SIZE", help="How large new files should be.")
    ] = f"{_DEFAULTS.target_file_size_bytes >> 20}MB",
    min_input_files: Annotated[
        int, typer.Option(metavar="N", help="So many files are worth a rewrite.")
    ] = _DEFAULTS.min_input_files,
    delete_ratio: Annotated[
        float, typer.Option(metavar="PART", help="So large a part of deleted rows is, too.")
    ] = _DEFAULTS.delete_ratio_threshold,
    max_group_size: Annotated[
        str, typer.Option(metavar="SIZE", help="What is rewritten at once.")
    ] = f"{_DEFAULTS.max_file_group_size_bytes >> 30}GB",
    max_files: Annotated[
        int | None,
        typer.Option(metavar="N", help="No more files than these.", show_default=False),
    ] = None,
    job_order: Annotated[JobOrder, typer.Option(help="Which groups come first.")] = JobOrder.NONE,
    rewrite_all: Annotated[
        bool, typer.Option("--rewrite-all", help="Every file, whatever its size.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Fail where --where cannot be decided.")
    ] = False,
    case_sensitive: Annotated[
        bool, typer.Option("--case-sensitive", help="Names in --where are as they are spelled.")
    ] = False,
    partial_progress: Annotated[
        bool,
        typer.Option("--partial-progress", help="Commit in several snapshots, in strong mode."),
    ] = False,
    max_commits: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help=f"With --partial-progress: how many, at most; {MOST_COMMITS} if unsaid.",
        ),
    ] = None,
    spark: Annotated[
        bool, typer.Option("--spark", help="Run it on Spark on this machine.")
    ] = False,
    output: OutputOption = Output.TABLE,
    storage_option: StorageOptions = None,
) -> None:
    """Write small files of partitions anew as larger ones, without their deleted rows.

    Every partition keeps its rows. With --target-spec, rows of older specs move to their
    partitions under the newest instead.
    """
    if max_commits is not None and not partial_progress:
        raise typer.BadParameter(
            "It says how many commits --partial-progress makes: give both.",
            param_hint="'--max-commits'",
        )
    options: dict[str, Any] = {
        "target_spec": target_spec,
        "target_file_size_bytes": size_of(target_file_size, "'--target-file-size'"),
        "min_input_files": min_input_files,
        "delete_ratio_threshold": delete_ratio,
        "max_file_group_size_bytes": size_of(max_group_size, "'--max-group-size'"),
        "max_files_to_rewrite": max_files,
        "rewrite_job_order": job_order.value,
        "rewrite_all": rewrite_all,
        "strict": strict,
        "case_sensitive": case_sensitive,
        "partial_progress": partial_progress,
        "max_commits": MOST_COMMITS if max_commits is None else max_commits,
    }
    table = open_table(uri, storage_options=storage_options(storage_option))
    if dry_run:
        with working("planning"):
            plan = table.plan_rewrite(where, **options)
        _warn_of_filter(plan)
        if output is Output.JSON:
            typer.echo(json_text.dumps(plan.to_dict(), indent=2))
        else:
            _show_plan(plan)
        return
    session = local_spark("rewrite") if spark else None
    with counting_groups("rewriting") as progress:
        done = table.rewrite(where, spark=session, progress=progress, **options)
    _warn_of_filter(done.plan)
    _warn_of_dropped(done)
    tell(output, _sentence(done), done.to_dict())


def _sentence(done: Rewritten) -> str:
    """What was done; what was not is a warning."""
    if not done.groups and done.dropped:
        return "Rewrote nothing."
    text = str(replace(done, dropped=()))
    return f"{text[0].upper()}{text[1:]}."


def _warn_of_filter(plan: RewritePlan) -> None:
    """Say on stderr which partitions are included because nothing could be decided."""
    for each in plan.diagnostics:
        if each.partitions:
            kept = counted(each.partitions, "partition")
            warn(f"{kept} of spec v{each.spec_id} included undecided: {printable(each.cause)}")
    if plan.untold:
        warn(f"{counted(plan.untold, 'cause')} more, for which partitions are included undecided.")


def _warn_of_dropped(done: Rewritten) -> None:
    for group in done.dropped:
        warn(
            f"left {counted(len(group.files), 'file')} of {_shown(done.plan, group)} alone, which "
            "other writers changed meanwhile. Run it again."
        )


def _show_plan(plan: RewritePlan) -> None:
    """Print the groups, a column for each partition field; then what is left out, and why."""
    shown = plan.groups[:_SHOWN_GROUPS]
    values = [_values(plan, group) for group in shown]
    names = dict.fromkeys(name for each in values for name in each)
    if shown:
        show(
            [
                column("group", [group.id for group in shown]),
                column("spec", [f"v{group.key.spec_id}" for group in shown]),
                *(
                    Column(name, [cell(each[name]) if name in each else "" for each in values])
                    for name in names
                ),
                column("files", [len(group.files) for group in shown]),
                Column("size", [decimal(group.bytes) for group in shown], is_number=True),
                column("deleted rows", [_deleted_rows(group) for group in shown]),
            ]
        )
        typer.echo()
    typer.echo(
        f"Would rewrite {plan.rewritten_files:,} of {counted(plan.total_files, 'file')}, "
        f"{decimal(plan.rewritten_bytes)}, in {counted(len(plan.groups), 'group')}."
    )
    files = Counter[str]()
    for left in plan.left_out:
        files[left.reason] += len(left.files)
    for reason, count in sorted(files.items()):
        typer.echo(f"Left out {counted(count, 'file')}: {reason}.")
    for spec_id in plan.retirable:
        typer.echo(f"Spec v{spec_id} holds no files any more: it can be retired.")
    if hidden := len(plan.groups) - len(shown):
        note(f"{hidden:,} more groups: --output json has them.")


def _deleted_rows(group: RewriteGroup) -> int:
    return sum(each.rows or 0 for each in group.delete_files)


def _values(plan: RewritePlan, group: RewriteGroup) -> dict[str, Any]:
    names = plan.keys[group.key.spec_id].column_names
    return dict(zip(names, map(json_value, group.key.values), strict=True))


def _shown(plan: RewritePlan, group: RewriteGroup) -> str:
    values = (f"{name}={cell(value)}" for name, value in _values(plan, group).items())
    return " ".join([f"v{group.key.spec_id}", *values])
