"""The settings of a Spark session for many small Python tasks, and what is refused before one is lost.

A task that finds no sidecar starts one, as a process of its own: ``sys.executable`` has to find distop by
itself. The interpreter of a PEX does not, and files of Spark (``--py-files``) are known to the task alone;
what distop needs is compiled besides, and cannot be loaded out of a zip.
"""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from distop.errors import InvalidArgument, PreconditionFailed, shortened

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    # Without it every Python task waits 40 ms for Nagle's algorithm and delayed acknowledgements.
    "spark.python.unix.domain.socket.enabled": "true",
    # By default it is Java's temporary folder: on YARN that of a container, too long for a socket's path.
    "spark.python.unix.domain.socket.dir": "/tmp",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Operations share the slots instead of queueing behind the first.
    "spark.scheduler.mode": "FAIR",
    # Otherwise queries refuse columns of times of day.
    "spark.sql.timeType.enabled": "true",
    # Workers are forked from a process that has loaded what jobs need.
    "spark.python.daemon.module": "distop.executor.launch.spark_daemon",
}
"""Settings for many small Python tasks. The rest is Spark's default."""

REAPED = {
    # A task checks between rows whether it was cancelled, and one row can take any time. The worker of one
    # that has not ended by then is killed, unless it is the driver itself (`local`).
    "spark.task.reaper.enabled": "true",
    "spark.task.reaper.killTimeout": "60s",
    "spark.task.reaper.threadDump": "false",
}
"""How a session of ours ends tasks that do not end themselves."""

ADAPTIVE = "spark.sql.adaptive.enabled"
CHECKED = (
    "spark.sql.shuffle.orderIndependentChecksum.enabled",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch",
)
"""With both, Spark sees that a part of a shuffle which it computes again is not what it was, and computes all
that was made of it again. By default they are on."""

TASK_FAILURES = 4
"""Attempts at a task; Spark's own default, except that ``local[n]`` means once."""

LEAST = (4, 2)
"""The oldest PySpark that works."""

PYTHON, FILES = "spark.pyspark.python", "spark.submit.pyFiles"
VARIABLE = "PYSPARK_PYTHON"

FINDS = "import importlib.util as u; raise SystemExit(u.find_spec('distop.executor.sidecar.server') is None)"
"""A program that fails where a process of its own does not find distop."""

START_S = 60.0
"""How long an interpreter may take for it."""


def with_retries(master: str) -> str:
    """``local[2]`` tries a task once; ``local[2,4]`` four times, as clusters do."""
    if master == "local":
        return f"local[1,{TASK_FAILURES}]"
    match = re.fullmatch(r"local\[\s*(\d+|\*)\s*\]", master)
    return f"local[{match[1]},{TASK_FAILURES}]" if match else master


class SparkTooOld(PreconditionFailed):
    """The PySpark of this program is older than what distop works with."""

    code = "SPARK_TOO_OLD"
    default_hint = "pip install 'pyspark>=4.2,<5', and as new a Spark where the workers are"


def refuse_old() -> None:
    """Raise :class:`SparkTooOld` if PySpark is too old."""
    from pyspark.version import __version__ as version

    if tuple(map(int, re.findall(r"\d+", version)[:2])) < LEAST:
        raise SparkTooOld(f"PySpark {version} is older than {'.'.join(map(str, LEAST))}")


class ShufflesUnchecked(InvalidArgument):
    """The Spark session does not check shuffles that it computes again, under adaptive execution."""

    code = "SHUFFLES_UNCHECKED"
    default_hint = f"leave {' and '.join(CHECKED)} at true, or set {ADAPTIVE} to false"


def refuse_unchecked(session: SparkSession) -> None:
    """Raise :class:`ShufflesUnchecked` if rows of a DataFrame could be lost or doubled in this session;
    :class:`SparkTooOld` if it could not compute them.

    Adaptive execution makes a job of each shuffle. What Spark recomputes between two of these jobs, after it
    lost an executor, it does not report as repeated.
    """
    refuse_old()

    def is_on(name: str) -> bool:
        return (session.conf.get(name) or "").strip().lower() == "true"  # as Spark reads it

    off = [name for name in CHECKED if not is_on(name)]
    if off and is_on(ADAPTIVE):
        raise ShufflesUnchecked(f"the Spark session has {ADAPTIVE}, and not {' and '.join(off)}")


class PythonUnusable(PreconditionFailed):
    """Workers cannot run operations with this Python."""

    code = "PYTHON_UNUSABLE"
    default_hint = (
        "install distop in a virtual environment at the same path on every worker, or send one along that "
        "venv-pack has made (spark.yarn.dist.archives): docs/deploying.md, Workers of Spark"
    )


def refuse_unusable(master: str, settings: Mapping[str, str], environ: Mapping[str, str]) -> None:
    """See what can be seen before there is a session.

    Parameters
    ----------
    settings:
        Of Spark.

    Raises
    ------
    SparkTooOld
        This version of Spark lacks what distop needs.
    PythonUnusable
        The Python of the workers is a PEX, distop comes in ``--py-files``, or the interpreter does not find
        distop.
    """
    refuse_old()
    named = settings.get(PYTHON) or environ.get(VARIABLE)
    if named and _is_pex(named):
        raise PythonUnusable(f"the workers' Python, {named}, is a PEX: sidecars cannot be started from one")
    for file in filter(None, settings.get(FILES, "").split(",")):
        if _holds_distop(file):
            raise PythonUnusable(f"{file} (--py-files) holds distop: sidecars do not find it there")
    # The workers of a cluster are elsewhere, and may have another one at the same path.
    here = master == "local" or master.startswith("local[")
    for python in {sys.executable, named or sys.executable} if here else {named or sys.executable}:
        if (here or not named) and (why := why_bare(python)):
            raise PythonUnusable(f"{python} does not find distop in a process of its own: {why}")


def why_bare(python: str) -> str:
    """Why a new process of this interpreter would not find distop; empty if it does."""
    try:
        done = subprocess.run(
            [python, "-c", FINDS],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=START_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if not done.returncode:
        return ""
    lines = done.stderr.strip().splitlines()
    return shortened(lines[-1], 300) if lines else "there is no module distop.executor.sidecar.server"


def _is_pex(name: str) -> bool:
    path = Path(name)
    return path.suffix == ".pex" or (path.is_file() and zipfile.is_zipfile(path))


def _holds_distop(file: str) -> bool:
    """Whether an archive has the package in it; of one that is not here its name decides."""
    path = Path(urlsplit(file).path)
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.startswith("distop/") for name in archive.namelist())
    except (OSError, zipfile.BadZipFile):
        return path.name.startswith(("distop-", "distop."))
