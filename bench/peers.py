"""Connectors of other systems for Spark, fetched by Maven and run in the Spark they support."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_SPARK = "pyspark~=4.1.0"
_ICEBERG = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
_ENVIRONMENT = Path(__file__).parent.parent / "build" / "peers"


def iceberg_on_spark(source: Path, folder: Path) -> dict[str, dict[str, float]] | str:
    """Return the seconds of each job in the connector and in Parquet, or why it cannot run."""
    found: dict[str, dict[str, float]] | str = _run(
        "spark_peers.py", lambda jar: [source, folder, jar]
    )
    return found


def iceberg_merges(folder: Path, paths: Sequence[Path]) -> list[float] | str:
    """Return the seconds of MERGE INTO for each later file, or why the connector cannot run."""
    found: list[float] | str = _run("merge_peers.py", lambda jar: [folder, jar, *paths])
    return found


def _run(script: str, arguments: Callable[[Path], Sequence[Path]]) -> Any:
    """Run a script in the Spark of the connector. Return what it prints, or why it cannot run."""
    jar = _fetch(_ICEBERG)
    if jar is None:
        return "Iceberg's connector was not measured: Maven could not fetch it"
    python = _ENVIRONMENT / "bin" / "python"
    if not python.exists():
        venv.create(_ENVIRONMENT, with_pip=True)
        install = [str(python), "-m", "pip", "install", "--quiet", _SPARK]
        if subprocess.run(install, check=False, capture_output=True).returncode:
            shutil.rmtree(_ENVIRONMENT)
            return f"Iceberg's connector was not measured: {_SPARK} could not be installed"
    command = [python, Path(__file__).with_name(script), *arguments(jar)]
    ran = subprocess.run(command, check=False, capture_output=True, text=True)
    if ran.returncode:
        print(ran.stderr[-2000:], file=sys.stderr)
        return "Iceberg's connector failed"
    return json.loads(ran.stdout.splitlines()[-1])


def _fetch(artifact: str) -> Path | None:
    group, name, version = artifact.split(":")
    place = Path.home() / ".m2/repository" / group.replace(".", "/") / name / version
    jar = place / f"{name}-{version}.jar"
    if not jar.exists() and shutil.which("mvn") is not None:
        command = ["mvn", "-q", "-B", "dependency:get", "-Dtransitive=false"]
        subprocess.run([*command, f"-Dartifact={artifact}"], check=False, capture_output=True)
    return jar if jar.exists() else None
