"""Sources of every system, as users name them: by a path and a format, or opened already."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import lance

from phalanx.errors import PhalanxError, shown
from phalanx.model.schema.schema import Schema
from phalanx.storage.lance.location import Location
from phalanx.table.import_sources import ImportSource, lance_source, phalanx_source
from phalanx.table.opening import open
from phalanx.table.table import Table

if TYPE_CHECKING:
    from phalanx.foreign.ducklake.table import DuckLakeTable
    from phalanx.foreign.iceberg.table import IcebergTable

# What `format` may say of a source that is a table, beside the formats of files.
TABLE_FORMATS = ("phalanx", "expressions", "hive", "lance", "ducklake", "iceberg")
_LAKE_OPTIONS = (
    *("schema", "snapshot", "time_parts", "data_path", "metadata_schema"),
    "trust_locations",
)
_BETWEEN = "::"


def is_table_source(source: object, format: str | None) -> bool:
    """Whether the source is a table, whose files need no Spark to be found."""
    if isinstance(source, Table | lance.LanceDataset | ImportSource) or _foreign(source):
        return True
    return format in TABLE_FORMATS or (format is None and str(source).endswith(".lance"))


def opened_source(
    source: Any,
    format: str | None = None,
    table: str | None = None,
    options: Mapping[str, object] | None = None,
    storage_options: dict[str, str] | None = None,
) -> ImportSource:
    """The source that a user names by a path and a format, or has opened already.

    A DuckLake is named `CATALOG::TABLE`, or by its catalog and `table`. An Iceberg table is named
    by its metadata file, or `CATALOG::NAMESPACE.TABLE` with a catalog of pyiceberg's
    configuration. `options` are those of the catalog.
    """
    if (options or table is not None) and format not in ("ducklake", "iceberg"):
        what = f"the table {table!r}" if options is None or table is not None else "options"
        raise PhalanxError(
            f"Cannot import {shown(source)} with {what}: only catalogs of DuckLake and Iceberg "
            "take it. Leave it out."
        )
    if isinstance(source, ImportSource):
        return source
    if isinstance(source, Table):
        return phalanx_source(source)
    if (kind := _foreign(source)) is not None:
        return ducklake_source(source) if kind == "ducklake" else iceberg_source(source)
    if isinstance(source, lance.LanceDataset) or format in (None, "lance"):
        return lance_source(source, storage_options)
    if format == "ducklake":
        return _named_ducklake(source, table, dict(options or {}), storage_options)
    if format == "iceberg":
        return _named_iceberg(source, table, dict(options or {}))
    found = open(source, storage_options=storage_options)
    if format not in ("phalanx", found.layout):
        raise PhalanxError(
            f"Cannot import {found.uri} as {format!r}: it has the layout {found.layout!r}. Import "
            "it as 'phalanx', which every layout is."
        )
    return phalanx_source(found)


def ducklake_source(table: DuckLakeTable) -> ImportSource:
    """A table of a DuckLake, at the snapshot that it was opened at."""
    return ImportSource(
        "ducklake",
        f"{table.catalog}{_BETWEEN}{table.name}",
        f"snapshot {table.snapshot}",
        Schema.of(table.schema),
        table.specs,
        table.spec.id,
        tuple(table.import_units()),
    )


def iceberg_source(table: Any) -> ImportSource:
    """An Iceberg table of pyiceberg, or one that `phalanx.iceberg` has opened."""
    import phalanx.iceberg

    found: IcebergTable = (
        table if isinstance(table, phalanx.iceberg.IcebergTable) else phalanx.iceberg.open(table)
    )
    snapshot = found.snapshot_id
    return ImportSource(
        "iceberg",
        found.metadata.location,
        None if snapshot is None else f"snapshot {snapshot}",
        found.schema,
        found.specs,
        found.metadata.default_spec_id,
        tuple(found.import_units()),
    )


def _named_ducklake(
    source: str | os.PathLike[str],
    table: str | None,
    options: dict[str, object],
    storage_options: dict[str, str] | None,
) -> ImportSource:
    from phalanx import ducklake

    catalog, name = _parts(source, table, "ducklake", "lake.ducklake::orders")
    if unknown := [key for key in options if key not in _LAKE_OPTIONS]:
        raise PhalanxError(
            f"Cannot open a DuckLake with the option {unknown[0]!r}: expected one of "
            f"{', '.join(_LAKE_OPTIONS)}."
        )
    given: dict[str, Any] = dict(options)
    if str(given.get("snapshot", "")).isdecimal():
        given["snapshot"] = int(str(given["snapshot"]))
    given["trust_locations"] = _is_true(given.get("trust_locations"))
    return ducklake_source(ducklake.open(catalog, name, storage_options=storage_options, **given))


def _named_iceberg(
    source: str | os.PathLike[str], table: str | None, options: dict[str, object]
) -> ImportSource:
    from pyiceberg.catalog import load_catalog

    import phalanx.iceberg  # tells how to install pyiceberg where it is missing
    from phalanx.foreign.iceberg.trust import load_from, load_static

    trusts = _is_true(options.pop("trust_locations", None))
    properties = {key: str(text) for key, text in options.items()}
    text = os.fspath(source)
    try:
        if table is None and _BETWEEN not in text:
            place = text if "://" in text else Location.of(text).uri
            found: Any = load_static(place, properties, trust_locations=trusts)
        else:
            catalog, name = _parts(source, table, "iceberg", "default::sales.orders")
            found = load_from(load_catalog(catalog, **properties), name, trust_locations=trusts)
        return iceberg_source(phalanx.iceberg.open(found, trust_locations=trusts))
    except PhalanxError:
        raise
    except Exception as error:
        # Every catalog of pyiceberg fails in its own way.
        reason = _reason(error)
        raise PhalanxError(
            f"Cannot open the Iceberg table {text}: {reason}. Name its metadata file, or "
            "CATALOG::NAMESPACE.TABLE with a catalog of pyiceberg's configuration."
        ) from error


def _is_true(option: object) -> bool:
    """Whether an option is set, as a value or as a shell's text."""
    return str(option).lower() in ("true", "1")


def _reason(error: Exception) -> str:
    """What went wrong, on one line; of metadata that do not fit only what is wrong with them."""
    found = getattr(error.__cause__, "errors", None)
    text = str(error)
    if callable(found):
        text = "; ".join(": ".join([*map(str, each["loc"]), each["msg"]]) for each in found())
    return " ".join(text.split()) or type(error).__name__


def _parts(
    source: str | os.PathLike[str], table: str | None, system: str, example: str
) -> tuple[str, str]:
    """The catalog and the table that a text names."""
    text = os.fspath(source)
    if table is not None:
        return text, table
    catalog, between, name = text.rpartition(_BETWEEN)
    if not between or not catalog or not name:
        raise PhalanxError(
            f"Cannot import {text!r} from {system}: it names no table. Write it as {example!r}, "
            "or name the table beside the catalog."
        )
    return catalog, name


def _foreign(source: object) -> str | None:
    """Which other system an opened table is of; nothing is imported to find out."""
    known = {
        "phalanx.foreign.ducklake.table": ("DuckLakeTable", "ducklake"),
        "phalanx.foreign.iceberg.table": ("IcebergTable", "iceberg"),
        "pyiceberg.table": ("Table", "iceberg"),
    }
    for module, (name, system) in known.items():
        loaded = sys.modules.get(module)
        if loaded is not None and isinstance(source, getattr(loaded, name)):
            return system
    return None
