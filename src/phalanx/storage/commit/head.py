"""Snapshots of a strong namespace, and the one fence that all of its commits pass.

Each commit is one change of manifest rows. Among them is always the head row: of two commits at
the same time one is refused, so that history is linear.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from phalanx.errors import (
    CommitConflict,
    InvalidManifest,
    PhalanxError,
    StorageFailure,
    UnknownOutcome,
)
from phalanx.model.stored_json import COUNT, MOMENT, Rule, read_object
from phalanx.planning.pruning.scan_plan import LOCATION, OBJECT_ID, ROW_ADDRESS
from phalanx.storage.commit.history_rows import (
    DROP,
    MARKER,
    PHALANX,
    TABLE_VERSION,
    UPDATES,
    Batch,
    Marker,
    history_rows,
    marker_facts,
    marker_id,
    marker_rows,
    snapshot_facts,
    snapshot_id,
)
from phalanx.storage.lance.checksums import complete
from phalanx.storage.lance.failures import plain_reason
from phalanx.storage.lance.fault_points import Step, reach
from phalanx.storage.lance.parallel import in_parallel
from phalanx.storage.lance.retries import Result, Unsettled, is_lost_race, settling, until_won
from phalanx.storage.manifest.changes import change, completed, upsert
from phalanx.storage.manifest.columns import (
    PIN_COLUMNS,
    READ_BRANCH,
    READ_TAG,
    READ_VERSION,
    plain,
)
from phalanx.storage.manifest.dropped import (
    DROPPED,
    LEAVING,
    DroppedLeaf,
    addresses_of,
    dropped_leaves,
    rows_of_dropped,
)
from phalanx.storage.manifest.manifest import HEAD, Manifest
from phalanx.storage.manifest.pins import branch_of, is_pinned
from phalanx.storage.manifest.rows import ADDRESS
from phalanx.storage.state.naming import SEPARATOR, is_number

_FACTS = {
    "sequence": COUNT,
    "epoch": COUNT,
    "horizon": Rule("a time with its zone, or nothing", lambda x: not x or MOMENT.holds(x)),
    "time": MOMENT,
}
_EAGER_ATTEMPTS = 200
# How far the clocks of two machines may be apart.
CLOCK_MARGIN = timedelta(minutes=2)


@dataclass(frozen=True, slots=True)
class Head:
    """Where history stands: the last snapshot, and the properties that it was made under.

    `horizon` is the time before which the last vacuum removed files, and another one after each
    vacuum; empty before the first. All snapshots up to `published` have reached the leaves' main
    branches.
    """

    sequence: int
    epoch: int
    horizon: str
    time: str
    published: int = 0

    @classmethod
    def from_json(cls, text: str) -> Head:
        """The head from its row; the first ones had a number for the horizon."""
        what = f"where the table's history stands (the row {HEAD} of its manifest)"
        facts = read_object(text, what, _FACTS, {"published": COUNT}, closed=True)
        if facts.get("published", 0) > facts["sequence"]:
            raise InvalidManifest(
                f"Cannot read {what}: published is {facts['published']}, expected no more than "
                f"sequence, which is {facts['sequence']}. Restore the row."
            )
        return cls(**{**facts, "horizon": facts["horizon"] or ""})

    @classmethod
    def before_all(cls, epoch: int, last: int = 0) -> Head:
        """What comes before the first snapshot; `last` is the highest number that was ever used."""
        start = datetime.min.replace(tzinfo=UTC).isoformat()
        return cls(last, epoch, "", start, published=last)

    def was_vacuumed(self, earlier: Head, began: datetime) -> bool:
        """Whether files written since `began`, when the head was another, may be gone by now."""
        if self.horizon == earlier.horizon:
            return False
        return began < datetime.fromisoformat(self.horizon) + CLOCK_MARGIN

    def to_json(self) -> str:
        """The head as its row has it."""
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class LeafVersion:
    """What a commit does to a leaf: the version to read from now on, and how it came to be.

    `main` is the version that the leaf's main branch had when Phalanx took it over.
    """

    object_id: str
    version: int
    operation: str
    added: int = 0
    removed: int = 0
    main: int | None = None


def head_of(manifest: Manifest) -> Head | None:
    """The head of a strong namespace; None where nothing has been committed strongly."""
    rows = manifest.row(HEAD)
    if not rows.num_rows:
        return None
    found = Head.from_json(rows.column("metadata")[0].as_py())
    # Each snapshot is a version of the manifest, unless numbers of another writer came before.
    if found.sequence > manifest.version and not manifest.row(snapshot_id(found.sequence)).num_rows:
        raise InvalidManifest(
            f"The row {HEAD} of the manifest of {manifest.root} names snapshot {found.sequence}, "
            "which is not listed. Something else has written it, or it is damaged: restore it."
        )
    return found


def with_head(manifest: Manifest, version: int) -> tuple[Manifest, Head] | None:
    """Another version of a manifest, and its head; None if there is none, or no longer."""
    try:
        there = manifest.at_version(version)
        found = head_of(there)
    except (OSError, ValueError) as error:
        # Vacuum removes the oldest versions.
        if "not found" not in str(error).lower():
            raise
        return None
    return None if found is None else (there, found)


def head_row(head: Head) -> pa.Table:
    """The manifest row that says where history stands."""
    return history_rows({HEAD: head.to_json()}, PHALANX)


def first_head(manifest: Manifest) -> Head:
    """What comes before the first snapshot: no number that was ever seen is used again."""
    rows = manifest.table(
        columns=["object_id", "object_type", "metadata"],
        condition=f"object_type IN ('{TABLE_VERSION}', '{PHALANX}')",
    )
    numbers = []
    for row in rows.to_pylist():
        if row["object_type"] == TABLE_VERSION:
            numbers.append(row["object_id"].rpartition(SEPARATOR)[2])
        elif row["object_id"].startswith(f"{MARKER}{SEPARATOR}"):
            numbers.append(str(marker_facts(row["metadata"])["snapshot"]))
    last = max((int(number) for number in numbers if is_number(number)), default=0)
    return Head.before_all(manifest.properties.epoch, last)


def commit(
    manifest: Manifest,
    head: Head,
    leaves: Sequence[LeafVersion],
    operation: str,
    *,
    new: pa.Table | None = None,
    dropped: Sequence[str] = (),
    epoch: int | None = None,
    marker: Marker | None = None,
    updates: str | None = None,
) -> int:
    """Commit one snapshot on top of exactly this manifest, whose head it is; the snapshot's id.

    A lost race raises, and `UnknownOutcome` where the store does not tell what it did. `new` has
    the rows of partitions that this commit makes, or lists again after they were dropped, and
    `dropped` the object ids of those that it drops. `epoch` is that of the properties, where the
    commit completes a change of them. `updates` names the file that says which rows became which.
    """
    moment = _time(head.time)
    fence = manifest.row(HEAD).column(ADDRESS).to_numpy()
    if not head.sequence and len(fence):
        # The table was made for the rows that come with its first snapshot.
        operation = "create"
    number = head.sequence + 1
    head = replace(head, sequence=number, time=moment)
    if epoch is not None:
        head = replace(head, epoch=epoch)
    snapshot: dict[str, Any] = {
        "id": number,
        "time": moment,
        "operation": operation,
        "partitions": len(leaves) + len(dropped),
        "rows_added": sum(leaf.added for leaf in leaves),
        # How many rows a dropped leaf has is not looked up.
        "rows_removed": None if dropped else sum(leaf.removed for leaf in leaves),
        "manifest_version": manifest.version_before,
        # By this a writer knows its own snapshot, when the store's answer was lost.
        "token": uuid.uuid4().hex,
    }
    if updates is not None:
        snapshot[UPDATES] = updates
    ours = {HEAD: head.to_json(), snapshot_id(number): json.dumps(snapshot)}
    if marker is not None:
        ours |= marker_rows(marker, number, moment)
    found = manifest.leaves_named(leaf.object_id for leaf in leaves)
    gone = manifest.leaves_named(dropped)
    back = [] if new is None else _listed_again(manifest, new)
    rows = pa.concat_tables(
        [
            _table_rows(manifest, found, leaves, new),
            completed(manifest, rows_of_dropped(_listed(manifest, gone), number)),
            completed(manifest, _version_rows(leaves, number)),
            completed(manifest, _drop_rows(dropped, number)),
            completed(manifest, history_rows(ours, PHALANX)),
        ]
    )
    if manifest.root.checksums:
        _complete_checksums(manifest, leaves, found)
    reach(Step.COMMITTING)
    try:
        if len(fence):
            listed = [each.column(ROW_ADDRESS).to_numpy() for each in (found, gone)]
            replaced = [*listed, addresses_of(back), fence]
            if isinstance(marker, Batch):
                # The batch before it.
                replaced.append(manifest.row(marker_id(marker)).column(ADDRESS).to_numpy())
            change(manifest, rows, np.concatenate(replaced))
        else:
            # Of two first commits a merge refuses one, by the primary key of the head row.
            with settling():
                upsert(manifest, rows)
        with settling():
            reach(Step.COMMITTED)
    except OSError as error:
        is_open = isinstance(error, Unsettled) or is_lost_race(error)
        if not is_open or not _stands(manifest, snapshot, error):
            raise
    return number


def _complete_checksums(manifest: Manifest, leaves: Sequence[LeafVersion], found: pa.Table) -> None:
    """Write the checksums of what others wrote to main branches that are taken over."""
    taken = {leaf.object_id: leaf.version for leaf in leaves if leaf.main is not None}
    names, places = (found.column(name).to_pylist() for name in (OBJECT_ID, LOCATION))

    def record(leaf: tuple[str, str]) -> None:
        location = manifest.root.child(leaf[1])
        complete(location, location.open_leaf(taken[leaf[0]]))

    in_parallel(record, [each for each in zip(names, places, strict=True) if each[0] in taken])


def _stands(manifest: Manifest, snapshot: Mapping[str, Any], error: OSError) -> bool:
    """Whether a commit that ended in an error was made nevertheless.

    `UnknownOutcome` where that cannot be told: a request that failed may still take effect.
    """
    number, why = int(snapshot["id"]), error
    try:
        rows = Manifest.open(manifest.root).rows_of([snapshot_id(number)])
    except (OSError, ValueError, PhalanxError) as failed:
        why = OSError(f"{plain_reason(error)} Then: {plain_reason(failed)}")
    else:
        if rows.num_rows:
            found = snapshot_facts(snapshot_id(number), rows.column("metadata")[0].as_py())
            return bool(found.get("token") == snapshot["token"])
        if is_lost_race(error):
            return False
    raise UnknownOutcome(
        f"The store failed while snapshot {number} of {manifest.root} was committed: "
        f"{plain_reason(why)} Nobody can tell yet whether it stands. Look for it in snapshots(), "
        "or repeat the same transaction if it has a marker, which commits it once."
    ) from error


def until_committed(
    attempt: Callable[[], Result],
    manifest: Manifest,
    change: str = "the change",
    *,
    eager: bool = False,
) -> Result:
    """What the first attempt gives that no other commit overtakes; each must start afresh.

    Who is `eager` tries again at once, and more often.
    """
    try:
        return until_won(attempt, _EAGER_ATTEMPTS, eager=True) if eager else until_won(attempt)
    except OSError as error:
        if not is_lost_race(error):
            raise
        newest = head_of(manifest.latest())
        last = "" if newest is None else f", the last one with snapshot {newest.sequence}"
        raise CommitConflict(
            f"Cannot commit {change} to {manifest.root}: other writers were always first{last}. "
            "Nothing was changed. Try again when there are fewer."
        ) from None


def _table_rows(
    manifest: Manifest, found: pa.Table, leaves: Sequence[LeafVersion], new: pa.Table | None
) -> pa.Table:
    """The rows of the leaves, as they are but for the version, and those of new partitions."""
    rows = _listed(manifest, found)
    if new is not None:
        # Namespaces that several partitions share may be there already.
        there = manifest.rows_of(new.column("object_id").to_pylist()).column("object_id")
        made = new.filter(pc.invert(pc.is_in(new.column("object_id"), there)))
        rows = pa.concat_tables([rows, plain(completed(manifest, made), manifest.root)])
    versions = {leaf.object_id: leaf.version for leaf in leaves}
    listed = [versions.get(name) for name in rows.column("object_id").to_pylist()]
    place = rows.column_names.index(READ_VERSION)
    rows = rows.set_column(place, READ_VERSION, pa.array(listed, pa.uint64()))
    return completed(manifest, _on_their_branches(rows, found))


def _listed(manifest: Manifest, leaves: pa.Table) -> pa.Table:
    """The rows that list these leaves."""
    rows = plain(completed(manifest, manifest.rows_of_leaves(leaves)), manifest.root)
    if Counter(rows.column("object_id").to_pylist()) != Counter(
        leaves.column(OBJECT_ID).to_pylist()
    ):
        raise StorageFailure(
            f"Cannot commit to {manifest.root}: the rows of its manifest are not where they should "
            "be. Something else has written it. Nothing was changed."
        )
    return rows


def _listed_again(manifest: Manifest, new: pa.Table) -> list[DroppedLeaf]:
    """The dropped partitions that are among new ones."""
    names = new.filter(pc.equal(new.column("object_type"), "table")).column("object_id")
    return list(dropped_leaves(manifest, names.to_pylist()).values())


def _on_their_branches(rows: pa.Table, found: pa.Table) -> pa.Table:
    """The rows, each with the branch that its leaf is read from; no tag stands for a new version.

    A manifest of the newest text has none of these columns.
    """
    if READ_BRANCH in rows.column_names:
        names, places = found.column(OBJECT_ID).to_pylist(), found.column(LOCATION).to_pylist()
        located = dict(zip(names, places, strict=True))
        branches = [
            branch_of(stored, located[name]) if name in located else None
            for name, stored in zip(
                rows.column("object_id").to_pylist(),
                rows.column("location").to_pylist(),
                strict=True,
            )
        ]
        place = rows.column_names.index(READ_BRANCH)
        rows = rows.set_column(place, READ_BRANCH, pa.array(branches, pa.string()))
    return rows.drop_columns([name for name in (READ_TAG,) if name in rows.column_names])


def _version_rows(leaves: Sequence[LeafVersion], number: int) -> pa.Table:
    said = {}
    for leaf in leaves:
        facts: dict[str, Any] = {
            "operation": leaf.operation,
            "rows_added": leaf.added,
            "rows_removed": leaf.removed,
        }
        if leaf.main is not None:
            facts["main"] = leaf.main
        said[f"{leaf.object_id}{SEPARATOR}{number}"] = json.dumps(facts)
    versions = pa.array([leaf.version for leaf in leaves], pa.uint64())
    return history_rows(said, TABLE_VERSION).append_column("read_version", versions)


def _drop_rows(names: Sequence[str], number: int) -> pa.Table:
    ids = pc.binary_join_element_wise(pa.array(names, pa.string()), str(number), SEPARATOR)
    return pa.table(
        {
            "object_id": ids,
            "object_type": pa.repeat(pa.scalar(TABLE_VERSION), len(names)),
            "metadata": pa.repeat(pa.scalar(DROP), len(names)),
        }
    )


def leave_strong(manifest: Manifest) -> None:
    """Take away in one commit all that only strong mode has.

    Rows may say what is to be read in weak mode too: where no strong time has just ended, that
    stays.
    """
    if manifest.properties.mode == "strong":
        # Another writer has gone back to it: what is there is its own.
        return
    columns = manifest.dataset.schema.names
    pinned = is_pinned(columns) if manifest.has_left_strong else "false"
    # Whoever repeats a transaction finds its marker, whatever the mode was meanwhile.
    ours = (
        f"object_type IN ('{TABLE_VERSION}', '{DROPPED}') OR "
        f"(object_type = '{PHALANX}' AND object_id NOT LIKE '{MARKER}{SEPARATOR}%' "
        f"AND object_id NOT LIKE '{LEAVING}%')"
    )
    rows = manifest.table(f"{ours} OR ({pinned})", with_row_address=True)
    if not rows.num_rows:
        return
    tables = rows.filter(pc.equal(rows.column("object_type"), "table"))
    cleared = [field.name for field in PIN_COLUMNS if field.name in columns]
    change(manifest, tables.drop_columns(cleared), rows.column(ADDRESS).to_numpy())
    reach(Step.STRONG_ROWS_REMOVED)


def _time(last: str) -> str:
    """Now; but later than the last snapshot, whatever the clocks of the writers say."""
    now = max(datetime.now(UTC), datetime.fromisoformat(last) + timedelta(microseconds=1))
    return now.isoformat(timespec="microseconds")
