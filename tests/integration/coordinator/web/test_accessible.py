"""Everybody can read every page: axe finds no serious fault, in light, in dark, and on a narrow screen."""

import asyncio
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from distop.coordinator.web.requests import CALLS
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.embedded import EtcdProcess
from distop.metastore.members.lease import LeaseSession
from distop.metastore.operations.jobs import count_try
from distop.metastore.operations.runs import take_operation
from distop.metastore.records.operation import RunnerRecord
from distop.proto import distop_pb2 as pb
from support.etcd.jobs import mark, mark_all
from support.services.backlogs import configure, put
from support.services.browsing import Web, url
from support.services.chromium import CHROMIUM, NARROW, WIDE, browser
from support.services.coordinators import Service
from support.tables.catalogs import SCHEMA, ids, make_catalog

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not there"),
    pytest.mark.slow("looks at each page three times in a browser"),
]

LOOKS = (("light", WIDE, False), ("dark", WIDE, True), ("narrow", NARROW, False))

FIND = """axe.run().then(found => found.violations
    .filter(fault => ["serious", "critical"].includes(fault.impact))
    .map(fault => [fault.id, fault.nodes.length, fault.nodes[0].html.slice(0, 200)]))"""


def faults_of(address: str, paths: Sequence[str], folder: Path) -> list[tuple[Any, ...]]:
    """What axe finds, and pages that are wider than the window."""
    axe = (files("axe_core_python") / "axe.min.js").read_text(encoding="utf-8")
    faults: list[tuple[Any, ...]] = []
    with browser(folder) as page:
        page.send("Page.setBypassCSP", enabled=True)  # axe is no script of the page
        for look, width, dark in LOOKS:
            for path in paths:
                page.open(f"http://{address}{path}", width=width, dark=dark)
                page.evaluate(axe)
                faults += [(look, path, *fault) for fault in page.evaluate(FIND)]
                if (needed := page.evaluate("document.documentElement.scrollWidth")) > width:
                    faults.append((look, path, f"is {needed} pixels wide"))
    return faults


def publish(etcd: EtcdProcess, prefix: str, folder: Path) -> None:
    """A table with some snapshots and a branch."""
    with make_catalog(etcd, prefix, folder) as catalog:
        catalog.create_namespace_if_not_exists("default")
        table = catalog.create_table("default.days", SCHEMA)
        for number in range(4):
            table.append(ids(number, 1))
        table.manage_snapshots().create_branch(table.metadata.snapshots[1].snapshot_id, "audit").commit()


@pytest.mark.timeout(240)
async def test_no_page_has_a_serious_fault(
    etcd: EtcdProcess, prefix: str, service: Service, client: EtcdClient, web: Web, tmp_path: Path
) -> None:
    """U1: with tables, batches, and operations under way, failed and over."""
    await asyncio.to_thread(publish, etcd, prefix, tmp_path)
    for day in ("2024-01-30", "2024-02-01"):
        await put(client, day)
    await web.shows(url("/table/batches", "t"), "2024-02-01: applied", "No batch waits")
    await configure(client, gate="closed")
    await put(client, "2024-02-02")
    options = pb.OperationOptions(max_failed_partitions=-1)
    await service.create_table("u")
    over, live = [
        await service.start(table, "noop", {"partitions": 40}, options=options, started_by="ana")
        for table in ("u", "days")
    ]
    async with LeaseSession(client, 60) as session:
        for operation in (over, live):
            keys = client.keyspace.operation(operation)
            runner = RunnerRecord(member="e1", started_at=1.0)
            taken = await take_operation(client, keys, runner, session.lease_id)
            assert taken is not None
            await count_try(client, taken.run, "0", "a0", "IO: first")
            await mark(client, operation, "1", error="line 7")
            await mark_all(client, operation, ("0", *map(str, range(2, 30))))
        await service.operations.CancelOperation(pb.CancelOperationRequest(name=str(over)))
        await service.ended(over)
        alone = [path for path in CALLS if path.split("/")[1] not in ("api", "metrics", "operation", "table")]
        paths = [*(path for path in alone if path != "/search"), "/search?q=day", "/sign-in"]
        of_operation = [path for path in CALLS if path.split("/")[1] == "operation"]
        of_table = [path for path in CALLS if path.split("/")[1] == "table"]
        paths += [url(path, str(operation)) for path in of_operation for operation in (over, live)]
        paths += [url(path, table) for path in of_table for table in ("days", "t")]
        paths += [url("/action", str(live)) + "&do=cancel", url("/action", "days") + "&do=remove-orphans"]
        paths += ["/no-such-page", url("/table", "nowhere")]
        faults = await asyncio.to_thread(faults_of, web.address, paths, tmp_path / "profile")
    assert not faults, "\n".join(map(str, faults))
