"""The wheel has the compiled classes: with its Spark no JDK is needed."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from phalanx.spark.sql import bridge

ROOT = Path(__file__).parents[2]


def test_a_wheel_has_the_jar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "--wheel-dir", str(tmp_path), str(ROOT)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".jar"))
        archive.extract(name, tmp_path)
    shipped = tmp_path / name
    assert shipped.parent == tmp_path / "phalanx" / "spark" / "sql" / "jars"
    with zipfile.ZipFile(shipped) as jar:
        assert "phalanx/bridge/Source.class" in jar.namelist()
    # A machine with a JRE only, and nothing in its cache.
    monkeypatch.setattr(bridge, "_SHIPPED", shipped.parent)
    monkeypatch.setattr(bridge, "_compile", None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    bridge.find_jar.cache_clear()
    try:
        assert bridge.find_jar() == shipped
    finally:
        bridge.find_jar.cache_clear()
