"""The Python of Spark's workers: what cannot work is refused before a task is lost to it.

A task that finds no sidecar starts one, as a process of its own: ``sys.executable`` has to find distop by
itself. The interpreter of a PEX does not, and files of Spark (``--py-files``) are known to the task alone;
what distop needs is compiled besides, and cannot be loaded out of a zip.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from distop.errors import PreconditionFailed, shortened
from distop.executor.launch.settings import refuse_old

PYTHON, FILES = "spark.pyspark.python", "spark.submit.pyFiles"
VARIABLE = "PYSPARK_PYTHON"

FINDS = "import importlib.util as u; raise SystemExit(u.find_spec('distop.executor.sidecar.server') is None)"
"""A program that fails where a process of its own does not find distop."""

START_S = 60.0
"""How long an interpreter may take for it."""


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
    said = done.stderr.strip().splitlines()
    return shortened(said[-1], 300) if said else "there is no module distop.executor.sidecar.server"


def _is_pex(name: str) -> bool:
    path = Path(name)
    return path.suffix == ".pex" or (path.is_file() and zipfile.is_zipfile(path))


def _holds_distop(file: str) -> bool:
    """Whether an archive has the package in it; of one that is not here its name tells."""
    path = Path(urlsplit(file).path)
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.startswith("distop/") for name in archive.namelist())
    except (OSError, zipfile.BadZipFile):
        return path.name.startswith(("distop-", "distop."))
