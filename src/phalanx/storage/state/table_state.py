"""The state of a table at one moment, in any layout: its properties and its leaves."""

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

from phalanx.model.schema.grouping import find_positions, group_rows
from phalanx.model.specs.partition_key import PartitionKey, read_keys, to_key_columns
from phalanx.planning.pruning.leaf_columns import LEAF_COLUMNS, LEAF_OBJECT_ID, LEAF_VERSION
from phalanx.planning.pruning.prune import Pruning
from phalanx.storage.lance.location import Location
from phalanx.storage.state.properties import Properties

# The leaves of each spec, as `TableState.list_leaves` returns them.
Leaves: TypeAlias = dict[int, pa.Table]


class LeafShape(Protocol):
    """The schema that a leaf must have for files to be written into it."""

    @property
    def mark(self) -> str | None:
        """The mark of commits to a leaf's main branch; None if the layout has no marks."""

    def open_newest(self, location: Location) -> lance.LanceDataset:
        """Open the newest version of a leaf, after giving it this schema."""

    def check(
        self, dataset: lance.LanceDataset, files: Sequence[FragmentMetadata], location: Location
    ) -> None:
        """Refuse files that were written for another schema than the leaf has now."""


@dataclass(frozen=True, slots=True)
class DuplicatePartition:
    """A partition of a spec with several leaves; new rows are written to the first.

    Names of partition namespaces are random (format: Partition Namespace Naming), so another writer
    can create a second namespace with the same values. All its leaves are read.
    """

    spec_id: int
    leaves: pa.Table


class TableState(ABC):
    """The leaves and the properties of a table at one moment. Immutable."""

    root: Location
    properties: Properties
    # The partition field of each column that only the leaves' paths contain; None if the leaves
    # contain all columns.
    path_columns: Mapping[str, str] | None = None
    # Properties that override the stored ones.
    overrides: Mapping[str, str] | None = None

    @property
    @abstractmethod
    def layout(self) -> str:
        """The name of the layout in which the table is stored."""

    @abstractmethod
    def load_latest(self) -> TableState:
        """Load the current state, which has another layout if the table was upgraded."""

    @abstractmethod
    def check_current(self) -> None:
        """Refuse to continue if another writer has changed the schema or the specs."""

    @property
    @abstractmethod
    def shape(self) -> LeafShape:
        """The schema of the leaves."""

    @property
    @abstractmethod
    def total_partitions(self) -> int:
        """The number of leaf tables under all specs."""

    @abstractmethod
    def list_leaves(self, pruning: Pruning | None = None) -> dict[int, pa.Table]:
        """Return the leaves of each spec that a predicate keeps, ordered by partition values.

        Each table has the `LEAF_COLUMNS`, and the partition fields of its spec by field id.
        """

    def list_named_leaves(self, names: Iterable[str]) -> pa.Table:
        """Return the `LEAF_COLUMNS` of the leaves with these object ids, of any spec."""
        wanted = pa.array(names, pa.string())
        return pa.concat_tables(
            leaves.select(LEAF_COLUMNS).filter(pc.is_in(leaves.column(LEAF_OBJECT_ID), wanted))
            for leaves in self.list_leaves().values()
        )

    def leaf_versions(self, names: Iterable[str] | None = None) -> dict[str, int | None]:
        """Return the versions to read, by object id, of these leaves or of all."""
        leaves = (
            list(self.list_leaves().values()) if names is None else [self.list_named_leaves(names)]
        )
        return {
            name: version
            for each in leaves
            for name, version in zip(
                each.column(LEAF_OBJECT_ID).to_pylist(),
                each.column(LEAF_VERSION).to_pylist(),
                strict=True,
            )
        }

    # ── partition keys ───────────────────────────────────────────────────────────────────────

    def select_missing_keys(self, keys: pa.Table) -> pa.Table:
        """Return those of these partition keys of the newest spec that have no leaf."""
        return keys.filter(pa.array(self.find_leaf_rows(keys) < 0))

    def find_leaf_rows(self, keys: pa.Table, spec_id: int | None = None) -> npt.NDArray[np.int64]:
        """Return each partition key's row in the list of leaves; −1 if it has no leaf.

        The keys are of one spec, by default the newest.
        """
        number = self.properties.spec.id if spec_id is None else spec_id
        return find_positions(keys, self.leaf_keys(number, self.list_leaves()[number]))

    def list_partition_leaves(self, keys: pa.Table, spec_id: int | None = None) -> pa.Table:
        """Return all leaves of these partitions of a spec, by default the newest.

        A partition may have several.
        """
        number = self.properties.spec.id if spec_id is None else spec_id
        leaves = self.list_leaves()[number]
        return leaves.filter(pa.array(find_positions(self.leaf_keys(number, leaves), keys) >= 0))

    def find_duplicate_partitions(self) -> list[DuplicatePartition]:
        """Return the partitions that have several leaves, with or without rows."""
        found = []
        for number, leaves in sorted(self.list_leaves().items()):
            groups = group_rows(self.leaf_keys(number, leaves), leaves.num_rows)
            if groups.count == leaves.num_rows:
                continue
            order = np.argsort(groups.codes, kind="stable")
            starts = np.flatnonzero(np.diff(groups.codes[order], prepend=-1))
            found += [
                DuplicatePartition(number, leaves.take(pa.array(rows)))
                for rows in np.split(order, starts[1:])
                if len(rows) > 1
            ]
        return found

    def find_keys(self, object_ids: Iterable[str]) -> list[PartitionKey]:
        """Return the partition keys of the leaves with these object ids, ordered by spec."""
        wanted = pa.array(object_ids, pa.string())
        found: list[PartitionKey] = []
        for number, leaves in sorted(self.list_leaves().items()):
            chosen = leaves.filter(pc.is_in(leaves.column(LEAF_OBJECT_ID), wanted))
            found += read_keys(self.leaf_keys(number, chosen))
        return found

    def leaf_keys(self, spec_id: int, leaves: pa.Table) -> pa.Table:
        """Return the partition keys of a spec's leaves."""
        names = [field.field_id for field in self.properties.specs[spec_id].fields]
        return to_key_columns(spec_id, leaves.select(names), leaves.num_rows)
