"""Transactions of DuckDB over two tables, struck while it waits for the answer to its commit.

Where no answer comes, DuckDB 1.5 takes its commit for one that has failed, and removes the files it has
written, also if it has happened: both tables name files then that are gone. So their heads are looked at.
"""

from __future__ import annotations

import http.client
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from distop.commit.catalog.catalog import EtcdCatalog
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdProcess
from support.repository import ROOT
from support.services.rest import rest_door
from support.tables.catalogs import SCHEMA, make_catalog

PYTHON = ROOT / "build/conformance/venv-duckdb/bin/python"

pytestmark = [
    pytest.mark.skipif(
        not (PYTHON.parents[1] / "ready").exists(), reason="DuckDB is not installed: make conformance does it"
    ),
    pytest.mark.process,
    pytest.mark.slow("starts DuckDB twice, and kills it or its coordinator"),
]

PROGRAM = """
import importlib, sys
from pathlib import Path

import duckdb

lake = duckdb.connect()
for extension in ("httpfs", "avro", "iceberg"):
    module = importlib.import_module(f"duckdb_extension_{extension}")
    [file] = Path(module.__path__[0]).rglob("*.duckdb_extension")
    lake.execute(f"LOAD '{file}'")
lake.execute(f"ATTACH '' AS lake (TYPE iceberg, ENDPOINT '{sys.argv[1]}', AUTHORIZATION_TYPE 'none')")
lake.execute("BEGIN")
for table in "ab":
    lake.execute(f"INSERT INTO lake.default.{table} VALUES ({sys.argv[2]}, 'duck')")
lake.execute("COMMIT")
"""
COMMIT = "/transactions/commit"
LIMIT_S = 120


class Between(ThreadingHTTPServer):
    """Hands requests on to a catalog; those of commits to what strikes."""

    def __init__(self, catalog: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handed)
        self.catalog = catalog
        self.strike: Callable[[Callable[[], int]], None] | None = None
        """Gets what hands the commit on, and tells its status. The client gets no answer."""
        self.struck = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handed(BaseHTTPRequestHandler):
    server: Between

    def handle_request(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if self.path.endswith(COMMIT) and self.server.strike is not None:
            self.server.struck += 1
            self.server.strike(lambda: self._asked(body)[0])
            self.close_connection = True
            return
        status, headers, text = self._asked(body)
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in ("date", "server", "content-length"):
                self.send_header(name, value)
        if status != 204:
            self.send_header("content-length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    do_GET = do_HEAD = do_POST = do_DELETE = handle_request  # noqa: N815

    def _asked(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection(self.server.catalog, timeout=60)
        try:
            connection.request(self.command, self.path, body or None, dict(self.headers))
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()

    def log_message(self, *_: object) -> None:
        """Nothing to standard error."""


@contextmanager
def between(catalog: str) -> Iterator[Between]:
    server = Between(catalog)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def begun(url: str, number: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [str(PYTHON), "-c", PROGRAM, url, str(number)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def rows(python: EtcdCatalog) -> list[int]:
    """How many each of the two tables has, as its head says."""
    found = []
    for name in "ab":
        snapshot = python.load_table(f"default.{name}").current_snapshot()
        told = None if snapshot is None or snapshot.summary is None else snapshot.summary["total-records"]
        found.append(int(told or 0))
    return found


@pytest.fixture
def python(etcd: EtcdProcess, prefix: str, tmp_path: Path) -> Iterator[EtcdCatalog]:
    with make_catalog(etcd, prefix, tmp_path) as made:
        for name in "ab":
            made.create_table(f"default.{name}", SCHEMA)
        yield made  # type: ignore[misc]


@pytest.mark.parametrize("dies", [True, False], ids=["it-is-killed", "it-hears-nothing"])
@pytest.mark.parametrize("arrives", [False, True], ids=["before", "after"])
def test_two_tables_have_changed_or_none_whatever_becomes_of_the_commit(
    etcd_config: EtcdConfig, python: EtcdCatalog, tmp_path: Path, arrives: bool, dies: bool
) -> None:
    """E2, P8: DuckDB is killed, or its connection breaks, before its commit arrives or before it hears of it.
    Both tables can be written then."""
    answers: list[int] = []
    duck: list[subprocess.Popen[bytes]] = []
    ready = threading.Event()

    def strike(hand_on: Callable[[], int]) -> None:
        if arrives:
            answers.append(hand_on())
        if dies and ready.wait(LIMIT_S):
            duck[0].kill()

    with rest_door(etcd_config, tmp_path) as door, between(door.address) as middle:
        middle.strike = strike
        duck.append(begun(middle.url, 1))
        ready.set()
        said, _ = duck[0].communicate(timeout=LIMIT_S)
        assert duck[0].returncode == (-9 if dies else 1), said.decode()
        assert middle.struck
        assert (204 in answers) == arrives
        assert rows(python) == [int(arrives)] * 2
        middle.strike = None
        after = begun(middle.url, 2)
        said, _ = after.communicate(timeout=LIMIT_S)
        assert after.returncode == 0, said.decode()
        assert rows(python) == [int(arrives) + 1] * 2
        if dies:
            tables = [python.load_table(f"default.{name}") for name in "ab"]
            assert [table.scan().to_arrow().num_rows for table in tables] == rows(python)
