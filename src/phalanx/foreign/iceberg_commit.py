"""One Iceberg snapshot that replaces data files by others with the same rows, through pyiceberg."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.manifest import DataFile, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update.snapshot import _OverwriteFiles
from pyiceberg.typedef import EMPTY_DICT

from phalanx.errors import UnknownOutcome


class _ReplaceFiles(_OverwriteFiles):
    """pyiceberg's overwrite of given files, as the operation `replace`.

    pyiceberg would search the files by their partitions, which finds none of NaN, and would repeat
    a commit after checks that overlook a delete behind which there is an append: here the manifests
    are known, and whoever comes second is told.
    """

    holding: frozenset[str] = frozenset()

    def _build_delete_files_partition_predicate(self) -> None:
        """Nothing to build."""

    def _build_manifest_evaluator(self, spec_id: int) -> Callable[[ManifestFile], bool]:
        return lambda manifest: manifest.manifest_path in self.holding

    def commit(self) -> None:
        # Without telling the transaction: it repeats the commits of which it knows.
        self._transaction._apply(*self._commit())

    def _summary(self, snapshot_properties: dict[str, str] = EMPTY_DICT) -> Summary:
        # pyiceberg counts only operations that it has itself.
        summary = super()._summary(snapshot_properties)
        return Summary(Operation.REPLACE, **summary.additional_properties)


def replace_files(
    table: Table,
    removed: Sequence[DataFile],
    added: Sequence[DataFile],
    manifests: frozenset[str],
) -> int:
    """Commit the snapshot and return its id; `manifests` are those that list the removed files.

    Raises `CommitFailedException` if there is a newer snapshot than the table object knows, and
    `UnknownOutcome` if nobody can tell whether the commit stands.
    """
    transaction = table.transaction()
    producer = _ReplaceFiles(Operation.OVERWRITE, transaction, table.io)
    producer.holding = manifests
    for file in removed:
        producer.delete_data_file(file)
    for file in added:
        producer.append_data_file(file)
    try:
        producer.commit()
    except Exception:
        # Nothing but manifests has been written yet.
        producer._clean_all_uncommitted()
        raise
    try:
        transaction.commit_transaction()
    except (CommitFailedException, ValidationException):
        producer._clean_all_uncommitted()
        raise
    except Exception as error:
        if not _has_snapshot(table, producer.snapshot_id):
            raise UnknownOutcome(
                f"The commit of snapshot {producer.snapshot_id} to the Iceberg table "
                f"{'.'.join(table.name())} failed: {error}. Look whether the table has the "
                "snapshot before you repeat it."
            ) from error
    return producer.snapshot_id


def _has_snapshot(table: Table, snapshot_id: int) -> bool:
    """Whether the catalog has the snapshot; False also where it does not answer."""
    try:
        fresh = table.catalog.load_table(table.name())
    except Exception:
        return False
    return fresh.metadata.snapshot_by_id(snapshot_id) is not None
