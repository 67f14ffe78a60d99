"""A build hook that adds the compiled Java classes of the Spark bridge to a wheel.

They are compiled for the Spark of the build environment: `make wheel`. Without Spark, and for an
editable install, the wheel has only their sources, and a session compiles them when it starts.
"""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_MODULE = "src/phalanx/spark/sql/bridge.py"


class JarInWheel(BuildHookInterface):  # type: ignore[type-arg]
    """Compiles the classes before the wheel is built."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the jar and add it to the wheel."""
        if version == "editable" or importlib.util.find_spec("pyspark") is None:
            return
        # Load the module by its path: the package is not installed during the build.
        spec = importlib.util.spec_from_file_location("bridge", Path(self.root, _MODULE))
        assert spec is not None
        assert spec.loader is not None
        bridge = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(bridge)
        jar = bridge.build_jar(self._folder())
        build_data["force_include"][str(jar)] = f"phalanx/spark/sql/jars/{jar.name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the jar from the build folder."""
        shutil.rmtree(self._folder(), ignore_errors=True)

    def _folder(self) -> Path:
        return Path(self.directory) / "jar"
