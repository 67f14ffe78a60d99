"""Tables that can be imported: their columns, their specs, and the pieces they are read in."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import lance
import pyarrow as pa

from phalanx.errors import PhalanxError
from phalanx.model.schema.schema import Schema
from phalanx.model.specs.spec import PartitionSpec
from phalanx.planning.import_plan import ImportUnit
from phalanx.storage.lance.failures import told
from phalanx.storage.lance.location import Location
from phalanx.storage.lance.parallel import in_parallel
from phalanx.storage.lance.schema import schema_of
from phalanx.storage.leaf.reading import LeafScan
from phalanx.storage.state.properties import NAMESPACE
from phalanx.table.read.scan_tasks import Piece, pieces
from phalanx.table.table import Table


@dataclass(frozen=True, slots=True)
class ImportSource:
    """A table of any system, in one state of it.

    The specs refer to the ids of its schema; the newest is the one it is written by now.
    """

    system: str
    place: str
    state: str | None
    schema: Schema
    specs: Mapping[int, PartitionSpec]
    newest: int | None
    units: tuple[ImportUnit, ...]
    notes: tuple[str, ...] = field(default=())
    # A table of an earlier draft, which can be upgraded where it is.
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
        """The rows, in the fragment's order."""
        with told(f"read {self.scan.location}"):
            yield from self.scan.batches()


def lance_source(
    place: str | os.PathLike[str] | lance.LanceDataset,
    storage_options: dict[str, str] | None = None,
) -> ImportSource:
    """An ordinary Lance table, in the version that it has, or that it was opened at."""
    if isinstance(place, lance.LanceDataset):
        location, version = Location.of(place.uri, storage_options), place.version
    else:
        location, version = Location.of(place, storage_options), None
    with told(f"open the Lance table {location}"):
        try:
            dataset = location.open(version)
        except (ValueError, OSError) as error:
            if "not found" not in str(error).lower():
                raise
            raise PhalanxError(
                f"Cannot import {location}: there is no Lance table. Check the path; a table of "
                "Phalanx is imported as 'phalanx'."
            ) from None
    schema = schema_of(dataset)
    scan = LeafScan(location, int(dataset.version), schema, schema.names)
    units = tuple(_unit(piece, dataset, "") for piece in pieces(scan))
    return ImportSource(
        "lance", location.uri, f"version {dataset.version}", schema, {}, None, units
    )


def phalanx_source(table: Table) -> ImportSource:
    """A table of Phalanx of any layout, in the state that it has."""
    found = table.scan()

    def units(scan: LeafScan) -> list[ScanUnit]:
        cut = pieces(scan)
        if not cut:
            return []
        dataset = scan.location.open_leaf(cut[0].scan.version)
        return [_unit(piece, dataset, table.uri) for piece in cut]

    with told(f"list the files of {table.uri}"):
        each = in_parallel(units, found.leaf_scans())
    is_draft, specs = table.layout != NAMESPACE, table.specs
    snapshot = table.newest_snapshot if table.mode == "strong" else None
    note = "upgrade(dry_run=True) tells whether the source can become one where it is, uncopied"
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


def _unit(piece: Piece, dataset: lance.LanceDataset, root: str) -> ScanUnit:
    """A fragment: no other one, of whatever version, has files of the same names."""
    (number,) = piece.scan.fragments or ()
    fragment = dataset.get_fragment(number)
    assert fragment is not None, "it was listed just now"
    place = piece.scan.location.uri.removeprefix(root).strip("/") if root else ""
    name = ",".join(file.path for file in fragment.metadata.files)
    return ScanUnit(f"{place}:{name}", piece.rows, piece.size, piece.scan)
