"""Keep untrusted Iceberg tables from loading code, redirecting credentials or naming other files.

pyiceberg imports classes that the properties of a table name, and lets these properties override
the settings of the catalog. The user of Phalanx may not know who wrote a table.
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

_CODE_PROPERTIES = (PY_IO_IMPL, TableProperties.WRITE_PY_LOCATION_PROVIDER_IMPL)
# The prefixes of properties that pyiceberg reads as store settings.
_STORE_PREFIXES = ("s3.", "gcs.", "adls.", "hdfs.", "client.", "hf.", "oss.")


def check_settings(
    properties: Mapping[str, str], table: str, *, trust_locations: bool = False
) -> None:
    """Raise for a table whose properties name code to load, or store settings."""
    if code := next((key for key in _CODE_PROPERTIES if key in properties), None):
        raise PhalanxError(
            f"Cannot open the Iceberg table {table}: its property {code} names code to run "
            f"({properties[code]!r}). Remove the property, or set it on the catalog if it is "
            "yours."
        )
    setting = next((key for key in properties if key.startswith(_STORE_PREFIXES)), None)
    if setting is not None and not trust_locations:
        raise PhalanxError(
            f"Cannot open the Iceberg table {table}: its property {setting} sets how to connect to "
            "its store, so it could send your credentials elsewhere. Set it on the catalog, or "
            "pass trust_locations=True if you trust the writer of the table."
        )


def folder_of(table: Table) -> str:
    """Return the folder of the table, from the location of its current metadata file."""
    folder, _, _ = table.metadata_location.rpartition("/")
    return folder.removesuffix("/metadata")


class GuardedIO(FileIO):
    """Access to the files of one table; raises for files outside of its folder."""

    def __init__(self, io: FileIO, folder: str, table: str) -> None:
        super().__init__(io.properties)
        self._io = io
        self._folder = folder
        self._owner = f"The Iceberg table {table}"

    def new_input(self, location: str) -> InputFile:
        refuse_outside(location, self._folder, self._owner)
        return self._io.new_input(location)

    def new_output(self, location: str) -> OutputFile:
        refuse_outside(location, self._folder, self._owner)
        return self._io.new_output(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        path = location if isinstance(location, str) else location.location
        refuse_outside(path, self._folder, self._owner)
        self._io.delete(location)


def load_static(
    metadata_location: str, properties: Mapping[str, str], *, trust_locations: bool
) -> StaticTable:
    """Load the table of a metadata file; its properties do not change how it is read."""
    location, settings = metadata_location, dict(properties)
    if not location.endswith(".metadata.json"):
        location = StaticTable._metadata_location_from_version_hint(location, settings)
    io = load_file_io(settings, location)
    metadata = FromInputFile.table_metadata(io.new_input(location))
    check_settings(metadata.properties, location, trust_locations=trust_locations)
    if trust_locations:
        io = load_file_io({**settings, **metadata.properties}, location)
    return StaticTable(
        ("static-table", location), metadata, location, io, NoopCatalog("static-table")
    )


def load_from_catalog(catalog: Catalog, name: str | Identifier, *, trust_locations: bool) -> Table:
    """Load a table from a catalog without loading code that its properties name.

    A REST catalog may return store settings among these properties.
    """
    load = catalog._load_file_io
    trusts_store = trust_locations or isinstance(catalog, RestCatalog)

    def load_checked(
        properties: Mapping[str, str] = EMPTY_DICT, location: str | None = None
    ) -> FileIO:
        check_settings(properties, str(name), trust_locations=trusts_store)
        return load(dict(properties), location)

    catalog._load_file_io = load_checked  # type: ignore[method-assign]
    return catalog.load_table(name)
