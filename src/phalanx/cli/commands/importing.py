"""The command `import`: tables of other systems, and files, by Spark on this machine."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from phalanx.cli.console import json_text
from phalanx.cli.console.local_spark import local_spark
from phalanx.cli.console.messages import working
from phalanx.cli.console.options import (
    Mode,
    Output,
    OutputOption,
    StorageOptions,
    Uri,
    key_values,
    size_of,
    storage_options,
)
from phalanx.cli.results import tell
from phalanx.planning.import_plan import ImportPlan
from phalanx.storage.lance.location import Location
from phalanx.table.imports.chunks import CHUNK_BYTES
from phalanx.table.imports.prepare import prepare_import
from phalanx.table.imports.sources import is_table_source


class ImportFormat(StrEnum):
    """What a source is: files that Spark reads, or a table of another system."""

    PARQUET = "parquet"
    CSV = "csv"
    JSON = "json"
    ORC = "orc"
    LANCE = "lance"
    PHALANX = "phalanx"
    EXPRESSIONS = "expressions"
    HIVE = "hive"
    DUCKLAKE = "ducklake"
    ICEBERG = "iceberg"


class Distribution(StrEnum):
    """Whether rows are brought to their partitions before they are written."""

    AUTO = "auto"
    HASH = "hash"
    NONE = "none"


def import_(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SRC",
            help="The path of a table, or CATALOG::TABLE; or a file, a folder or a pattern, as "
            "Spark takes it.",
            show_default=False,
        ),
    ],
    uri: Uri,
    format: Annotated[
        ImportFormat | None,
        typer.Option("--from", help="What the source is; by default the names of files tell."),
    ] = None,
    partition_by: Annotated[
        str | None,
        typer.Option(
            help='For a new table, such as "year(ts), bucket(16, id), country". By default as the '
            "source is partitioned.",
            show_default=False,
        ),
    ] = None,
    table: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The table of a catalog, if SRC names only the catalog.",
            show_default=False,
        ),
    ] = None,
    catalog_option: Annotated[
        list[str] | None,
        typer.Option(
            "--catalog-option",
            metavar="KEY=VALUE",
            help="What a catalog needs to know: of pyiceberg such as uri=sqlite:///c.db, of a "
            "DuckLake such as snapshot=7. Repeatable.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be imported, and as what.")
    ] = False,
    transaction: Annotated[
        Mode | None,
        typer.Option(help="How a new table commits: all as one (strong, the default) or weak."),
    ] = None,
    distribution: Annotated[
        Distribution, typer.Option(help="Bring the rows of a partition together first.")
    ] = Distribution.AUTO,
    chunk_size: Annotated[
        str, typer.Option(metavar="SIZE", help="How much is committed at once.")
    ] = CHUNK_BYTES,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            metavar="KEY=VALUE",
            help="An option of Spark's reader, such as nullValue=NA. Repeatable.",
            show_default=False,
        ),
    ] = None,
    id: Annotated[
        str | None,
        typer.Option(help="Another name for the import: the same files count as new under it."),
    ] = None,
    output: OutputOption = Output.TABLE,
    storage_option: StorageOptions = None,
) -> None:
    """Bring a table of another system, or files of any size, into a table; every file once.

    What becomes of specs and columns is shown first. A missing table is made. The same command
    again goes on after a crash, and adds nothing when all is there. CSV has a header, and times
    without a zone are in UTC.
    """
    is_catalog = format in (ImportFormat.DUCKLAKE, ImportFormat.ICEBERG)
    for name, said in (("--table", table), ("--catalog-option", catalog_option)):
        if said and not is_catalog:
            raise typer.BadParameter(
                "Only --from ducklake and --from iceberg have catalogs.", param_hint=f"'{name}'"
            )
    if option and is_catalog:
        raise typer.BadParameter(
            "It is for files. Catalogs take --catalog-option.", param_hint="'--option'"
        )
    given: dict[str, Any] = {
        "format": None if format is None else format.value,
        "options": key_values(catalog_option, "'--catalog-option'")
        or key_values(option, "'--option'"),
        "table": table,
        "id": id,
    }
    stores, chunk_bytes = storage_options(storage_option), size_of(chunk_size, "'--chunk-size'")
    how: dict[str, Any] = {
        "transaction": None if transaction is None else transaction.value,
        "chunk_size": chunk_bytes,
        "storage_options": stores,
    }
    if dry_run and is_table_source(source, given["format"]):
        # Nothing of Spark is needed to look at a table.
        root = Location.of(uri, stores)
        with working("planning"):
            prepared = prepare_import(
                source,
                root,
                partition_by,
                transaction=how["transaction"],
                chunk_bytes=chunk_bytes or 1,
                **given,
            )
        _show(prepared.plan, output)
        return
    spark = local_spark("import")
    from phalanx.spark import import_table, plan_import

    if dry_run:
        with working("planning"):
            plan = plan_import(spark, source, uri, partition_by, **given, **how)
        _show(plan, output)
        return
    done = import_table(
        spark, source, uri, partition_by, distribution=distribution.value, **given, **how
    )
    tell(output, str(done), done.to_dict())


def _show(plan: ImportPlan, output: Output) -> None:
    typer.echo(json_text.dumps(plan.to_dict(), indent=2) if output is Output.JSON else str(plan))
