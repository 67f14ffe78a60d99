"""One job in a process of its own; prints the peak of its memory in bytes."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import phalanx
from bench.storage import append_stream


def main() -> None:
    what, folder, rows = sys.argv[1:]
    if what == "append":
        append_stream(Path(folder), int(rows))
    else:
        events = phalanx.open(Path(folder) / "events")
        assert sum(batch.num_rows for batch in events.scan().to_batches()) == int(rows)
    print(_peak_bytes())


def _peak_bytes() -> int:
    status = Path("/proc/self/status")
    if status.exists():
        # getrusage includes the parent process before this program replaced it.
        (line,) = [line for line in status.read_text().splitlines() if line.startswith("VmHWM")]
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
