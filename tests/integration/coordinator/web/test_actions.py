"""What is done from the page, over HTTP: asked back, once, by those who may, on what was looked at."""

import asyncio
import re
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import pytest_asyncio

from distop.client import AsyncClient, Credentials, Grant, OperationState
from distop.coordinator.access.authentication import IdentityConfig
from distop.metastore.backlog.batches import AppliedRecord, BatchRecord
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdProcess
from distop.metastore.records.names import OperationId
from distop.metastore.records.record import decode, encode
from distop.metastore.tables.schedules import ScheduleRecord
from support.etcd.jobs import mark
from support.services.coordinators import config_of, running
from support.services.tokens import token_file, token_of
from support.tables.catalogs import SCHEMA, ids, make_catalog
from support.tables.nowhere import nowhere
from support.waiting import eventually

SUBJECTS = ("root", "olga", "rita")
"""An admin; an operator and a reader of the table ``t``."""

_FIELD = re.compile(r'<input type="hidden" name="(\w+)" value="([^"]*)">')
_OFFER = re.compile(r'href="(/action\?[^"]*)"')


class Reader(httpx.AsyncClient):
    """A browser without scripts, signed in."""

    async def offers(self, path: str, **query: str) -> set[str]:
        """The kinds of actions that a page offers."""
        page = await self.get(path, params=query)
        assert page.status_code == 200, page.text
        found = map(unescape, _OFFER.findall(page.text))
        return {httpx.URL(address).params["do"] for address in found}

    async def form(self, do: str, name: str, item: str = "") -> dict[str, str]:
        """The fields of the form that asks back."""
        page = await self.get("/action", params={"do": do, "name": name, "item": item})
        assert page.status_code == 200, page.text
        return {field: unescape(value) for field, value in _FIELD.findall(page.text)}

    async def sends(self, form: dict[str, str], **headers: str) -> httpx.Response:
        return await self.post("/action", data=form, headers=headers)

    async def does(self, do: str, name: str, item: str = "", **fields: str) -> str:
        """Open the form, send it; the address of where its effect is seen, which says that it is done."""
        sent = await self.sends(await self.form(do, name, item) | fields)
        assert sent.status_code == 303, sent.text
        assert f"done={do}" in sent.headers["location"]
        shown = await self.get(sent.headers["location"])
        assert '<p class="done" role="status">' in shown.text
        return sent.headers["location"]


@dataclass
class Place:
    """A coordinator with a page, and who comes to it."""

    root: Reader
    olga: Reader
    rita: Reader
    client: AsyncClient


@pytest_asyncio.fixture
async def place(etcd_config: EtcdConfig, tmp_path: Path, parks_soon: None) -> AsyncIterator[Place]:
    identity = IdentityConfig(admins=("root",), token_file=token_file(tmp_path, SUBJECTS))
    async with running(config_of(etcd_config, identity=identity, web="127.0.0.1:0")) as coordinator:
        credentials = Credentials(token=token_of("root"))
        async with AsyncClient(coordinator.address, credentials=credentials) as client:
            await client.create_table("t", nowhere())
            grants = [Grant(who="olga", role="operator", tables=("t",))]
            await client.change_grants([*grants, Grant(who="rita", role="reader", tables=("t",))])
            readers = root, olga, rita = [
                Reader(base_url=f"http://{coordinator.web_address}", timeout=60) for _ in SUBJECTS
            ]
            for subject, reader in zip(SUBJECTS, readers, strict=True):
                await reader.post("/sign-in", data={"token": token_of(subject)})
            yield Place(root, olga, rita, client)
            for reader in readers:
                await reader.aclose()


async def started(place: Place, **argument: Any) -> str:
    return (await place.client.start("t", "noop", argument or {"partitions": 2})).name


async def parked(place: Place, client: EtcdClient, folder: Path, raises: int) -> str:
    argument = {"log": str(folder / "log"), "raises": raises}
    handle = await place.client.start("t", "hooked", argument)
    assert await mark(client, OperationId.parse(handle.name), "0")
    await eventually(handle.get, holds=lambda seen: seen.parked)
    return handle.name


async def test_an_operation_is_paused_resumed_and_cancelled(place: Place) -> None:
    """U1: each is offered as long as it can be done, and its effect is seen where one is led."""
    name = await started(place)
    operation = place.client.operation(name)
    assert await place.olga.offers("/operation", name=name) == {"pause", "cancel"}
    await place.olga.does("pause", name, reason="lunch")
    pause = (await operation.get()).pause
    assert pause is not None
    assert (pause.by, pause.reason) == ("olga", "lunch")
    assert await place.olga.offers("/operation", name=name, done="pause") == {"resume", "cancel"}
    await place.olga.does("resume", name)
    assert (await operation.get()).pause is None
    await place.olga.does("cancel", name)
    assert (await operation.wait(30)).state is OperationState.CANCELLED
    assert not await place.root.offers("/operation", name=name, done="cancel")
    entries = [entry async for entry in place.client.audit("t")]
    assert [(entry.action, entry.by) for entry in entries][:3] == [
        ("cancel", "olga"),
        ("resume", "olga"),
        ("pause", "olga"),
    ]


@pytest.mark.parametrize(("do", "state"), [("retry", "succeeded"), ("abort", "failed")])
async def test_a_parked_operation_is_red_and_ends_as_one_decides(
    place: Place, client: EtcdClient, tmp_path: Path, do: str, state: str
) -> None:
    """O18, U1"""
    name = await parked(place, client, tmp_path, raises=2)
    page = (await place.root.get("/operation", params={"name": name})).text
    assert '<span class="badge parked">parked</span>' in page
    assert '<div class="bar amiss">' in page
    assert "<strong>CRASHED</strong>: RuntimeError: not yet (it waits for a decision)" in page
    assert await place.root.offers("/operation", name=name) == {"retry", "abort"}
    assert await place.olga.offers("/operation", name=name) == set()
    await place.root.does(do, name, typed=name)
    assert (await place.client.operation(name).wait(30)).state.value == state


async def test_a_table_is_paused_and_resumed(place: Place) -> None:
    assert await place.olga.offers("/table", name="t") == {"pause-table"}
    await place.olga.does("pause-table", "t")
    assert (await place.client.table("t").get()).pause is not None
    await place.olga.does("resume-table", "t")
    assert (await place.client.table("t").get()).pause is None


async def test_a_table_is_looked_after_and_rolled_back(
    place: Place, etcd: EtcdProcess, prefix: str, tmp_path: Path
) -> None:
    """U1: what is removed or rolled back wants the table's name."""

    def publish() -> list[int]:
        with make_catalog(etcd, prefix, tmp_path) as catalog:
            catalog.create_namespace_if_not_exists("default")
            table = catalog.create_table("default.days", SCHEMA)
            for number in range(2):
                table.append(ids(number, 1))
            return [one.snapshot_id for one in table.metadata.snapshots]

    first, _ = await asyncio.to_thread(publish)
    root, upkeep = place.root, {"compact-table", "expire", "find-orphans", "remove-orphans"}
    assert await root.offers("/table", name="days") == {"pause-table", *upkeep}
    assert await root.offers("/table/snapshots", name="days") == {"pause-table", *upkeep, "roll-back"}
    for do, item in [*((do, "") for do in sorted(upkeep)), ("roll-back", str(first))]:
        form = await root.form(do, "days", item)
        if do not in ("compact-table", "find-orphans"):
            refused = await root.sends(form | {"typed": "day"})
            assert (refused.status_code, "type the name" in refused.text) == (400, True)
        effect = await root.does(do, "days", item, typed="days")
        operation = place.client.operation(httpx.URL(effect).params["name"])
        if do.endswith("orphans"):  # only an executor could run its job
            await operation.cancel()
        await operation.wait(30)
    assert (await place.client.table("days").get()).snapshot_id == first


async def test_batches_are_decided_about(place: Place, client: EtcdClient) -> None:
    """B7, B8: as their states allow."""
    table, keys = place.client.table("t"), client.keyspace.table("t")

    async def offered(*expected: str, to: Reader = place.root) -> None:
        # What a page was made of may be shown again for some time.
        await eventually(
            lambda: to.offers("/table/batches", name="t"),
            holds=lambda found: found - {"pause-table", "open-gate", "close-gate"} == set(expected),
        )

    await table.set_ordering(validation=True)
    await table.enqueue("1", "letters", {"letters": "a"})
    await table.enqueue("2", "letters", {"letters": "!"})
    await offered("approve-batch", "remove-batch")
    await place.olga.does("approve-batch", "t", "1")
    await offered("retry-batch", "skip-batch", "remove-batch")
    await offered("retry-batch", to=place.olga)
    await place.olga.does("retry-batch", "t", "2")
    await eventually(table.ordering, holds=lambda ordering: ordering.blocked is not None)
    await place.root.does("skip-batch", "t", "2", typed="2")
    assert (await table.batch("2")).state == "skipped"
    await table.set_ordering(gate="closed")
    await table.enqueue("3", "letters", {"letters": "b"})
    await place.root.does("remove-batch", "t", "3", typed="3")
    assert [batch async for batch in table.backlog()] == []
    kept = BatchRecord(type="ingest", argument={"paths": ["/in"]}, digest="d", uid="u")
    applied = AppliedRecord(outcome="applied", operation="t/ingest/1", digest="d", uid="u", batch=kept)
    await client.put(keys.applied("0"), encode(applied))
    await offered("replace-batch")
    await place.olga.does("replace-batch", "t", "0")
    queued = await table.batch("0")
    assert (queued.state, queued.queued_by, queued.argument["replaces"]) == ("waiting", "olga", "t/ingest/1")


async def test_the_gate_is_closed_and_opened(place: Place) -> None:
    """B6, U1"""
    table = place.client.table("t")
    assert await place.rita.offers("/table/batches", name="t") == set()
    assert await place.olga.offers("/table/batches", name="t") == {"pause-table", "close-gate"}
    await place.olga.does("close-gate", "t")
    await table.enqueue("1", "letters", {"letters": "a"})
    assert ((await table.ordering()).gate, (await table.batch("1")).state) == ("closed", "waiting")
    await place.olga.does("open-gate", "t", reason="all are there")
    await eventually(lambda: table.batch("1"), holds=lambda batch: batch.state == "applied")


async def test_a_schedule_is_paused_resumed_and_run(place: Place, client: EtcdClient) -> None:
    table = place.client.table("t")
    await table.add_schedule("often", "noop", {"partitions": 0}, cron="* * * * *")
    assert await place.olga.offers("/table/schedules", name="t") == {"pause-table", "pause-schedule"}
    await place.olga.does("pause-schedule", "t", "often")
    assert (await table.schedules())[0].pause is not None
    await place.olga.does("resume-schedule", "t", "often")
    assert (await table.schedules())[0].pause is None
    keys = client.keyspace.table("t")
    kv = await client.get(keys.schedule("often"))
    ticked = msgspec.structs.replace(decode(kv.value, ScheduleRecord, kv.key), last=time.time() // 60 * 60)
    await client.put(kv.key, encode(ticked))
    effect = await place.olga.does("run-schedule", "t", "often")
    assert httpx.URL(effect).params["name"].startswith("t/noop/")


async def test_a_reader_is_offered_no_action_and_can_send_none(place: Place) -> None:
    """S3: a reader is offered nothing, can open no form and send none; the audit trail has it."""
    name = await started(place)
    assert await place.rita.offers("/operation", name=name) == set()
    assert await place.rita.offers("/table", name="t") == set()
    opened = await place.rita.get("/action", params={"do": "cancel", "name": name})
    assert (opened.status_code, "PERMISSION_DENIED" in opened.text) == (403, True)
    form = await place.olga.form("cancel", name)
    await place.client.change_grants(
        [Grant(who="olga", role="reader", tables=("t",))], remove=[Grant(who="olga", role="operator")]
    )
    sent = await eventually(lambda: place.olga.sends(form), holds=lambda answer: answer.status_code == 403)
    assert "PERMISSION_DENIED" in sent.text
    outside = Reader(base_url=place.olga.base_url)
    assert (await outside.sends(form)).headers["location"] == "/sign-in"
    await outside.aclose()
    assert (await place.client.operation(name).get()).state is OperationState.RUNNING
    denials = [entry async for entry in place.client.audit() if entry.outcome == "denied"]
    assert {("CancelOperation", "rita"), ("CancelOperation", "olga")} <= {
        (entry.action, entry.by) for entry in denials
    }


async def test_a_form_that_was_not_shown_to_its_sender_does_nothing(place: Place) -> None:
    """S5: without the token, with another's, from another site, or by a mere address."""
    name = await started(place)
    form = await place.olga.form("cancel", name)
    other = await place.root.form("cancel", name)
    for forged in ({"form": ""}, {"form": other["form"]}, other, {"call_id": other["call_id"]}):
        refused = await place.olga.sends(form | forged)
        assert (refused.status_code, "was not shown to you" in refused.text) == (400, True)
    for foreign in (
        {"origin": "https://elsewhere.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ):
        refused = await place.olga.sends(form, **foreign)
        assert (refused.status_code, "from another site" in refused.text) == (400, True)
    assert (await place.olga.get("/action", params=form)).status_code == 200
    seen = await place.client.operation(name).get()
    assert not seen.cancel_requested
    here = {"origin": f"http://{place.olga.base_url.netloc.decode()}", "sec-fetch-site": "same-origin"}
    assert (await place.olga.sends(form, **here)).status_code == 303


async def test_a_form_that_is_sent_again_does_nothing_more(place: Place) -> None:
    """S5: a double click, a reload, a lost reply; also if somebody has undone it since."""
    name = await started(place)
    form = await place.olga.form("pause", name)
    sent = await asyncio.gather(*(place.olga.sends(form) for _ in range(3)))
    assert {(answer.status_code, answer.headers["location"]) for answer in sent} == {
        (303, sent[0].headers["location"])
    }
    operation = place.client.operation(name)
    await operation.resume()
    assert (await place.olga.sends(form)).status_code == 303
    assert (await operation.get()).pause is None
    actions = [entry.action async for entry in place.client.audit("t")]
    assert actions.count("pause") == 1


async def test_a_form_that_was_open_too_long_is_refused_in_words(place: Place) -> None:
    """S5: it was decided on what is no longer so, or on another object of that name."""
    name = await started(place)
    cancel, pause = await place.olga.form("cancel", name), await place.olga.form("pause-table", "t")
    await place.client.operation(name).pause()
    refused = await place.olga.sends(cancel)
    assert refused.status_code == 412
    assert "it was running, and is running, paused" in refused.text
    await place.client.operation(name).cancel()
    await place.client.operation(name).wait(30)
    over = await place.olga.sends(cancel)
    assert (over.status_code, "is cancelled" in over.text) == (412, True)
    await place.client.table("t").drop()
    await place.client.create_table("t", nowhere())
    another = await place.olga.sends(pause)
    assert (another.status_code, "is another one by now" in another.text) == (412, True)
    unknown = await place.olga.get("/action", params={"do": "explode", "name": "t"})
    assert (unknown.status_code, "is no action" in unknown.text) == (400, True)


async def test_without_authentication_forms_are_bound_to_a_cookie(etcd_config: EtcdConfig) -> None:
    """S5"""
    async with (
        running(config_of(etcd_config, web="127.0.0.1:0")) as coordinator,
        AsyncClient(coordinator.address) as client,
        Reader(base_url=f"http://{coordinator.web_address}") as reader,
        Reader(base_url=f"http://{coordinator.web_address}") as other,
    ):
        await client.create_table("t", nowhere())
        form = await reader.form("pause-table", "t")
        opened = await other.get("/action", params={"do": "pause-table", "name": "t"})
        assert "samesite=strict" in opened.headers["set-cookie"].lower()
        assert (await other.sends(form)).status_code == 400
        assert (await reader.sends(form)).status_code == 303
        pause = (await client.table("t").get()).pause
        assert pause is not None
        assert pause.by == "page"


async def test_sessions_and_forms_are_of_all_coordinators(etcd_config: EtcdConfig, tmp_path: Path) -> None:
    """S5, U5: several behind one address need not be the same one each time."""
    identity = IdentityConfig(admins=("root",), token_file=token_file(tmp_path, SUBJECTS))
    config = config_of(etcd_config, identity=identity, web="127.0.0.1:0")
    async with (
        running(config) as first,
        running(config) as second,
        AsyncClient(first.address, credentials=Credentials(token=token_of("root"))) as client,
        Reader(base_url=f"http://{first.web_address}") as here,
        Reader(base_url=f"http://{second.web_address}") as there,
    ):
        await client.create_table("t", nowhere())
        await here.post("/sign-in", data={"token": token_of("root")})
        there.cookies.update(here.cookies)
        form, table = await here.form("pause-table", "t"), client.table("t")
        assert (await there.sends(form)).status_code == 303
        await table.resume()
        assert (await here.sends(form)).status_code == 303, "it has been done, and where is said"
        assert (await table.get()).pause is None
        await there.post("/sign-out")

        async def is_outside() -> bool:
            return bool((await here.get("/")).headers.get("location") == "/sign-in")

        await eventually(is_outside)
