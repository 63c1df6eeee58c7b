"""Each action in a real browser, once by mouse and once by keyboard, from its button to its effect."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from distop.metastore.backlog.batches import AppliedRecord
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.embedded import EtcdProcess
from distop.metastore.records.names import OperationId
from distop.metastore.records.record import decode, encode
from distop.metastore.tables.schedules import ScheduleRecord
from distop.proto import distop_pb2 as pb
from distop.proto import distop_pb2_grpc
from support.etcd.jobs import mark
from support.services.backlogs import configure, ordering, put, record_of
from support.services.browsing import Web, url
from support.services.chromium import CHROMIUM, Browser, browser
from support.services.coordinators import Service
from support.tables.catalogs import SCHEMA, ids, make_catalog
from support.waiting import eventually

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not there"),
    pytest.mark.slow("does every action in a browser"),
]

SEND, NAME = "form.asked button", "#typed"
MOST_TABS = 300


def by_mouse(page: Browser, selector: str) -> None:
    """Click on the middle of an element."""
    script = """(() => {
        const one = document.querySelector(SELECTOR);
        one.scrollIntoView({block: "center"});
        const box = one.getBoundingClientRect();
        return [box.x + box.width / 2, box.y + box.height / 2];
    })()"""
    box = page.evaluate(script.replace("SELECTOR", repr(selector)))
    for kind in ("mousePressed", "mouseReleased"):
        page.send("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)


def key(page: Browser, name: str, code: int, **more: str) -> None:
    for kind in ("keyDown", "keyUp"):
        sent = {"type": kind, "key": name, "code": name, "windowsVirtualKeyCode": code}
        page.send("Input.dispatchKeyEvent", **sent, **(more if kind == "keyDown" else {}))


def by_keyboard(page: Browser, selector: str) -> None:
    """Tab to an element; then Enter, unless it is to be filled."""
    for _ in range(MOST_TABS):
        if page.evaluate(f"document.activeElement.matches({selector!r})"):
            break
        key(page, "Tab", 9)
    else:
        raise AssertionError(f"no Tab leads to {selector}")
    if selector != NAME:
        key(page, "Enter", 13, text="\r")


HANDS: dict[str, Callable[[Browser, str], None]] = {"mouse": by_mouse, "keyboard": by_keyboard}


@pytest.mark.parametrize("hand", HANDS)
async def test_every_action_by_hand(
    parks_soon: None,
    service: Service,
    client: EtcdClient,
    web: Web,
    etcd: EtcdProcess,
    prefix: str,
    tmp_path: Path,
    hand: str,
) -> None:
    """U1: what a page offers is reached and sent without any script of ours."""
    choose = HANDS[hand]

    def publish() -> int:
        with make_catalog(etcd, prefix, tmp_path) as catalog:
            catalog.create_namespace_if_not_exists("default")
            table = catalog.create_table("default.days", SCHEMA)
            for number in range(2):
                table.append(ids(number, 1))
            return table.metadata.snapshots[0].snapshot_id

    def act(page: Browser, path: str, do: str, item: str, typed: str) -> str:
        """Do it, from the page that offers it; where one is then."""
        offer = f'a.button[href*="do={do}&"][href$="{f"item={item}" if item else ""}"]'
        page.open(f"http://{web.address}{path}")
        with page.leaving():
            choose(page, offer if item else f'a.button[href*="do={do}&"]')
        if typed:
            choose(page, NAME)
            page.send("Input.insertText", text=typed)
        with page.leaving():
            choose(page, SEND)
        where, done = page.evaluate("[location.href, document.querySelector('.done')?.textContent]")
        assert done, (do, page.evaluate("document.body.innerText"))
        return str(where)

    with browser(tmp_path / "profile") as page:

        async def does(path: str, do: str, item: str = "", *, typed: str = "") -> str:
            await asyncio.sleep(0)
            return await asyncio.to_thread(act, page, path, do, item, typed)

        operation = await service.start("t", argument={"partitions": 2})
        here = url("/operation", str(operation))
        for do in ("pause", "resume", "cancel"):
            await does(here, do)
            await web.shows(here, "Resume" if do == "pause" else "noop/1")
        await service.ended(operation)
        for do in ("retry", "abort"):
            log = tmp_path / do
            parked = await service.start("t", "hooked", {"log": str(log), "raises": 2})
            assert await mark(client, OperationId.parse(str(parked)), "0")
            await service.parked(parked)
            await does(url("/operation", str(parked)), do, typed=str(parked) if do == "abort" else "")
            await service.ended(parked)

        table = url("/table", "t")
        await does(table, "pause-table")
        await web.shows(table, "Resume")
        await does(table, "resume-table")

        batches = url("/table/batches", "t")
        await configure(client, validation=True)
        await put(client, "1", kind="letters", letters="a")
        await put(client, "2", kind="letters", letters="!")
        await web.shows(batches, "Approve 1")
        await does(batches, "approve-batch", "1")
        await web.shows(batches, "Retry 2")
        await does(batches, "retry-batch", "2")
        await eventually(lambda: ordering(client), holds=lambda now: now.blocked is not None)
        await web.shows(batches, "Skip 2")
        await does(batches, "skip-batch", "2", typed="2")
        await configure(client, gate="closed")
        await put(client, "3", kind="letters", letters="b")
        await web.shows(batches, "Remove 3")
        await does(batches, "remove-batch", "3", typed="3")
        kept = record_of({"paths": ["/in"]}, "ingest")
        applied = AppliedRecord(outcome="applied", operation="t/ingest/1", digest="d", uid="u", batch=kept)
        await client.put(client.keyspace.table("t").applied("0"), encode(applied))
        await web.shows(batches, "Replace 0")
        await does(batches, "replace-batch", "0")

        schedules = url("/table/schedules", "t")
        stub = distop_pb2_grpc.ScheduleServiceStub(service.channel)
        added = pb.AddScheduleRequest(
            table="t", name="often", type="noop", argument_json='{"partitions": 0}', cron="0 3 * * *"
        )
        await stub.AddSchedule(added, timeout=10)
        await does(schedules, "pause-schedule", "often")
        await web.shows(schedules, "Resume often")
        await does(schedules, "resume-schedule", "often")
        kv = await client.get(client.keyspace.table("t").schedule("often"))
        record = decode(kv.value, ScheduleRecord, kv.key)
        record.last = record.added_at // 86_400 * 86_400 - 75_600.0  # three o'clock, yesterday
        await client.put(kv.key, encode(record))
        await web.shows(schedules, "Run often")
        assert "name=t%2Fnoop%2F2" in await does(schedules, "run-schedule", "often")

        first = await asyncio.to_thread(publish)
        for do in ("compact-table", "expire", "find-orphans", "remove-orphans", "roll-back"):
            of_snapshot = do == "roll-back"
            path = url("/table/snapshots" if of_snapshot else "/table", "days")
            await web.shows(path, f"Roll back {first}" if of_snapshot else "Remove orphans")
            typed = "" if do in ("compact-table", "find-orphans") else "days"
            where = await does(path, do, str(first) if of_snapshot else "", typed=typed)
            name = where.partition("name=")[2].partition("&")[0].replace("%2F", "/")
            if do.endswith("orphans"):  # only an executor could run its job
                await service.cancel(OperationId.parse(name))
            await service.ended(OperationId.parse(name), 30)
