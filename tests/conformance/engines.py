"""Engines that write and read tables through the catalog, each installed into a folder of its own; each runs
the blocks of its page, too."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).resolve().parent
KEPT = HERE.parents[1] / "build/conformance"
"""What was downloaded, for the next run."""
PYICEBERG = f"pyiceberg[pyarrow]=={version('pyiceberg')}"
DUCKDB = "1.5.5"
"""The last for which its extensions are there as packages."""

IN_PYTHON = {
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
    "clickhouse": ["chdb==4.4.*", PYICEBERG],
}
"""What each installs, into a virtual environment."""
ENGINES = (*IN_PYTHON, "flink", "trino")
ON_S3 = ("clickhouse",)
"""Those that take no tables on a local disk."""
SPARK_RUNTIME = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
"""Which Spark downloads."""
TRINO = "io.trino:trino-server:476:tar.gz"
"""The last that Maven's repository has."""
TRINO_JAVA = 24
LIMIT_S = 600


def missing(name: str) -> str:
    """What this machine has not that an engine needs; empty where it has all."""
    tools = {"flink": ("mvn", "javac"), "trino": ("mvn",)}.get(name, ())
    if absent := [tool for tool in tools if not shutil.which(tool)]:
        return f"needs {' and '.join(absent)}"
    if name == "trino" and not java(TRINO_JAVA):
        return f"needs Java {TRINO_JAVA} or newer, in JAVA_HOME or where Debian puts it"
    return ""


def run(url: str, name: str, environment: Mapping[str, str] | None = None) -> bool:
    """Whether an engine has done it, with these variables."""
    try:
        _call(*_command(install(name), url, name), environment=environment)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        print(f"{name}: {error}")
        return False
    print(f"{name}: wrote and read back")
    return True


def python_of(name: str) -> Path | None:
    """The Python of an engine; None where it is not installed."""
    folder = _folder(name)
    return folder / "bin/python" if (folder / "ready").exists() else None


def install(name: str) -> Path:
    """The folder of an engine, made where it is not there."""
    folder = _folder(name)
    if not (folder / "ready").exists():
        if name in IN_PYTHON:
            _call(sys.executable, "-m", "venv", "--clear", str(folder))
            _call(str(folder / "bin/pip"), "install", "--quiet", *IN_PYTHON[name])
        else:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            {"flink": _install_flink, "trino": _install_trino}[name](folder)
        (folder / "ready").touch()
    return folder


def java(at_least: int) -> Path | None:
    """The home of a Java that is new enough."""
    homes = [Path(os.environ.get("JAVA_HOME", "/nowhere")), *sorted(Path("/usr/lib/jvm").glob("*"))]
    return next((home for home in homes if _java_version(home) >= at_least), None)


def _java_version(home: Path) -> int:
    try:
        lines = (home / "release").read_text().splitlines()
    except OSError:
        return 0
    versions = [line.partition("=")[2].strip('"') for line in lines if line.startswith("JAVA_VERSION=")]
    return int(versions[0].split(".")[0]) if versions and versions[0].split(".")[0].isdigit() else 0


def _folder(name: str) -> Path:
    return KEPT / (f"venv-{name}" if name in IN_PYTHON else name)


def _command(folder: Path, url: str, name: str) -> Iterable[str]:
    if name == "flink":
        page = str(HERE.parents[1] / "docs/engines/flink.md")
        return ("java", "-cp", f"{folder}/lib/*", str(HERE / "engines/WithFlink.java"), url, page)
    script = str(HERE / f"engines/with_{name}.py")
    if name == "trino":
        return (sys.executable, script, url, str(folder), str(java(TRINO_JAVA)))
    further = [SPARK_RUNTIME] if name == "spark" else []
    return (str(folder / "bin/python"), script, url, *further)


def _install_flink(folder: Path) -> None:
    pom = str(HERE / "engines/flink.xml")
    _call("mvn", "-q", "-B", "-f", pom, "dependency:copy-dependencies", f"-DoutputDirectory={folder}/lib")


def _install_trino(folder: Path) -> None:
    _call("mvn", "-q", "-B", "dependency:copy", f"-Dartifact={TRINO}", f"-DoutputDirectory={folder}")
    [archive] = folder.glob("*.tar.gz")
    _call("tar", "-xzf", str(archive), "-C", str(folder), "--strip-components=1")
    archive.unlink()
    for plugin in (folder / "plugin").iterdir():
        if plugin.name != "iceberg":
            shutil.rmtree(plugin)


def _call(*command: str, environment: Mapping[str, str] | None = None) -> None:
    # What needs no library of distop's is there, too.
    path = f"{HERE}{os.pathsep}{HERE.parents[1] / 'src'}"
    given = {**os.environ, **(environment or {}), "PYTHONPATH": path}
    subprocess.run(command, check=True, timeout=LIMIT_S, env=given)
