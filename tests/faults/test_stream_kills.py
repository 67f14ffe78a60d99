"""A stream into a strong table is killed repeatedly: no row is lost or duplicated."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pyarrow as pa

import phalanx
from faults.programs.stream_driver import kill, start_stream
from tables import SOAK

BATCHES, KILLS = (40, 6) if SOAK else (4, 1)
_LONGEST = 300.0


def count_batches(checkpoint: Path, kind: str = "commits") -> int:
    """Return how many batches the checkpoint has: planned (offsets) or done (commits)."""
    return len(list(checkpoint.glob(f"{kind}/[0-9]*")))


def numbers(table: phalanx.Table) -> list[int]:
    return sorted(table.scan(columns=["n"]).to_arrow()["n"].to_pylist())


def test_killed_streams_write_each_batch_once(tmp_path: Path) -> None:
    source = phalanx.create(
        tmp_path / "source",
        pa.schema({"k": pa.string(), "n": pa.int64()}),
        ["k"],
        transaction="strong",
    )
    for batch in range(BATCHES):
        keys = ["a", "b", f"new{batch % 5}"]
        source.append(pa.table({"k": keys, "n": [10 * batch + place for place in range(3)]}))
    target, checkpoint = str(tmp_path / "target"), tmp_path / "checkpoint"
    chance = random.Random(0 if not SOAK else None)
    # The first batch is of the snapshot that made the table.
    planned = BATCHES + 1
    for death in range(KILLS):
        done = count_batches(checkpoint)
        last = done + 1 + max(1, (planned - done) // (KILLS - death + 1))
        exactly = death % 2 == 0
        with start_stream(source.uri, target, checkpoint, last if exactly else None) as driver:
            if exactly:
                assert driver.wait(_LONGEST) == -signal.SIGKILL
                # The table has a batch that the checkpoint does not record as done.
                assert count_batches(checkpoint) == last
                appends = phalanx.open(target).snapshots()["operation"].to_pylist()
                assert appends.count("append") == last
            else:
                end = time.monotonic() + _LONGEST
                while count_batches(checkpoint, "offsets") < last and driver.poll() is None:
                    assert time.monotonic() < end
                    time.sleep(0.01)
                time.sleep(chance.uniform(0, 0.4))
                kill(driver)
    with start_stream(source.uri, target, checkpoint) as driver:
        assert driver.wait(_LONGEST) == 0, checkpoint.with_suffix(".log").read_text()[-5000:]
    table = phalanx.open(target)
    assert numbers(table) == numbers(source)
    operations = table.snapshots()["operation"].to_pylist()
    assert operations == ["create", *["append"] * BATCHES]
