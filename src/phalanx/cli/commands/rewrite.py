"""The command `rewrite`: compact small files, or move rows to the newest spec."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.filesize import decimal

from phalanx.cli.console import json_text
from phalanx.cli.console.local_spark import start_local_spark
from phalanx.cli.console.messages import note, show_group_progress, show_spinner, warn
from phalanx.cli.console.options import (
    Output,
    OutputOption,
    StorageOptions,
    Uri,
    parse_size,
    parse_storage_options,
)
from phalanx.cli.console.results import (
    TableColumn,
    escape_unprintable,
    format_cell,
    make_column,
    print_columns,
    print_result,
)
from phalanx.model.specs.partition_key import to_json_value
from phalanx.planning.formatting import format_count
from phalanx.planning.rewrite import RewriteGroup, RewriteOptions, RewritePlan
from phalanx.table.maintenance.rewrite import DEFAULT_MAX_COMMITS, Rewritten
from phalanx.table.opening import open as open_table

_SHOWN_GROUPS = 100
_DEFAULTS = RewriteOptions()


class JobOrder(StrEnum):
    """The order in which groups are rewritten."""

    NONE = "none"
    BYTES_ASC = "bytes-asc"
    BYTES_DESC = "bytes-desc"
    FILES_ASC = "files-asc"
    FILES_DESC = "files-desc"


def rewrite(
    uri: Uri,
    where: Annotated[
        str | None,
        typer.Option(help="An SQL predicate: only partitions that may match.", show_default=False),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be rewritten.")
    ] = False,
    target_spec: Annotated[
        int | None,
        typer.Option(metavar="N", help="Move rows of older specs to this one.", show_default=False),
    ] = None,
    target_file_size: Annotated[
        str, typer.Option(metavar="SIZE", help="The size of new files.")
    ] = f"{_DEFAULTS.target_file_size_bytes >> 20}MB",
    min_input_files: Annotated[
        int, typer.Option(metavar="N", help="Rewrite a partition if it has this many files …")
    ] = _DEFAULTS.min_input_files,
    delete_ratio: Annotated[
        float, typer.Option(metavar="PART", help="… or a file if this part of its rows is deleted.")
    ] = _DEFAULTS.delete_ratio_threshold,
    max_group_size: Annotated[
        str, typer.Option(metavar="SIZE", help="The most to rewrite at once.")
    ] = f"{_DEFAULTS.max_file_group_size_bytes >> 30}GB",
    max_files: Annotated[
        int | None,
        typer.Option(metavar="N", help="Rewrite at most this many files.", show_default=False),
    ] = None,
    job_order: Annotated[JobOrder, typer.Option(help="The order of groups.")] = JobOrder.NONE,
    rewrite_all: Annotated[
        bool, typer.Option("--rewrite-all", help="Rewrite every file, regardless of its size.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Fail where --where cannot be decided.")
    ] = False,
    case_sensitive: Annotated[
        bool, typer.Option("--case-sensitive", help="Match names in --where by case.")
    ] = False,
    partial_progress: Annotated[
        bool,
        typer.Option("--partial-progress", help="Commit in several snapshots, in strong mode."),
    ] = False,
    max_commits: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help=f"With --partial-progress: at most this many; {DEFAULT_MAX_COMMITS} by default.",
        ),
    ] = None,
    spark: Annotated[
        bool, typer.Option("--spark", help="Run it on Spark on this machine.")
    ] = False,
    output: OutputOption = Output.TABLE,
    storage_option: StorageOptions = None,
) -> None:
    """Rewrite small files of partitions as larger ones, without deleted rows.

    Every partition keeps its rows. With --target-spec, rows of older specs move to their
    partitions under the newest spec instead.
    """
    if max_commits is not None and not partial_progress:
        raise typer.BadParameter(
            "This option needs --partial-progress: give both.",
            param_hint="'--max-commits'",
        )
    options: dict[str, Any] = {
        "target_spec": target_spec,
        "target_file_size_bytes": parse_size(target_file_size, "'--target-file-size'"),
        "min_input_files": min_input_files,
        "delete_ratio_threshold": delete_ratio,
        "max_file_group_size_bytes": parse_size(max_group_size, "'--max-group-size'"),
        "max_files_to_rewrite": max_files,
        "rewrite_job_order": job_order.value,
        "rewrite_all": rewrite_all,
        "strict": strict,
        "case_sensitive": case_sensitive,
        "partial_progress": partial_progress,
        "max_commits": DEFAULT_MAX_COMMITS if max_commits is None else max_commits,
    }
    table = open_table(uri, storage_options=parse_storage_options(storage_option))
    if dry_run:
        with show_spinner("planning"):
            plan = table.plan_rewrite(where, **options)
        _warn_of_filter(plan)
        if output is Output.JSON:
            typer.echo(json_text.dumps(plan.to_dict(), indent=2))
        else:
            _print_plan(plan)
        return
    session = start_local_spark("rewrite") if spark else None
    with show_group_progress("rewriting") as progress:
        done = table.rewrite(where, spark=session, progress=progress, **options)
    _warn_of_filter(done.plan)
    _warn_of_dropped(done)
    print_result(output, _summarize(done), done.to_dict())


def _summarize(done: Rewritten) -> str:
    """Return a sentence about what was done, without the dropped groups."""
    if not done.groups and done.dropped:
        return "Rewrote nothing."
    text = str(replace(done, dropped=()))
    return f"{text[0].upper()}{text[1:]}."


def _warn_of_filter(plan: RewritePlan) -> None:
    """Warn about partitions that are included because the filter could not be decided."""
    for each in plan.diagnostics:
        if each.partitions:
            kept = format_count(each.partitions, "partition")
            cause = escape_unprintable(each.cause)
            warn(f"{kept} of spec v{each.spec_id} included undecided: {cause}")
    if plan.more_diagnostics:
        warn(
            f"{format_count(plan.more_diagnostics, 'cause')} more, for which partitions are "
            "included undecided."
        )


def _warn_of_dropped(done: Rewritten) -> None:
    for group in done.dropped:
        warn(
            f"left {format_count(len(group.files), 'file')} of "
            f"{_format_partition(done.plan, group)} alone, which other writers changed meanwhile. "
            "Run it again."
        )


def _print_plan(plan: RewritePlan) -> None:
    """Print the groups with a column for each partition field; then what is left out, and why."""
    shown = plan.groups[:_SHOWN_GROUPS]
    values = [_partition_values(plan, group) for group in shown]
    names = dict.fromkeys(name for each in values for name in each)
    if shown:
        print_columns(
            [
                make_column("group", [group.id for group in shown]),
                make_column("spec", [f"v{group.key.spec_id}" for group in shown]),
                *(
                    TableColumn(
                        name, [format_cell(each[name]) if name in each else "" for each in values]
                    )
                    for name in names
                ),
                make_column("files", [len(group.files) for group in shown]),
                TableColumn("size", [decimal(group.bytes) for group in shown], is_number=True),
                make_column("deleted rows", [_count_deleted_rows(group) for group in shown]),
            ]
        )
        typer.echo()
    typer.echo(
        f"Would rewrite {plan.rewritten_files:,} of {format_count(plan.total_files, 'file')}, "
        f"{decimal(plan.rewritten_bytes)}, in {format_count(len(plan.groups), 'group')}."
    )
    files = Counter[str]()
    for left in plan.left_out:
        files[left.reason] += len(left.files)
    for reason, count in sorted(files.items()):
        typer.echo(f"Left out {format_count(count, 'file')}: {reason}.")
    for spec_id in plan.retirable:
        typer.echo(
            f"Spec v{spec_id} no longer holds files: a vacuum removes those of older versions."
        )
    if hidden := len(plan.groups) - len(shown):
        note(f"{hidden:,} more groups: --output json has them.")


def _count_deleted_rows(group: RewriteGroup) -> int:
    return sum(each.rows or 0 for each in group.delete_files)


def _partition_values(plan: RewritePlan, group: RewriteGroup) -> dict[str, Any]:
    names = plan.keys[group.key.spec_id].column_names
    return dict(zip(names, map(to_json_value, group.key.values), strict=True))


def _format_partition(plan: RewritePlan, group: RewriteGroup) -> str:
    values = (
        f"{name}={format_cell(value)}" for name, value in _partition_values(plan, group).items()
    )
    return " ".join([f"v{group.key.spec_id}", *values])
