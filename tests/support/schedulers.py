"""The packages in ``integrations``, each beside the real scheduler in an environment of its own."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from support.repository import ROOT

KEPT = ROOT / "build" / "schedulers"
INSTALL_S = 600


def environment_with(integration: str) -> Path:
    """The Python of an environment with one of the integrations and its scheduler, in the versions it pins.

    What distop needs is that of the environment of these tests, unless the scheduler refuses its version. It
    is made once. Skips the test where the package index cannot be reached.
    """
    package, home = ROOT / "integrations" / integration, KEPT / integration
    files = [package / "pyproject.toml", package / "constraints.txt", ROOT / "constraints.txt"]
    stamp = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    KEPT.mkdir(parents=True, exist_ok=True)
    with (KEPT / f"{integration}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "stamp").exists() or (home / "stamp").read_text() != stamp:
            _install(home, package)
            (home / "stamp").write_text(stamp)
    return home / "bin" / "python"


def variables_for(integration: str) -> dict[str, str]:
    """The environment variables of a scheduler, which uses the integration's sources as they are now."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DISTOP", "PYTHON"))}
    return kept | {"PYTHONPATH": str(ROOT / "integrations" / integration)}


def check_parts(integration: str, folder: Path) -> None:
    """Run the tests beside an integration, with its scheduler's packages but without any service."""
    python, package = environment_with(integration), ROOT / "integrations" / integration
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull]
    _run(
        [*command, "--rootdir", str(package), str(package / "tests")],
        variables_for(integration) | {"AIRFLOW_HOME": str(folder), "DAGSTER_HOME": str(folder)},
    )


def _install(home: Path, package: Path) -> None:
    python, own_packages = home / "bin" / "python", sysconfig.get_path("purelib")
    _run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(home)])
    packages = sysconfig.get_path("purelib", vars={"base": str(home)})
    (Path(packages) / "distop-tests.pth").write_text(f"import site; site.addsitedir({own_packages!r})\n")
    sources = shutil.copytree(package, home / "package")  # a build leaves files beside its sources
    pip = [sys.executable, "-m", "pip", "--python", str(python)]
    install = [*pip, "install", "--quiet", "--no-deps", "--no-build-isolation"]
    _run([*install, "-r", str(package / "constraints.txt")], unreachable="No matching distribution found")
    _run([*install, str(sources)])
    _run([*pip, "check"])


def _run(command: list[str], environment: dict[str, str] | None = None, *, unreachable: str = "") -> None:
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=INSTALL_S, check=False
    )
    output = (done.stdout + done.stderr)[-2000:]
    if done.returncode and unreachable and unreachable in output:
        pytest.skip(f"the package index cannot be reached: {output[-300:]}")
    assert not done.returncode, output
