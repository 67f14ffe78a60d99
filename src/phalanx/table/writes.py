"""Writing to a table."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any

from phalanx.model.specs.partition_key import PartitionKey
from phalanx.storage.lance.failures import tells
from phalanx.table.handle import HeldTable
from phalanx.table.jobs.write_job import WriteJob
from phalanx.table.read.keys import named_key
from phalanx.table.write import merge as merging
from phalanx.table.write import operations, retention
from phalanx.table.write import update as updating
from phalanx.table.write.adopt import adopt
from phalanx.table.write.merge import MergeCounts
from phalanx.table.write.retention import Retained


class Writes(HeldTable):
    """Rows that come, change and go."""

    @tells("append to")
    def append(self, data: Any) -> int:
        """Add rows, each to its partition under the newest spec; returns how many."""
        return operations.append(*self._statements(), data)

    @tells("overwrite")
    def overwrite(self, data: Any, where: str = "true") -> int:
        """Replace the rows that match `where` by rows that match it too; returns how many came."""
        return operations.overwrite(*self._statements(), data, where)

    @tells("overwrite partitions of")
    def overwrite_partitions(self, data: Any) -> int:
        """Replace the partitions (under the newest spec) that the data touches, and nothing else.

        Rows of these partitions are replaced wherever they are stored, older specs included.
        Returns how many rows came.
        """
        return operations.overwrite_partitions(*self._statements(), data)

    @tells("delete from")
    def delete(self, where: str) -> int:
        """Remove the rows that match; returns how many."""
        return operations.delete(*self._statements(), where)

    @tells("update")
    def update(self, where: str, assignments: Mapping[str, str]) -> int:
        """Give the rows that match new values, {column: SQL over the old row}; returns how many.

        A row whose partition values change moves to its partition under the newest spec; others
        stay in their leaf, whichever spec it is of. In weak mode each leaf is updated for itself:
        rows that move are added to their new leaves before they are removed from their old ones,
        so that a process that dies in between leaves them there twice, and none is ever lost.
        """
        return updating.update(*self._statements(), where, assignments)

    @tells("merge into")
    def merge(
        self,
        data: Any,
        on: str | Sequence[str],
        *,
        when_matched: str = "update",
        when_not_matched: str = "insert",
    ) -> MergeCounts:
        """Replace the rows that have the key of a row of the data, and add the others; how many.

        `on` is the column, or the columns, of the key. `when_matched` is "update" (the whole row
        becomes that of the data), "delete" or "ignore", `when_not_matched` "insert" or "ignore".
        A key that the data has twice is an error. All rows with a key are changed, in whichever
        partition; NULL matches nothing, and NaN matches NaN. In weak mode each leaf is changed for
        itself, as `update` does it, and two merges at the same time may both add a key.
        """
        return merging.merge(*self._statements(), data, on, when_matched, when_not_matched)

    @tells("drop partitions of")
    def drop_partitions(self, where: str) -> int:
        """Take the partitions all of whose rows match out of the table; returns how many.

        No data is read: their values must decide it, and one that may match in part is refused.
        In strong mode it is one commit, however many they are; they are not listed any more, and
        a rollback brings them back until a vacuum has removed them. In weak mode, and in drafts of
        the format, each becomes empty by a commit of its own, and stays listed with no rows.
        """
        return operations.drop_partitions(*self._statements(), where)

    @tells("retain partitions of")
    def retain(self, keep: str, *, rows: bool = False, dry_run: bool = False) -> Retained:
        """Drop the partitions in which `keep` is false for every row; tells which.

        `keep` is a predicate in which `now` and `today` may stand, plus or minus spans of time, as
        in "event_date >= now - 90 days". No data is read: a partition that may have rows to keep
        stays whole, unless with `rows` its other rows are deleted. Rows for which it is NULL stay.
        With `dry_run` nothing changes, and the same is told. It is committed as `drop_partitions`
        and `delete` are, in strong mode together.
        """
        if dry_run:
            return retention.retain(self._refreshed(), None, keep, rows)
        return retention.retain(*self._statements(), keep, rows)

    @tells("begin a write to")
    def begin_write(
        self, operation: str = "append", where: str = "true", marker: str | None = None
    ) -> WriteJob:
        """A write by many processes: they `write` rows of it, then one may `commit` it all.

        `operation` is "append", "overwrite" (of the rows that match `where`) or
        "overwrite_partitions". Of all jobs with the same marker one is committed; a text of
        several lines is several markers, of which none may be committed before.
        """
        return WriteJob.begin(self._written(), operation, where, marker)

    @tells("adopt into")
    def adopt(self, uri: str | os.PathLike[str], /, **values: Any) -> PartitionKey:
        """Make an existing Lance table a partition, where it is and without a copy; its key.

        Its columns must be the table's (in any order), and all its rows of one partition of the
        newest spec that does not exist yet. `values` are that partition's, by field id: needed
        only for a table without rows. Its field ids become the namespace's: nobody else should
        write to it meanwhile, and indexes must be dropped first where ids change. It belongs to
        this table from then on: a vacuum removes old versions of it, and after its partition was
        dropped all of it. For a partition that is listed, and is outside of the table's folder
        without a record, as after the table was moved, only the record is written.

        Stock clients list it like every other partition. They can open it only if it is inside
        the root: they take every location for a path below it.
        """
        wanted = functools.partial(named_key, values) if values else None
        return adopt(self._writable(), uri, wanted)
