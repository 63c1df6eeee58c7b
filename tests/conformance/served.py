"""An etcd of its own, and a coordinator that serves the catalog: what conformance runs against."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from distop.metastore.etcd.embedded import EtcdProcess, free_port

START_S = 60.0


@contextmanager
def coordinator(folder: Path) -> Iterator[str]:
    """The address ``http://HOST:PORT`` of an empty catalog, whose tables lie below ``folder``."""
    address = f"127.0.0.1:{free_port()}"
    distop = str(Path(sys.executable).parent / "distop")
    served = ["--listen", "127.0.0.1:0", "--catalog", address, "--warehouse", f"file://{folder}/warehouse"]
    # The kit names places of its own for some tables.
    served += ["--allow-location", f"file://{folder}", "--allow-location", "file:///tmp"]
    folder.mkdir(parents=True)
    with (folder / "coordinator.log").open("wb") as log, EtcdProcess(folder / "etcd") as etcd:
        process = subprocess.Popen(
            [distop, "coordinator", *served],
            env={**os.environ, "DISTOP_ETCD": etcd.endpoint},
            stderr=log,
        )
        try:
            _wait(process, f"http://{address}/v1/config", folder / "coordinator.log")
            yield f"http://{address}"
        finally:
            process.terminate()
            process.wait(30)


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"the coordinator does not serve:\n{log.read_text()}")
