"""The command `import`: files of any size into a table, by Spark on this machine."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from phalanx.cli.local_spark import local_spark
from phalanx.cli.options import (
    Mode,
    Output,
    OutputOption,
    StorageOptions,
    Uri,
    key_values,
    storage_options,
)
from phalanx.cli.results import tell


class ImportFormat(StrEnum):
    """What Spark reads the files as."""

    PARQUET = "parquet"
    CSV = "csv"
    JSON = "json"
    ORC = "orc"


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
            help="A file, a folder or a pattern, as Spark takes it.",
            show_default=False,
        ),
    ],
    uri: Uri,
    format: Annotated[
        ImportFormat | None,
        typer.Option("--from", help="What the files are; by default their names tell."),
    ] = None,
    partition_by: Annotated[
        str | None,
        typer.Option(
            help='For a new table, such as "year(ts), bucket(16, id), country".',
            show_default=False,
        ),
    ] = None,
    transaction: Annotated[
        Mode | None,
        typer.Option(help="How a new table commits: all as one (strong, the default) or weak."),
    ] = None,
    distribution: Annotated[
        Distribution, typer.Option(help="Shuffle rows to their partitions first.")
    ] = Distribution.AUTO,
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
    """Bring files of any size into a table by Spark, every file once.

    A missing table is made. The same command again goes on after a crash, and adds nothing when
    all is there. CSV has a header, and times without a zone are in UTC.
    """
    options, stores = key_values(option, "'--option'"), storage_options(storage_option)
    spark = local_spark("import")
    from phalanx.spark import ingest

    done = ingest(
        spark,
        source,
        uri,
        partition_by,
        format=None if format is None else format.value,
        options=options,
        id=id,
        distribution=distribution.value,
        transaction=None if transaction is None else transaction.value,
        storage_options=stores,
    )
    tell(output, str(done), done.to_dict())
