"""Engines that write and read tables through the catalog, each in a virtual environment of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).resolve().parent
PYICEBERG = f"pyiceberg[pyarrow]=={version('pyiceberg')}"
DUCKDB = "1.5.5"
"""The last for which its extensions are there as packages."""

ENGINES = {
    "pyiceberg": [PYICEBERG],
    "polars": ["polars", PYICEBERG],
    "daft": ["daft", PYICEBERG],
    "duckdb": [
        f"duckdb=={DUCKDB}",
        *(f"duckdb-extension-{name}=={DUCKDB}" for name in ("iceberg", "avro", "httpfs")),
    ],
    "sail": ["pysail", "pyspark-client==4.1.*"],
    # Iceberg's runtime of a newer Spark is not there; that of 4.1 does not run on it.
    "spark": ["pyspark==4.1.*"],
}
LIMIT_S = 600


def run(url: str, folder: Path, name: str) -> bool:
    """Whether an engine has done it. ``folder`` keeps what is installed."""
    try:
        environment = install(folder, name)
        _call(str(environment / "bin/python"), str(HERE / f"engines/with_{name}.py"), url)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        print(f"{name}: {error}")
        return False
    print(f"{name}: wrote and read back")
    return True


def install(folder: Path, name: str) -> Path:
    """The virtual environment of an engine, made where it is not there."""
    environment = folder / f"venv-{name}"
    if not (environment / "ready").exists():
        _call(sys.executable, "-m", "venv", "--clear", str(environment))
        _call(str(environment / "bin/pip"), "install", "--quiet", *ENGINES[name])
        (environment / "ready").touch()
    return environment


def _call(*command: str) -> None:
    # What needs no library of distop's is there, too.
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1] / "src")}
    subprocess.run(command, check=True, timeout=LIMIT_S, env=environment)
