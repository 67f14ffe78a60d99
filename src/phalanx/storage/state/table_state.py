"""What every layout knows of its leaves: which there are, and what they are written as."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from lance.fragment import FragmentMetadata

from phalanx.model.schema.grouping import group, positions
from phalanx.model.specs.partition_key import key_columns
from phalanx.planning.pruning.prune import Pruning
from phalanx.planning.pruning.scan_plan import LEAF_COLUMNS, OBJECT_ID, READ_VERSION
from phalanx.storage.lance.location import Location
from phalanx.storage.state.properties import Properties

# Leaves of several specs, as a listing has them.
Leaves: TypeAlias = dict[int, pa.Table]


class LeafShape(Protocol):
    """What a leaf must look like for files to be written into it."""

    @property
    def mark(self) -> str | None:
        """What commits to a leaf's main branch carry, where they are told from a stranger's."""

    def opened(self, location: Location) -> lance.LanceDataset:
        """The newest version of a leaf, in this shape."""

    def check(
        self, dataset: lance.LanceDataset, files: Sequence[FragmentMetadata], location: Location
    ) -> None:
        """Refuse files that were written for another shape than the leaf has by now."""


@dataclass(frozen=True, slots=True)
class DoubledPartition:
    """A partition of a spec with several leaves, the first of which gets new rows.

    Names of partition namespaces are random (format: Partition Namespace Naming): nothing keeps
    another writer from making a second one with the same values. All its leaves are read.
    """

    spec_id: int
    leaves: pa.Table


class LeafListing(ABC):
    """The leaves of a table at one moment; it never changes."""

    root: Location
    properties: Properties
    # The columns that only the paths of the leaves hold, each with its partition field; None
    # where the leaves hold all columns.
    path_columns: Mapping[str, str] | None = None
    # Properties that count instead of what is stored.
    overrides: Mapping[str, str] | None = None

    @property
    @abstractmethod
    def layout(self) -> str:
        """How the table is stored."""

    @abstractmethod
    def latest(self) -> LeafListing:
        """The leaves as they are now; perhaps those of a table that was upgraded meanwhile."""

    @abstractmethod
    def check_current(self) -> None:
        """Refuse to go on under a schema or specs that another writer has changed."""

    @property
    @abstractmethod
    def shape(self) -> LeafShape:
        """What the leaves look like."""

    @property
    @abstractmethod
    def total_partitions(self) -> int:
        """How many leaf tables there are, under all specs."""

    @abstractmethod
    def leaves(self, pruning: Pruning | None = None) -> dict[int, pa.Table]:
        """The leaf tables of each spec that a predicate keeps, in the order of their values.

        Each table has the `LEAF_COLUMNS`, and the fields of its spec by their ids.
        """

    def leaves_named(self, names: Iterable[str]) -> pa.Table:
        """The leaves of any spec with these object ids: the `LEAF_COLUMNS` of those there are."""
        wanted = pa.array(names, pa.string())
        return pa.concat_tables(
            leaves.select(LEAF_COLUMNS).filter(pc.is_in(leaves.column(OBJECT_ID), wanted))
            for leaves in self.leaves().values()
        )

    def versions(self, names: Iterable[str] | None = None) -> dict[str, int | None]:
        """The versions to read of these leaves (all), by object id."""
        leaves = list(self.leaves().values()) if names is None else [self.leaves_named(names)]
        return {
            name: version
            for each in leaves
            for name, version in zip(
                each.column(OBJECT_ID).to_pylist(),
                each.column(READ_VERSION).to_pylist(),
                strict=True,
            )
        }

    # ── partition keys ───────────────────────────────────────────────────────────────────────

    def missing(self, keys: pa.Table) -> pa.Table:
        """The partition keys, all of the newest spec, that no leaf table has."""
        return keys.filter(pa.array(self.places(keys) < 0))

    def places(self, keys: pa.Table, spec_id: int | None = None) -> npt.NDArray[np.int64]:
        """For each partition key of a spec (the newest) its row among the leaves; else −1."""
        number = self.properties.spec.id if spec_id is None else spec_id
        return positions(keys, self.keys_of_leaves(number, self.leaves()[number]))

    def of_partitions(self, keys: pa.Table, spec_id: int | None = None) -> pa.Table:
        """All leaves of these partitions of a spec (the newest): a partition may have several."""
        number = self.properties.spec.id if spec_id is None else spec_id
        leaves = self.leaves()[number]
        return leaves.filter(pa.array(positions(self.keys_of_leaves(number, leaves), keys) >= 0))

    def doubled(self) -> list[DoubledPartition]:
        """The partitions that have several leaves, with or without rows."""
        found = []
        for number, leaves in sorted(self.leaves().items()):
            groups = group(self.keys_of_leaves(number, leaves), leaves.num_rows)
            if groups.count == leaves.num_rows:
                continue
            order = np.argsort(groups.codes, kind="stable")
            starts = np.flatnonzero(np.diff(groups.codes[order], prepend=-1))
            found += [
                DoubledPartition(number, leaves.take(pa.array(places)))
                for places in np.split(order, starts[1:])
                if len(places) > 1
            ]
        return found

    def keys_of_leaves(self, spec_id: int, leaves: pa.Table) -> pa.Table:
        """The partition keys of a spec's leaves."""
        names = [field.field_id for field in self.properties.specs[spec_id].fields]
        return key_columns(spec_id, leaves.select(names), leaves.num_rows)
