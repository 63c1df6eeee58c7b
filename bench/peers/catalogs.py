"""Catalogs to compare with: a PostgreSQL of one's own, and Iceberg's own REST service on it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from distop.metastore.etcd.embedded import free_port

HERE = Path(__file__).resolve().parent
JARS = HERE.parents[1] / "build/bench/rest"
START_S, DOWNLOAD_S = 120.0, 600
USER = "postgres"
"""The user that Debian's package makes; the server does not run as root."""


def programs() -> Path | None:
    """The folder of PostgreSQL's programs; ``None`` if it is not installed."""
    initdb = shutil.which("initdb")
    folders = [Path(initdb).resolve().parent] if initdb else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    return next((folder for folder in reversed(folders) if (folder / "initdb").exists()), None)


def missing() -> str:
    """What these catalogs need and this machine lacks; empty if they can run."""
    if not programs():
        return "PostgreSQL is not installed"
    absent = [tool for tool in ("mvn", "javac") if not shutil.which(tool)]
    return f"there is no {' and no '.join(absent)}" if absent else ""


@contextmanager
def postgres() -> Iterator[str]:
    """``HOST:PORT/DATABASE`` of an empty one on loopback, which knows ``USER`` without a password."""
    bin_folder, port = programs(), free_port()
    assert bin_folder
    user = USER if os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory(prefix="distop-postgres-") as name:
        folder = Path(name)
        if user:
            shutil.chown(folder, user)
        data = str(folder / "data")
        initdb = [str(bin_folder / "initdb"), "-D", data, "-U", USER, "-A", "trust"]
        subprocess.run(initdb, user=user, check=True, stdout=subprocess.DEVNULL, cwd=folder)
        given = ["-D", data, "-p", str(port), "-c", "listen_addresses=127.0.0.1", "-k", name]
        with (folder / "log").open("wb") as log:
            server = subprocess.Popen(
                [str(bin_folder / "postgres"), *given], user=user, stderr=log, stdout=log, cwd=folder
            )
        try:
            ready = [str(bin_folder / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
            _until(lambda: subprocess.run(ready, check=False).returncode == 0, server, folder / "log")
            yield f"127.0.0.1:{port}/{USER}"
        finally:
            server.send_signal(signal.SIGINT)  # SIGTERM would have it wait for its clients
            server.wait(60)


@contextmanager
def rest_service(database: str, folder: Path) -> Iterator[str]:
    """Address of a REST service over a database; tables lie below ``folder``. Maven downloads it."""
    pom, port = str(HERE / "rest.xml"), free_port()
    download = ["mvn", "-q", "-B", "-f", pom, "dependency:copy-dependencies", f"-DoutputDirectory={JARS}"]
    subprocess.run(download, check=True, timeout=DOWNLOAD_S)
    program = ["java", "-Xmx1g", "-cp", f"{JARS}/*", str(HERE / "RestServer.java"), str(port)]
    program += [f"jdbc:postgresql://{database}", USER, f"file://{folder}"]
    log = folder.with_suffix(".log")
    with log.open("wb") as out:
        server = subprocess.Popen(program, stdout=out, stderr=out)
    address = f"http://127.0.0.1:{port}"
    try:
        _until(lambda: _answers(f"{address}/v1/config"), server, log)
        yield address
    finally:
        server.terminate()
        server.wait(60)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=10):
            return True
    except OSError:
        return False


def _until(ready: Callable[[], bool], server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while not ready():
        if server.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"a catalog to compare with does not start:\n{log.read_text()[-3000:]}")
        time.sleep(0.1)
