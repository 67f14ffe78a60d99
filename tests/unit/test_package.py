"""What `import phalanx` alone gives."""

import subprocess
import sys

import pytest

import phalanx

_LAZY = """
import sys, phalanx
assert not {"duckdb", "pyiceberg", "pyspark"} & set(sys.modules)
print(phalanx.ducklake.open.__module__, phalanx.iceberg.open.__module__)
"""


def test_modules_of_other_systems_are_imported_when_they_are_used() -> None:
    found = subprocess.run([sys.executable, "-c", _LAZY], capture_output=True, text=True)
    assert (found.stdout, found.stderr) == ("phalanx.ducklake phalanx.iceberg\n", "")


def test_other_names_are_no_attributes() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'delta'"):
        _ = phalanx.delta
