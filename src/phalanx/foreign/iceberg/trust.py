"""What a stranger's Iceberg table may not do: load code, redirect credentials, name other files.

pyiceberg imports the classes that a table's own properties name, and lets these properties replace
the settings of the catalog. Phalanx reads tables whose writers its user may not know.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.io import PY_IO_IMPL, FileIO, InputFile, OutputFile, load_file_io
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import StaticTable, Table, TableProperties
from pyiceberg.typedef import EMPTY_DICT, Identifier

from phalanx.errors import PhalanxError
from phalanx.foreign.file_systems import refuse_outside

_CODE = (PY_IO_IMPL, TableProperties.WRITE_PY_LOCATION_PROVIDER_IMPL)
# What pyiceberg takes for settings of a store, wherever it finds it.
_STORE = ("s3.", "gcs.", "adls.", "hdfs.", "client.", "hf.", "oss.")


def refuse_settings(
    properties: Mapping[str, str], table: str, *, trust_locations: bool = False
) -> None:
    """Refuse a table whose properties name code to load, or settings of a store."""
    if code := next((key for key in _CODE if key in properties), None):
        raise PhalanxError(
            f"Cannot open the Iceberg table {table}: its property {code} names code to run "
            f"({properties[code]!r}). Remove the property; a setting of your own belongs to the "
            "catalog."
        )
    setting = next((key for key in properties if key.startswith(_STORE)), None)
    if setting is not None and not trust_locations:
        raise PhalanxError(
            f"Cannot open the Iceberg table {table}: its property {setting} says how its store is "
            "reached, and would decide where your credentials are sent. Set it on the catalog, or "
            "pass trust_locations=True if you trust who wrote the table."
        )


def folder_of(table: Table) -> str:
    """The folder of the table: that of the metadata file to which its catalog points."""
    folder, _, _ = table.metadata_location.rpartition("/")
    return folder.removesuffix("/metadata")


class GuardedIO(FileIO):
    """The files of one table: whatever its metadata name outside of its folder is refused."""

    def __init__(self, io: FileIO, folder: str, table: str) -> None:
        super().__init__(io.properties)
        self._io = io
        self._folder = folder
        self._whose = f"The Iceberg table {table}"

    def new_input(self, location: str) -> InputFile:
        refuse_outside(location, self._folder, self._whose)
        return self._io.new_input(location)

    def new_output(self, location: str) -> OutputFile:
        refuse_outside(location, self._folder, self._whose)
        return self._io.new_output(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        path = location if isinstance(location, str) else location.location
        refuse_outside(path, self._folder, self._whose)
        self._io.delete(location)


def load_static(
    metadata_location: str, properties: Mapping[str, str], *, trust_locations: bool
) -> StaticTable:
    """The table of a metadata file; its own properties change nothing about how it is read."""
    place, own = metadata_location, dict(properties)
    if not place.endswith(".metadata.json"):
        place = StaticTable._metadata_location_from_version_hint(place, own)
    io = load_file_io(own, place)
    found = FromInputFile.table_metadata(io.new_input(place))
    refuse_settings(found.properties, place, trust_locations=trust_locations)
    if trust_locations:
        io = load_file_io({**own, **found.properties}, place)
    return StaticTable(("static-table", place), found, place, io, NoopCatalog("static-table"))


def load_from(catalog: Catalog, name: str | Identifier, *, trust_locations: bool) -> Table:
    """The table of a catalog; its own properties load no code on the way.

    A REST catalog hands out settings of the store together with them, which is its right.
    """
    load = catalog._load_file_io
    trusts_store = trust_locations or isinstance(catalog, RestCatalog)

    def guarded(properties: Mapping[str, str] = EMPTY_DICT, location: str | None = None) -> FileIO:
        refuse_settings(properties, str(name), trust_locations=trusts_store)
        return load(dict(properties), location)

    catalog._load_file_io = guarded  # type: ignore[method-assign]
    return catalog.load_table(name)
