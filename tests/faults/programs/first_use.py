"""A process whose threads use Phalanx for the first time, all at once."""

from __future__ import annotations

import sys
import threading

import phalanx
from phalanx.model.sql import session
from phalanx.storage.lance import location

THREADS = 24


def main(root: str) -> None:
    """Print `one answer` if all threads agree, and otherwise each different answer."""
    sys.setswitchinterval(1e-6)
    tables = [phalanx.open(root) for _ in range(THREADS)]
    together, found = threading.Barrier(THREADS), [""] * THREADS

    def ask(place: int) -> None:
        together.wait()
        try:
            number = place % 3
            rows = tables[place].scan(f"id = {number} AND length(name) = 1 AND NOT (id % 2 = 5)")
            shared = {
                id(get_session())
                for get_session in (
                    session.evaluation_session,
                    session.analysis_session,
                    location.shared_session,
                )
            }
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
