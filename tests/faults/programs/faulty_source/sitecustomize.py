"""Makes every Python process of a Spark session write with faults, also for SQL statements.

`PHALANX_TEST_FAULTS` names a file with the faults as JSON, which may change while Spark runs.
"""

from __future__ import annotations

import json
import os
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

_MODULE = "phalanx.spark.source.source"


class _Faulty(Loader):
    """Loads the data source, and makes its writers fail."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        source = module.PhalanxSource
        writer = source.writer

        def faulty(self: Any, schema: Any, overwrite: bool) -> Any:
            from faults.programs.faulty_writer import FaultyWriter

            faults = json.loads(Path(os.environ["PHALANX_TEST_FAULTS"]).read_text())
            made = writer(self, schema, overwrite)
            return FaultyWriter(made, faults) if faults else made

        source.writer = faulty


class _Finder(MetaPathFinder):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != _MODULE:
            return None
        found = PathFinder.find_spec(name, path)
        if found is not None and found.loader is not None:
            found.loader = _Faulty(found.loader)
        return found


sys.meta_path.insert(0, _Finder())
