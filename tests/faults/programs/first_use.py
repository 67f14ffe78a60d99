"""Many threads that use Phalanx for the first time in their process, all at once."""

from __future__ import annotations

import sys
import threading

import phalanx
from phalanx.model.sql import session
from phalanx.storage.lance import location

THREADS = 24


def main(root: str) -> None:
    """Print what the threads found, each different answer once."""
    sys.setswitchinterval(1e-6)
    tables = [phalanx.open(root) for _ in range(THREADS)]
    together, found = threading.Barrier(THREADS), [""] * THREADS

    def ask(place: int) -> None:
        together.wait()
        try:
            number = place % 3
            rows = tables[place].scan(f"id = {number} AND length(name) = 1 AND NOT (id % 2 = 5)")
            shared = {id(made()) for made in (session.session, session.checker, location.session)}
            found[place] = f"{rows.count_rows()} row, by {sorted(shared)}"
        except BaseException as error:
            found[place] = f"{type(error).__name__}: {error}"

    threads = [threading.Thread(target=ask, args=(place,)) for place in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    answers = sorted(set(found))
    print("one answer" if len(answers) == 1 and answers[0].startswith("1 row") else answers)


if __name__ == "__main__":
    main(sys.argv[1])
