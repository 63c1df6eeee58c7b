"""An etcd of its own, and a coordinator that serves the catalog: what conformance runs against."""

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from distop.metastore.etcd.embedded import EtcdProcess, free_port
from support.sources.s3 import S3
from support.sources.servers import served_by

START_S = 60.0


@contextmanager
def on_s3(folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """An empty catalog whose tables lie in an S3 of its own: its address, and variables that lead there."""
    with served_by("s3_main.py") as (endpoint, _):
        store = S3(endpoint)
        store.fs.call_s3("create_bucket", Bucket=store.bucket)
        with coordinator(folder, store.url, store.environment) as url:
            yield url, store.environment


@contextmanager
def coordinator(folder: Path, store: str = "", environment: Mapping[str, str] | None = None) -> Iterator[str]:
    """The address ``http://HOST:PORT`` of an empty catalog; tables lie below ``store``, else ``folder``."""
    store = store or f"file://{folder}"
    address = f"127.0.0.1:{free_port()}"
    distop = str(Path(sys.executable).parent / "distop")
    served = ["--listen", "127.0.0.1:0", "--catalog", address, "--warehouse", f"{store}/warehouse"]
    # The kit names places of its own for some tables.
    served += ["--allow-location", store, "--allow-location", "file:///tmp"]
    folder.mkdir(parents=True)
    with (folder / "coordinator.log").open("wb") as log, EtcdProcess(folder / "etcd") as etcd:
        process = subprocess.Popen(
            [distop, "coordinator", *served],
            env={**os.environ, **(environment or {}), "DISTOP_ETCD": etcd.endpoint},
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
