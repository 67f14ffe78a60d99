"""Puts the compiled classes of the Spark bridge into a wheel.

They are compiled for the Spark in the environment that builds: `make wheel`. Without one, and for
an editable install, the wheel has their sources only, and a session compiles them when it starts.
"""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_MODULE = "src/phalanx/spark/sql/bridge.py"


class JarInWheel(BuildHookInterface):  # type: ignore[type-arg]
    """Compiles the classes before the wheel is packed."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the jar to what the wheel has."""
        if version == "editable" or importlib.util.find_spec("pyspark") is None:
            return
        # By its path: what is being built is not installed.
        spec = importlib.util.spec_from_file_location("bridge", Path(self.root, _MODULE))
        assert spec is not None
        assert spec.loader is not None
        bridge = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(bridge)
        jar = bridge.compiled(self._folder())
        build_data["force_include"][str(jar)] = f"phalanx/spark/sql/jars/{jar.name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """The wheel has it."""
        shutil.rmtree(self._folder(), ignore_errors=True)

    def _folder(self) -> Path:
        return Path(self.directory) / "jar"
