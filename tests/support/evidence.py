"""What a failed test leaves for those who examine it: a lost row seldom shows itself a second time.

Kept in a folder of its own below ``artifacts/failures``: what pytest reports of it (with the seed and the
parameters), the ends of all logs in the test's folder, and the keys of each etcd that its fixtures know, as
``etcdctl get`` prints them.
"""

import re
import subprocess
from collections.abc import Collection, Iterator
from itertools import islice
from pathlib import Path

import pytest

from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdNotFound, EtcdProcess, find_etcdctl

FAILURES = Path("artifacts", "failures")
MOST_FAILURES = 30
"""A run in which more tests fail has one cause, and it does not hide."""
MOST_LOGS = 30
LOG_BYTES = 1024 * 1024
"""Of the end of each log."""
ETCD_PATIENCE_S = 5

_LOGS = ("*.log", "*.jsonl", "*.err", "*.out")


def keep(item: pytest.Item, report: pytest.TestReport, failures: Path) -> Path | None:
    """To be called while the test's fixtures are still there. Returns its folder below ``failures``; None if
    so many are there that one more would say nothing new."""
    folder = failures / re.sub(r"[^\w.-]+", "-", item.nodeid.removeprefix("tests/"))[-180:]
    if not folder.exists() and failures.exists() and len(list(failures.iterdir())) >= MOST_FAILURES:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    parts = [item.nodeid, report.longreprtext, *(f"---- {name}\n{text}" for name, text in report.sections)]
    (folder / f"{report.when}.txt").write_text("\n\n".join(parts), errors="backslashreplace")
    fixtures = getattr(item, "funcargs", {})
    if isinstance(of_test := fixtures.get("tmp_path"), Path):
        for number, log in enumerate(islice(_logs(of_test), MOST_LOGS)):
            (folder / f"{number:02d}-{log.name}").write_bytes(_end(log))
    for number, (endpoint, prefix) in enumerate(sorted(_etcds(fixtures.values()))):
        (folder / f"keys-{number}.txt").write_bytes(_keys(endpoint, prefix))
    return folder


def _logs(folder: Path) -> Iterator[Path]:
    for pattern in _LOGS:
        yield from sorted(path for path in folder.rglob(pattern) if path.is_file())


def _end(log: Path) -> bytes:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - LOG_BYTES))
            return file.read(LOG_BYTES)
    except OSError as error:  # the test's processes are still at work
        return str(error).encode()


def _etcds(values: Collection[object]) -> set[tuple[str, str]]:
    """The endpoint of each etcd, and the prefix of the keys there that are the test's."""
    configured = {(config.endpoints[0], config.prefix) for config in values if isinstance(config, EtcdConfig)}
    known = {endpoint for endpoint, _ in configured}
    started = {process.endpoint for process in values if isinstance(process, EtcdProcess)}
    return configured | {(endpoint, "") for endpoint in started - known}


def _keys(endpoint: str, prefix: str) -> bytes:
    try:
        command = [str(find_etcdctl()), "--endpoints", endpoint, "get", "--prefix", prefix]
        return subprocess.run(
            command, capture_output=True, timeout=ETCD_PATIENCE_S, check=False, env={"ETCDCTL_API": "3"}
        ).stdout
    except (EtcdNotFound, OSError, subprocess.TimeoutExpired) as error:
        return str(error).encode()
