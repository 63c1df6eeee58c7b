"""Catalogs that are forgotten, and catalogs that are taken into a forked process."""

from __future__ import annotations

import asyncio
import gc
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cachetools import FIFOCache

from distop.catalog.catalog import EtcdCatalog
from distop.client import Client
from distop.errors import OutcomeUnknown, PreconditionFailed
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdProcess
from distop.metastore.etcd.sync import SyncEtcd
from support.processes import sockets_of
from support.tables.catalogs import SCHEMA, ids, ids_in, make_catalog
from support.waiting import eventually

FORKING = """
import multiprocessing, sys
from distop.client import Client
from distop.catalog import EtcdCatalog
from distop.errors import Forked

endpoint, prefix = sys.argv[1:]
properties = {"etcd.endpoints": endpoint, "etcd.prefix": prefix}
client = Client("127.0.0.1:1", timeout_s=0.5)

def refused(call):
    try:
        call()
    except Forked:
        return True

def child():
    calls = (
        catalog.list_namespaces,
        lambda: EtcdCatalog("y", **properties).list_namespaces(),
        client.members,
        lambda: Client("127.0.0.1:1").members(),
    )
    ok = all(map(refused, calls))
    catalog.close()
    client.close()
    sys.exit(0 if ok else 3)

for used in (False, True):
    catalog = EtcdCatalog("x", **properties)
    if used:
        catalog.list_namespaces()
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(60)
    hangs = process.is_alive()
    if hangs:
        process.kill()
        process.join()
    print("hangs" if hangs else process.exitcode, catalog.list_namespaces())
"""


def test_a_forked_process_is_told_instead_of_hanging(etcd: EtcdProcess, prefix: str, tmp_path: Path) -> None:
    """U4: whether or not the catalog was used before the fork; and the parent goes on."""
    program = tmp_path / "forking.py"
    program.write_text(FORKING)
    done = subprocess.run(
        [sys.executable, str(program), etcd.endpoint, prefix], capture_output=True, text=True, timeout=200
    )
    assert done.stdout == "0 [('default',)]\n" * 2, done.stderr


@pytest.mark.parametrize("kind", ["catalog", "client"])
async def test_a_catalog_that_nobody_closed_leaves_no_thread_and_no_socket(
    etcd: EtcdProcess, prefix: str, tmp_path: Path, kind: str
) -> None:
    """U4: nobody has closed them."""

    def use_one() -> None:
        if kind == "catalog":
            make_catalog(etcd, prefix, tmp_path).list_namespaces()
        else:
            Client("127.0.0.1:1", timeout_s=0.1)

    def settled() -> tuple[int, int]:
        gc.collect()
        return threading.active_count(), len(sockets_of("self"))

    others = set(threading.enumerate())  # of tests before this one, in this process

    def ours() -> list[threading.Thread]:
        return [one for one in set(threading.enumerate()) - others if one.name.startswith("distop-")]

    gc.freeze()  # what other tests have left is not looked through again and again
    use_one()
    await eventually(lambda: not ours())
    threads, before = settled()
    for _ in range(10):
        use_one()
    await eventually(lambda: settled()[0] <= threads and settled()[1] <= before)


def test_an_open_table_keeps_its_catalog(catalog: EtcdCatalog, etcd: EtcdProcess, prefix: str) -> None:
    """P14: and so can be written to although nobody else knows the catalog any more."""
    table = catalog.create_table("flights", SCHEMA)
    where = {"etcd.endpoints": etcd.endpoint, "etcd.prefix": prefix}
    other = EtcdCatalog("other", **where).load_table("flights")
    gc.collect()
    other.append(ids(0, 3))
    assert table.refresh().scan().to_arrow().num_rows == 3


def test_a_call_that_does_not_end_is_given_up(etcd: EtcdProcess, prefix: str) -> None:
    """U4"""
    config = EtcdConfig(endpoints=(etcd.endpoint,), prefix=prefix, timeout_s=0.05)
    never: Callable[..., object] = lambda _: asyncio.Event().wait()  # noqa: E731
    with SyncEtcd(config) as store, pytest.raises(OutcomeUnknown, match="has not ended"):
        store.run(never)  # type: ignore[arg-type]


def test_a_call_under_way_ends_with_the_connection() -> None:
    """U4: whoever waits for it in another thread is told, and does not wait for an etcd that says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        store = SyncEtcd(EtcdConfig(endpoints=(f"127.0.0.1:{silent.getsockname()[1]}",), timeout_s=60.0))
        with ThreadPoolExecutor(1) as threads:
            call = threads.submit(store.get, b"key")
            with silent.accept()[0]:
                store.close()
            with pytest.raises(OutcomeUnknown, match="closed during the call"):
                call.result(30)


def test_a_closed_catalog_says_so(etcd: EtcdProcess, prefix: str, tmp_path: Path) -> None:
    """U3"""
    catalog = make_catalog(etcd, prefix, tmp_path)
    catalog.close()
    catalog.close()
    with pytest.raises(PreconditionFailed, match="closed"):
        catalog.list_namespaces()


def test_a_table_that_is_forgotten_while_it_is_looked_up_is_no_error(catalog: EtcdCatalog) -> None:
    """Threads share the catalog; above :data:`KEPT` tables each of them makes it forget others."""

    class Full(FIFOCache[str, Any]):
        def __contains__(self, key: object) -> bool:
            if found := super().__contains__(key):
                other = threading.Thread(target=self.forget)
                other.start()
                other.join(0.2)
            return found

        def forget(self) -> None:
            with catalog._remembering:
                self.clear()

    catalog.create_namespace("default")
    table = catalog.create_table("default.t", SCHEMA)
    catalog._recent, catalog._storage = Full(2), Full(2)
    catalog._storage[table.location()] = {}
    catalog.file_io(f"{table.location()}/metadata/x")
    catalog.load_table("default.t").append(ids(0, 1))
    assert ids_in(catalog, "default.t") == [0]
