"""The command `import`: copy tables of other systems, and files, with Spark on this machine."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from phalanx.cli.console import json_text
from phalanx.cli.console.local_spark import start_local_spark
from phalanx.cli.console.messages import show_spinner
from phalanx.cli.console.options import (
    ModeChoice,
    Output,
    OutputOption,
    StorageOptions,
    Uri,
    parse_key_values,
    parse_size,
    parse_storage_options,
)
from phalanx.cli.console.results import print_result
from phalanx.planning.import_plan import ImportPlan
from phalanx.storage.lance.location import Location
from phalanx.table.imports.chunks import CHUNK_BYTES
from phalanx.table.imports.prepare import prepare_import
from phalanx.table.imports.sources import is_table_source


class ImportFormat(StrEnum):
    """The kind of a source: files that Spark reads, or a table of another system."""

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


class DistributionChoice(StrEnum):
    """Whether rows are shuffled by partition before they are written."""

    AUTO = "auto"
    HASH = "hash"
    NONE = "none"


def import_(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SRC",
            help="The path of a table, or CATALOG::TABLE; or a file, folder or pattern for Spark.",
            show_default=False,
        ),
    ],
    uri: Uri,
    format: Annotated[
        ImportFormat | None,
        typer.Option("--from", help="The kind of source; by default guessed from file names."),
    ] = None,
    partition_by: Annotated[
        str | None,
        typer.Option(
            help='For a new table, such as "year(ts), bucket(16, id), country". By default the '
            "partitioning of the source.",
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
            help="An option of the catalog, such as uri=sqlite:///c.db for pyiceberg or "
            "snapshot=7 for DuckLake. Repeatable.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be imported, and how.")
    ] = False,
    transaction: Annotated[
        ModeChoice | None,
        typer.Option(help="How a new table commits: strong (the default) or weak."),
    ] = None,
    distribution: Annotated[
        DistributionChoice, typer.Option(help="Shuffle rows by partition before writing.")
    ] = DistributionChoice.AUTO,
    chunk_size: Annotated[
        str, typer.Option(metavar="SIZE", help="How much to commit at once.")
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
        typer.Option(help="A name for the import: files imported under another name count as new."),
    ] = None,
    output: OutputOption = Output.TABLE,
    storage_option: StorageOptions = None,
) -> None:
    """Import a table of another system, or files of any size; every file once.

    Shows first how specs and columns are converted. Creates the table if it does not exist. The
    same command continues after a crash, and adds nothing once all is imported. CSV files need a
    header, and times without a zone are in UTC.
    """
    is_catalog = format in (ImportFormat.DUCKLAKE, ImportFormat.ICEBERG)
    for name, value in (("--table", table), ("--catalog-option", catalog_option)):
        if value and not is_catalog:
            raise typer.BadParameter(
                "Only --from ducklake and --from iceberg have catalogs.", param_hint=f"'{name}'"
            )
    if option and is_catalog:
        raise typer.BadParameter(
            "This option is for files. Use --catalog-option for catalogs.", param_hint="'--option'"
        )
    given: dict[str, Any] = {
        "format": None if format is None else format.value,
        "options": parse_key_values(catalog_option, "'--catalog-option'")
        or parse_key_values(option, "'--option'"),
        "table": table,
        "id": id,
    }
    store_options, chunk_bytes = (
        parse_storage_options(storage_option),
        parse_size(chunk_size, "'--chunk-size'"),
    )
    settings: dict[str, Any] = {
        "transaction": None if transaction is None else transaction.value,
        "chunk_size": chunk_bytes,
        "storage_options": store_options,
    }
    if dry_run and is_table_source(source, given["format"]):
        # Planning the import of a table does not need Spark.
        root = Location.of(uri, store_options)
        with show_spinner("planning"):
            prepared = prepare_import(
                source,
                root,
                partition_by,
                transaction=settings["transaction"],
                chunk_bytes=chunk_bytes or 1,
                **given,
            )
        _print_plan(prepared.plan, output)
        return
    spark = start_local_spark("import")
    from phalanx.spark import import_table, plan_import

    if dry_run:
        with show_spinner("planning"):
            plan = plan_import(spark, source, uri, partition_by, **given, **settings)
        _print_plan(plan, output)
        return
    done = import_table(
        spark, source, uri, partition_by, distribution=distribution.value, **given, **settings
    )
    print_result(output, str(done), done.to_dict())


def _print_plan(plan: ImportPlan, output: Output) -> None:
    typer.echo(json_text.dumps(plan.to_dict(), indent=2) if output is Output.JSON else str(plan))
