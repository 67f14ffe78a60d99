"""Sources of imports: tables of Phalanx, Lance, DuckLake and Iceberg, by name or already open."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import lance
import pyarrow as pa

from phalanx.errors import InvalidArgument, PhalanxError, format_value
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.spec import PartitionSpec
from phalanx.planning.import_plan import ImportUnit
from phalanx.storage.lance.failures import translate_errors
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.parallel import map_parallel
from phalanx.storage.lance.schema import read_lance_schema
from phalanx.storage.leaf.reading import LeafScan
from phalanx.storage.state.properties import NAMESPACE_LAYOUT
from phalanx.table.opening import open
from phalanx.table.read.scan_tasks import ScanPiece, split_leaf
from phalanx.table.table import Table

if TYPE_CHECKING:
    from phalanx.foreign.ducklake.table import DuckLakeTable


@dataclass(frozen=True, slots=True)
class ImportSource:
    """A table of any system, at one state.

    The specs refer to the field ids of its schema; `newest` is the spec of new rows.
    """

    system: str
    location: str
    state: str | None
    schema: Schema
    specs: Mapping[int, PartitionSpec]
    newest: int | None
    units: tuple[ImportUnit, ...]
    notes: tuple[str, ...] = field(default=())
    # A table of an earlier draft, which can be upgraded in place.
    draft: Table | None = None


@dataclass(frozen=True, slots=True)
class ScanUnit:
    """A fragment of a Lance table, without its deleted rows."""

    id: str
    rows: int
    bytes: int
    scan: LeafScan

    def check(self) -> None:
        """Refuse a fragment whose files are gone."""
        for _ in replace(self, scan=replace(self.scan, limit=1)).batches():
            return

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Read the rows in the order of the fragment."""
        with translate_errors(f"read {self.scan.location}"):
            yield from self.scan.read_batches()


def open_lance_source(
    source: str | os.PathLike[str] | lance.LanceDataset,
    storage_options: dict[str, str] | None = None,
) -> ImportSource:
    """Open a plain Lance table, at its newest version or at the version it was opened at."""
    if isinstance(source, lance.LanceDataset):
        location, version = Location.of(source.uri, storage_options), source.version
    else:
        location, version = Location.of(source, storage_options), None
    with translate_errors(f"open the Lance table {location}"):
        try:
            dataset = location.open(version)
        except (ValueError, OSError) as error:
            if "not found" not in str(error).lower():
                raise
            raise PhalanxError(
                f"Cannot import {location}: there is no Lance table. Check the path; import a "
                "Phalanx table with format='phalanx'."
            ) from None
    schema = read_lance_schema(dataset)
    scan = LeafScan(location, int(dataset.version), schema, schema.names)
    units = tuple(_make_unit(piece, dataset, "") for piece in split_leaf(scan))
    return ImportSource(
        "lance", location.uri, f"version {dataset.version}", schema, {}, None, units
    )


def make_phalanx_source(table: Table) -> ImportSource:
    """Return a Phalanx table of any layout as a source, at its current state."""
    found = table.scan()

    def units(scan: LeafScan) -> list[ScanUnit]:
        cut = split_leaf(scan)
        if not cut:
            return []
        dataset = scan.location.open_leaf(cut[0].scan.version)
        return [_make_unit(piece, dataset, table.uri) for piece in cut]

    with translate_errors(f"list the files of {table.uri}"):
        each = map_parallel(units, found.leaf_scans())
    is_draft, specs = table.layout != NAMESPACE_LAYOUT, table.specs
    snapshot = table.newest_snapshot if table.mode == "strong" else None
    note = "upgrade(dry_run=True) shows whether the source can be upgraded in place, without a copy"
    return ImportSource(
        table.layout if is_draft else "phalanx",
        table.uri,
        None if snapshot is None else f"snapshot {snapshot}",
        found.table_schema,
        specs,
        table.spec.id,
        tuple(unit for some in each for unit in some),
        (note,) if is_draft else (),
        table if is_draft else None,
    )


def _make_unit(piece: ScanPiece, dataset: lance.LanceDataset, root: str) -> ScanUnit:
    """Return a fragment as a unit, identified by its file names, which are never reused."""
    (number,) = piece.scan.fragments or ()
    fragment = dataset.get_fragment(number)
    assert fragment is not None, "it was listed just now"
    place = piece.scan.location.uri.removeprefix(root).strip("/") if root else ""
    name = ",".join(file.path for file in fragment.metadata.files)
    return ScanUnit(f"{place}:{name}", piece.rows, piece.size, piece.scan)


# The values of `format` for sources that are tables; others are file formats.
TABLE_FORMATS = ("phalanx", "expressions", "hive", "lance", "ducklake", "iceberg")
_DUCKLAKE_OPTIONS = (
    *("schema", "snapshot", "time_parts", "data_path", "metadata_schema"),
    "trust_locations",
)
_SEPARATOR = "::"


def is_table_source(source: object, format: str | None) -> bool:
    """Return whether the source is a table, whose files are found without Spark."""
    if isinstance(source, Table | lance.LanceDataset | ImportSource) or _detect_system(source):
        return True
    return format in TABLE_FORMATS or (format is None and str(source).endswith(".lance"))


def open_source(
    source: Any,
    format: str | None = None,
    table: str | None = None,
    options: Mapping[str, object] | None = None,
    storage_options: dict[str, str] | None = None,
) -> ImportSource:
    """Open the source that a user names by a path and a format, or has already opened.

    A DuckLake is named `CATALOG::TABLE`, or by its catalog and `table`. An Iceberg table is named
    by its metadata file, or `CATALOG::NAMESPACE.TABLE` with a catalog of pyiceberg's
    configuration. `options` are those of the catalog.
    """
    if (options or table is not None) and format not in ("ducklake", "iceberg"):
        what = f"the table {table!r}" if options is None or table is not None else "options"
        raise InvalidArgument(
            f"Cannot import {format_value(source)} with {what}: only catalogs of DuckLake and "
            "Iceberg accept it. Leave it out."
        )
    if isinstance(source, ImportSource):
        return source
    if isinstance(source, Table):
        return make_phalanx_source(source)
    if (kind := _detect_system(source)) is not None:
        return make_ducklake_source(source) if kind == "ducklake" else make_iceberg_source(source)
    if isinstance(source, lance.LanceDataset) or format in (None, "lance"):
        return open_lance_source(source, storage_options)
    if format == "ducklake":
        return _open_ducklake(source, table, dict(options or {}), storage_options)
    if format == "iceberg":
        return _open_iceberg(source, table, dict(options or {}))
    found = open(source, storage_options=storage_options)
    if format not in ("phalanx", found.layout):
        raise PhalanxError(
            f"Cannot import {found.uri} as {format!r}: it has the layout {found.layout!r}. Import "
            "it as 'phalanx', which accepts every layout."
        )
    return make_phalanx_source(found)


def make_ducklake_source(table: DuckLakeTable) -> ImportSource:
    """Return a DuckLake table as a source, at the snapshot that it was opened at."""
    return ImportSource(
        "ducklake",
        f"{table.catalog}{_SEPARATOR}{table.name}",
        f"snapshot {table.snapshot}",
        Schema.of(table.schema),
        table.specs,
        table.spec.id,
        tuple(table.import_units()),
    )


def make_iceberg_source(table: Any) -> ImportSource:
    """Return an Iceberg table of pyiceberg or of `phalanx.iceberg` as a source."""
    from phalanx.foreign.iceberg.table import IcebergTable, open_iceberg_table

    found = table if isinstance(table, IcebergTable) else open_iceberg_table(table)
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


def _open_ducklake(
    source: str | os.PathLike[str],
    table: str | None,
    options: dict[str, object],
    storage_options: dict[str, str] | None,
) -> ImportSource:
    from phalanx.foreign.ducklake.table import open_ducklake_table

    catalog, name = _split_name(source, table, "ducklake", "lake.ducklake::orders")
    if unknown := [key for key in options if key not in _DUCKLAKE_OPTIONS]:
        raise InvalidArgument(
            f"Cannot open a DuckLake with the option {unknown[0]!r}: expected one of "
            f"{', '.join(_DUCKLAKE_OPTIONS)}."
        )
    given: dict[str, Any] = dict(options)
    if str(given.get("snapshot", "")).isdecimal():
        given["snapshot"] = int(str(given["snapshot"]))
    given["trust_locations"] = _is_true(given.get("trust_locations"))
    return make_ducklake_source(
        open_ducklake_table(catalog, name, storage_options=storage_options, **given)
    )


def _open_iceberg(
    source: str | os.PathLike[str], table: str | None, options: dict[str, object]
) -> ImportSource:
    from phalanx.foreign.iceberg.table import open_iceberg_table  # isort: skip (it checks that pyiceberg is installed)
    from pyiceberg.catalog import load_catalog

    from phalanx.foreign.iceberg.trust import load_from_catalog, load_static

    trusts = _is_true(options.pop("trust_locations", None))
    properties = {key: str(text) for key, text in options.items()}
    text = os.fspath(source)
    try:
        if table is None and _SEPARATOR not in text:
            place = text if "://" in text else Location.of(text).uri
            found: Any = load_static(place, properties, trust_locations=trusts)
        else:
            catalog, name = _split_name(source, table, "iceberg", "default::sales.orders")
            found = load_from_catalog(
                load_catalog(catalog, **properties), name, trust_locations=trusts
            )
        return make_iceberg_source(open_iceberg_table(found, trust_locations=trusts))
    except PhalanxError:
        raise
    except Exception as error:
        # Each catalog of pyiceberg raises its own errors.
        reason = _describe_error(error)
        raise PhalanxError(
            f"Cannot open the Iceberg table {text}: {reason}. Pass its metadata file, or "
            "CATALOG::NAMESPACE.TABLE with a catalog of pyiceberg's configuration."
        ) from error


def _is_true(option: object) -> bool:
    """Return whether an option is true, as a value or as text of the shell."""
    return str(option).lower() in ("true", "1")


def _describe_error(error: Exception) -> str:
    """Describe an error on one line; for a failed validation, only what is invalid."""
    found = getattr(error.__cause__, "errors", None)
    text = str(error)
    if callable(found):
        text = "; ".join(": ".join([*map(str, each["loc"]), each["msg"]]) for each in found())
    return " ".join(text.split()) or type(error).__name__


def _split_name(
    source: str | os.PathLike[str], table: str | None, system: str, example: str
) -> tuple[str, str]:
    """Split a name into the catalog and the table."""
    text = os.fspath(source)
    if table is not None:
        return text, table
    catalog, between, name = text.rpartition(_SEPARATOR)
    if not between or not catalog or not name:
        raise InvalidArgument(
            f"Cannot import {text!r} from {system}: it names no table. Write it as {example!r}, or "
            "pass the table separately."
        )
    return catalog, name


def _detect_system(source: object) -> str | None:
    """Return the system of an opened foreign table; imports no module."""
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
