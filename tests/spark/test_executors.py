"""The same tests on executors of their own, by Spark Connect, and by the Python source alone.

Connect's server has such executors too. The soak also tries them without Connect.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spark.conftest import CLUSTER
from tables import SOAK

HERE = Path(__file__).parent


@pytest.mark.parametrize(
    ("master", "which"),
    [
        ("connect", "executors"),
        ("python", "executors and bare"),
        *([(CLUSTER, "executors")] if SOAK else []),
    ],
)
def test_the_representative_ones_pass(master: str, which: str) -> None:
    """A process can hold one session: another one needs another process."""
    inherited = {name: text for name, text in os.environ.items() if "PYTEST" not in name}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "0", "-m", which, str(HERE)],
        env={**inherited, "PHALANX_TEST_MASTER": master},
        cwd=HERE.parent.parent,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    assert "skipped" not in done.stdout
