"""Landing folders: what is dropped there is applied in order, and control files mean what they say."""

import asyncio
import functools
import json
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
import pytest_asyncio
from fsspec.implementations.local import LocalFileSystem
from msgspec.structs import replace

from distop.client import AsyncClient, Client, Operation, OperationState
from distop.landing.folder import Landing, LandingReport, Landings
from distop.metastore.backlog.batches import DONE, AppliedRecord
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.operations.retention import forget_batches
from distop.metastore.records.record import decode, encode
from distop.metastore.records.table import decode_watermarks
from support.services.coordinators import config_of, running
from support.services.executing import runner
from support.services.whole import Whole, coordinated, write_csv
from support.sources.s3 import S3
from support.tables.nowhere import nowhere
from support.waiting import eventually

T = TypeVar("T")


async def blocking(call: Callable[..., T], *args: Any, **more: Any) -> T:
    return await asyncio.get_running_loop().run_in_executor(None, functools.partial(call, *args, **more))


class Dock:
    """A folder, the table that it feeds, and somebody who drops batches."""

    def __init__(self, folder: Path, sdk: AsyncClient, client: Client) -> None:
        self.folder, self.sdk, self.client = folder, sdk, client
        self.landing = self.fresh()

    def fresh(self) -> Landing:
        """A process that knows nothing of what the others have done."""
        return Landing(self.client, "t", str(self.folder), type="noop")

    async def look(self, landing: Landing | None = None) -> LandingReport:
        return await blocking((landing or self.landing).poll)

    def drop(self, name: str, *, success: bool = True, **files: str) -> None:
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            (folder / file).write_text(text)
        if success:
            (folder / "_SUCCESS").touch()

    def control(self, name: str, text: str = "") -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    async def waiting(self) -> list[str]:
        return [batch.name async for batch in self.sdk.table("t").backlog()]

    async def has_failed(self) -> bool:
        return bool((await self.sdk.table("t").ordering()).failed)

    async def has_applied(self, operations: dict[str, str]) -> bool:
        """Whether these unordered batches were applied, by these operations."""
        listed = self.sdk.table("t").backlog(applied=True, ordered=False)
        return {batch.name: batch.operation async for batch in listed} == operations

    async def arguments(self) -> dict[str, dict[str, Any]]:
        return {batch.name: batch.argument async for batch in self.sdk.table("t").backlog()}


@pytest_asyncio.fixture
async def dock(etcd_config: EtcdConfig, tmp_path: Path) -> AsyncIterator[Dock]:
    async with running(config_of(etcd_config)) as coordinator, AsyncClient(coordinator.address) as sdk:
        await sdk.create_table("t", nowhere())
        await sdk.table("t").set_ordering(gate="closed")
        client = Client(coordinator.address)
        folder = tmp_path / "landing"
        folder.mkdir()
        try:
            yield Dock(folder, sdk, client)
        finally:
            await blocking(client.close)


async def test_complete_batches_are_published_once_whoever_looks(dock: Dock) -> None:
    """B12, B1: one without _SUCCESS is not there yet; another process finds the same."""
    dock.control("_config/ORDERME")
    dock.drop("2024/02", data="x")
    dock.drop("2024/01", data="x")
    dock.drop("2024/03", success=False, data="x")
    assert (await dock.look()).published == ["2024/01", "2024/02"]
    assert (await dock.look()).published == []
    again = await dock.look(dock.fresh())
    assert (again.published, again.known) == ([], ["2024/01", "2024/02"])
    assert await dock.waiting() == ["2024/01", "2024/02"]
    dock.drop("2024/03")
    assert (await dock.look()).published == ["2024/03"]
    assert (await dock.arguments())["2024/03"]["paths"] == [str(dock.folder / "2024/03")]


async def test_batches_that_a_table_has_forgotten_are_passed_over(dock: Dock, client: EtcdClient) -> None:
    """B1: a process that starts anew does not stop the table with batches that were applied long ago."""
    await client.put(client.keyspace.table("t").ordering, b'{"last":"5","forgotten":"3"}')
    dock.control("_config/ORDERME")
    for name in ("1", "3", "7"):
        dock.drop(name, data="x")
    report = await dock.look(dock.fresh())
    assert (report.passed_over, report.published) == (["1", "3"], ["7"])


async def test_what_a_table_has_forgotten_without_an_order_is_not_published_anew(
    dock: Dock, client: EtcdClient
) -> None:
    """B1, B13: a process that starts anew says what may have been applied, and goes on with the others."""

    def fresh() -> Landing:
        return Landing(dock.client, "t", str(dock.folder), type="friend")

    async def has_ended(count: int) -> bool:
        listed = dock.sdk.table("t").backlog(applied=True, ordered=False)
        return len([batch async for batch in listed]) == count

    dock.control("_config/none.json", '{"partitions": 0}')
    await dock.sdk.table("t").set_ordering(remember=2)
    for number, name in enumerate("abc", 1):
        dock.drop(name, data="x")
        assert (await dock.look(fresh())).published == [name]
        assert await eventually(functools.partial(has_ended, number))
    assert await forget_batches(client, client.keyspace.table("t")) == 1
    dock.drop("d", data="x")
    report = await dock.look(fresh())
    assert (report.published, report.known) == (["d"], ["b", "c"])
    assert "1 batches without an order may have been applied before, such as 'a'" in report.problems[""]
    dock.drop("a")
    assert (await dock.look(fresh())).published == ["a"]


async def test_the_nearest_configuration_wins(dock: Dock) -> None:
    """B12: objects are merged into each other."""
    dock.control("_config/ORDERME")
    dock.control("_config/base.json", '{"format": "csv", "csv": {"header": true, "delimiter": ","}}')
    dock.control("a/_config/more.json", '{"csv": {"delimiter": ";"}, "mode": "append"}')
    dock.drop("a/1", data="x")
    dock.drop("b/1", data="x")
    await dock.look()
    arguments = await dock.arguments()
    paths = {name: argument.pop("paths") for name, argument in arguments.items()}
    assert len(paths) == 2
    assert arguments["b/1"] == {"format": "csv", "csv": {"header": True, "delimiter": ","}}
    assert arguments["a/1"] == {"format": "csv", "csv": {"header": True, "delimiter": ";"}, "mode": "append"}


async def test_history_done_opens_a_gate_once(dock: Dock) -> None:
    """B12, B6: a gate that was closed again stays closed when the folder is polled; a new file opens it."""
    assert (await dock.look()).controls == []
    assert (await dock.sdk.table("t").ordering()).gate == "closed"
    dock.control("_HISTORYDONE")
    assert (await dock.look()).controls == ["_HISTORYDONE"]
    assert (await dock.sdk.table("t").ordering()).gate == "open"
    await dock.sdk.table("t").set_ordering(gate="closed")
    assert (await dock.look(dock.fresh())).controls == []
    assert (await dock.sdk.table("t").ordering()).gate == "closed"
    written_later = (dock.folder / "_HISTORYDONE").stat().st_mtime + 5
    os.utime(dock.folder / "_HISTORYDONE", (written_later, written_later))
    assert (await dock.look(dock.fresh())).controls == ["_HISTORYDONE"]
    assert (await dock.sdk.table("t").ordering()).gate == "open"


async def awaiting(dock: Dock, batch: str) -> bool:
    return (await dock.sdk.table("t").ordering()).awaiting == batch


async def validated(dock: Dock) -> None:
    """Somebody looks at each of three batches."""
    await dock.sdk.table("t").set_ordering(gate="open", validation=True)
    for name in ("a", "b", "c"):
        await dock.sdk.table("t").enqueue(name, "noop", {"partitions": 0})
    assert await eventually(lambda: awaiting(dock, "a"))


async def test_backfill_approves_the_batch_it_names_and_no_other(dock: Dock) -> None:
    """B12, B7: also when it has to be repeated."""
    await validated(dock)
    dock.control("_BACKFILL", "z")
    report = await dock.look()
    assert "batch 'a' waits for approval, not 'z'" in report.problems["_BACKFILL"]
    assert not (dock.folder / "_BACKFILL").exists()
    dock.control("_BACKFILL")
    assert (await dock.look()).controls == ["_BACKFILL"]
    assert not (dock.folder / "_BACKFILL").exists()
    assert await eventually(lambda: awaiting(dock, "b"))
    # A process that died after the approval of "a" left the file with the name in it: it is in nobody's way.
    dock.control("_BACKFILL", "a")
    assert "batch 'b' waits for approval, not 'a'" in (await dock.look()).problems["_BACKFILL"]
    assert await awaiting(dock, "b")
    (dock.folder / "_BACKFILL").touch()
    assert (await dock.look()).controls == ["_BACKFILL"]
    assert await eventually(lambda: awaiting(dock, "c"))


async def test_an_empty_backfill_on_s3_approves_a_batch_that_waits(dock: Dock, s3_in_environment: S3) -> None:
    """B12, B7: S3 refuses to read a range of an empty object."""
    s3 = s3_in_environment
    await validated(dock)
    s3.fs.pipe(f"{s3.bucket}/t/_BACKFILL", b"")
    report = await dock.look(Landing(dock.client, "t", f"{s3.url}/t", type="noop"))
    assert (report.controls, report.problems) == (["_BACKFILL"], {})
    assert s3.names() == []
    assert await eventually(lambda: awaiting(dock, "b"))


async def test_a_backfill_with_nothing_to_approve_is_taken_away(dock: Dock) -> None:
    """B12, B7: left there it would approve a batch that nobody has seen."""
    dock.control("_BACKFILL")
    assert "nothing waits for approval" in (await dock.look()).problems["_BACKFILL"]
    assert not (dock.folder / "_BACKFILL").exists()
    await validated(dock)
    assert (await dock.look()).controls == []
    assert await awaiting(dock, "a")


async def test_a_process_that_slept_approves_nothing_that_it_has_not_seen(dock: Dock) -> None:
    """B12, B7: it read an empty _BACKFILL, and another process has obeyed it meanwhile."""
    await validated(dock)
    dock.control("_BACKFILL")
    slow = dock.fresh()
    read, others = slow._fs.cat_file, dock.landing

    def late(path: str, start: int = 0, end: int = 0) -> bytes:
        slow._fs.__dict__.pop("cat_file")
        assert others.poll().controls == ["_BACKFILL"]
        deadline = time.monotonic() + 30
        while dock.client.table("t").ordering().awaiting != "b" and time.monotonic() < deadline:
            threading.Event().wait(0.05)
        (dock.folder / "_BACKFILL").touch()
        return read(path, start, end)

    slow._fs.__dict__["cat_file"] = late
    await dock.look(slow)
    assert await awaiting(dock, "b")


async def test_a_problem_of_one_folder_is_reported_and_holds_up_no_other(dock: Dock) -> None:
    """B12, U3."""
    dock.control("_config/ORDERME")
    dock.control("_config/_BACKFILL")
    dock.control("sub/_HISTORYDONE")
    dock.control("sub/ORDERME")
    dock.control("broken/_config/x.json", "{")
    dock.drop("broken/1", data="x")
    dock.drop("nothing", _POINTER="\n")
    dock.drop("both", _POINTER="/data/a\n", data="x")
    dock.control("_SUCCESS")
    dock.drop("good", data="x")
    report = await dock.look()
    assert report.published == ["good"]
    named = {"_config/_BACKFILL", "sub/_HISTORYDONE", "sub/ORDERME", "broken/_config/x.json"}
    assert set(report.problems) == {*named, "nothing", "both", "_SUCCESS"}
    assert "misplaced" in report.problems["sub/ORDERME"]
    assert "'data' and _POINTER" in report.problems["both"]


@pytest.mark.parametrize("where", ["", "sub/", "sub/1/"])
async def test_a_misplaced_orderme_is_reported_and_nothing_is_applied(dock: Dock, where: str) -> None:
    """B12, B13: somebody wants an order; what was applied without one cannot be taken back."""
    dock.drop("sub/1", data="x")
    dock.control(f"{where}ORDERME")
    report = await dock.look()
    assert (report.published, list(report.problems)) == ([], [f"{where}ORDERME"])
    assert "belongs into a folder _config" in report.problems[f"{where}ORDERME"]
    assert [operation async for operation in dock.sdk.operations("t")] == []
    (dock.folder / where / "_config").mkdir()
    (dock.folder / where / "ORDERME").rename(dock.folder / where / "_config/ORDERME")
    assert (await dock.look()).published == ["sub/1"]
    assert await dock.waiting() == ["sub/1"]


async def test_batches_that_nobody_looks_for_are_reported(dock: Dock) -> None:
    """B12: below names that hide them, and inside of others."""
    dock.control("_config/ORDERME")
    dock.drop("a/_old/2024/1", data="x")
    dock.drop("a/_old/2024/2", data="x")
    dock.drop(".hidden", data="x")
    dock.drop("b", data="x")
    dock.drop("b/part/more", data="x")
    report = await dock.look()
    assert report.published == ["b"]
    assert set(report.problems) == {"a/_old/2024/1/_SUCCESS", ".hidden/_SUCCESS", "b/part/more/_SUCCESS"}
    assert "inside batch 'b'" in report.problems["b/part/more/_SUCCESS"]


async def test_a_table_that_is_paused_keeps_no_other_waiting(dock: Dock) -> None:
    """B12, B11, B13: and its control files are obeyed all the same."""
    await dock.sdk.create_table("u", nowhere())
    for table in ("t", "u"):
        dock.control(f"{table}/_config/a.json", '{"partitions": 0}')
        dock.drop(f"{table}/1", data="x")
    dock.control("t/_HISTORYDONE")
    await dock.sdk.table("t").pause()
    reports = await blocking(Landings(dock.client, str(dock.folder), type="friend").poll)
    assert reports["u"].published == ["1"], reports
    assert reports["t"].controls == ["_HISTORYDONE"]


async def test_a_folder_that_cannot_be_read_keeps_no_other(dock: Dock) -> None:
    """B12, U3."""
    await dock.sdk.create_table("u", nowhere())

    class Locked(LocalFileSystem):  # type: ignore[misc]
        def ls(self, path: str, detail: bool = False, **more: Any) -> Any:
            if path.endswith("/t"):
                raise PermissionError(path)
            return super().ls(path, detail, **more)

    for table in ("t", "u"):
        dock.control(f"{table}/_config/ORDERME")
        dock.drop(f"{table}/1", data="x")
    landings = Landings(
        dock.client, str(dock.folder), type="noop", open_file_system=lambda url: (Locked(), url)
    )
    reports = await blocking(landings.poll)
    assert "cannot be read" in reports["t"].problems[""]
    assert reports["u"].published == ["1"]


async def test_a_pointer_names_data_elsewhere(dock: Dock) -> None:
    """B12."""
    dock.control("_config/ORDERME")
    dock.drop("1", _POINTER="/data/a\n\n/data/b\n")
    await dock.look()
    assert (await dock.arguments())["1"] == {"paths": ["/data/a", "/data/b"]}


async def test_unordered_batches_start_at_once_and_once(dock: Dock) -> None:
    """B13: their operations have the name of the batch, whichever process starts them."""
    dock.control("_config/a.json", '{"partitions": 0}')
    landing = Landing(dock.client, "t", str(dock.folder), type="friend")
    again = Landing(dock.client, "t", str(dock.folder), type="friend")
    dock.drop("1", data="x")
    assert (await dock.look(landing)).published == ["1"]
    assert (await dock.look(again)).published == []

    assert await eventually(lambda: dock.has_applied({"1": "t/friend/1"}))
    applied = await dock.look(dock.fresh())
    assert (applied.published, applied.known) == ([], ["1"])
    assert [operation.name async for operation in dock.sdk.operations("t")] == ["t/friend/1"]


@pytest.mark.parametrize("ordered_first", [False, True])
async def test_an_order_that_comes_or_goes_later_applies_nothing_twice(
    dock: Dock, client: EtcdClient, ordered_first: bool
) -> None:
    """B1, B13: whichever process looks, and whatever it knows of those before."""

    async def string(expected: str) -> bool:
        kv = await client.get(client.keyspace.table("t").watermarks)
        return decode_watermarks(kv.value).get("letters", {}).get("string", "") == expected

    async def look() -> LandingReport:
        return await dock.look(Landing(dock.client, "t", str(dock.folder), type="letters"))

    await dock.sdk.table("t").open_gate()
    order = dock.folder / "_config" / "ORDERME"
    dock.control("_config/a.json", "{}")
    if ordered_first:
        order.touch()
    for number, letter in enumerate("ABCD", 1):
        if letter == "D":
            order.unlink() if ordered_first else order.touch()
        dock.control(f"{number}/_config/a.json", json.dumps({"letters": letter}))
        dock.drop(str(number), data="x")
        assert (await look()).published == [str(number)]
        assert await eventually(lambda done="ABCD"[:number]: string(done))
    report = await look()
    assert (report.published, report.known, report.problems) == ([], ["1", "2", "3", "4"], {})
    assert len([operation async for operation in dock.sdk.operations("t")]) == (2 if ordered_first else 4)


async def test_an_unordered_batch_that_failed_is_told_until_somebody_decides(dock: Dock) -> None:
    """B13, B8, U1: reported at every poll; a changed configuration is a new attempt."""
    dock.control("_config/a.json", '{"letters": "!"}')
    dock.drop("1", data="x")
    feed = Landing(dock.client, "t", str(dock.folder), type="letters")
    assert (await dock.look(feed)).published == ["1"]

    assert await eventually(dock.has_failed)
    for one in (feed, Landing(dock.client, "t", str(dock.folder), type="letters")):
        report = await dock.look(one)
        assert report.published == []
        assert "INVALID_ARGUMENT: no letter: !" in report.problems["1"]
        assert "distop batch retry t 1" in report.problems["1"]
    dock.control("_config/a.json", '{"letters": "y"}')
    await dock.look(feed)

    assert await eventually(lambda: dock.has_applied({"1": "t/letters/1"}))
    assert (await dock.look(feed)).problems == {}


async def test_unordered_batches_are_applied_side_by_side(
    etcd_config: EtcdConfig, client: EtcdClient, tmp_path: Path
) -> None:
    """B13: all at once, nobody waits for another; the table gets each row once, also the first ones."""
    landed, ids = tmp_path / "landing", list[int]()
    for number in range(4):
        folder = write_csv(landed / f"{number}", "a.csv", number * 10, 10)
        (folder / "_SUCCESS").touch()
        ids += range(number * 10, number * 10 + 10)
    async with coordinated(etcd_config, tmp_path, client) as service:
        [member] = await service.client.members()
        feed = Landing(blocking_client := Client(member.address), "t", str(landed))
        try:
            assert (await blocking(feed.poll)).published == ["0", "1", "2", "3"]
            # There is nobody to do any job: all of them are in flight.

            async def in_flight(objects: set[str]) -> list[Operation] | None:
                running = [one for one in await service.operations() if one.state is OperationState.RUNNING]
                return running if {one.object for one in running} == objects else None

            objects = {f"batch:{number}" for number in range(4)}
            running = await eventually(lambda: in_flight(objects))
            assert running is not None
            # What replaces rows has to be alone, and takes its turn.
            late = write_csv(landed / "late", "a.csv", 100, 1)
            (late / "_SUCCESS").touch()
            (late / "_config").mkdir()
            (late / "_config" / "mode.json").write_text('{"mode": "overwrite"}')
            assert (await blocking(feed.poll)).published == ["late"]
            beside = await eventually(lambda: in_flight({*objects, ""}))
            assert beside is not None
            alone = [one for one in beside if not one.object]
            assert [one.name for one in alone] == ["t/ingest/5"]
            await service.client.operation(alone[0].name).cancel()
            async with runner(client):
                for one in running:
                    await service.client.operation(one.name).result(timeout_s=180)
            assert await asyncio.to_thread(service.ids) == ids
            # Another process finds them again, and starts nothing.
            fresh = Landing(blocking_client, "t", str(landed))
            report = await blocking(fresh.poll)
            assert (report.published, len(report.known), list(report.problems)) == ([], 4, ["late"])
            assert len(await service.operations()) == 5
        finally:
            await blocking(blocking_client.close)


class Rewritten:
    """A batch of two files that its producer writes again while it waits, or is read."""

    def __init__(self, service: Whole, folder: Path) -> None:
        self.service, self.folder = service, folder / "1"
        self._write("a.csv", 1)
        self._write("b.csv", 2)
        (self.folder / "_SUCCESS").touch()

    def _write(self, name: str, number: int) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_text(f"id\n{number}\n")

    def begin(self) -> None:
        (self.folder / "_SUCCESS").unlink()
        self._write("a.csv", 11)

    def complete(self) -> None:
        self._write("b.csv", 12)
        (self.folder / "_SUCCESS").touch()

    async def waits(self) -> bool:
        return "batch 1 waits for its source: " in (await self.service.client.table("t").why()).sentence

    async def has_rows(self, *ids: int) -> bool:
        head = (await self.service.client.table("t").get()).snapshot_id
        return bool(head) and await asyncio.to_thread(self.service.ids) == list(ids)


@asynccontextmanager
async def rewritten(
    etcd_config: EtcdConfig,
    tmp_path: Path,
    client: EtcdClient,
    *,
    ordered: bool = True,
    replaces: bool = False,
) -> AsyncIterator[tuple[Rewritten, Callable[..., Any]]]:
    """A batch, and a look at its folder; ``anew``: by a process that knows nothing of the others."""
    folder = tmp_path / "landing"
    async with coordinated(etcd_config, tmp_path, client, partitionBy=[]) as service:
        if ordered:
            (folder / "_config").mkdir(parents=True)
            (folder / "_config" / "ORDERME").touch()
        [member] = await service.client.members()
        sdk = Client(member.address)

        def fresh() -> Landing:
            return Landing(sdk, "t", str(folder), replace=replaces)

        feed = fresh()
        try:
            yield (
                Rewritten(service, folder),
                lambda anew=False: blocking(fresh().poll if anew else feed.poll),
            )
        finally:
            await blocking(sdk.close)


@pytest.mark.parametrize("held_by", ["gate", "approval", "block"])
async def test_a_batch_that_is_written_again_while_it_waits_is_applied_as_it_is_then(
    etcd_config: EtcdConfig, client: EtcdClient, tmp_path: Path, held_by: str
) -> None:
    """B12, B6, B7, B8: nothing of it before its marker is back, and nothing of what it was."""
    async with rewritten(etcd_config, tmp_path, client) as (batch, look), runner(client):
        sdk = batch.service.client
        if held_by == "gate":
            await sdk.table("t").set_ordering(gate="closed")
        else:
            first = tmp_path / "landing" / "0"
            first.mkdir()
            if held_by == "approval":  # without data it blocks the table
                (first / "a.csv").write_text("id\n0\n")
            (first / "_SUCCESS").touch()
            await sdk.table("t").set_ordering(validation=held_by == "approval")
        assert "1" in (await look()).published
        ordering = await eventually(
            lambda: sdk.table("t").ordering(),
            holds=lambda now: held_by == "gate" or now.awaiting or now.blocked,
        )
        batch.begin()
        if held_by == "gate":
            await sdk.table("t").open_gate()
        elif held_by == "approval":
            await sdk.table("t").approve_batch(ordering.awaiting)
        else:
            await sdk.table("t").skip_batch("0")
        assert await eventually(batch.waits)
        [waiting] = [one async for one in sdk.table("t").backlog()]
        assert (waiting.name, waiting.state, waiting.attempts) == ("1", "waiting", 0)
        assert not [one async for one in sdk.operations("t") if one.state is not OperationState.SUCCEEDED]
        batch.complete()
        before = (0,) if held_by == "approval" else ()
        assert await eventually(lambda: batch.has_rows(*before, 11, 12))
        assert (await look()).published == []


@pytest.mark.parametrize("ordered", [True, False])
async def test_a_batch_that_is_written_again_while_it_is_read_is_applied_as_it_is_then(
    etcd_config: EtcdConfig, client: EtcdClient, tmp_path: Path, ordered: bool
) -> None:
    """B12, B13: the operation ends, and the batch returns to its place."""
    async with rewritten(etcd_config, tmp_path, client, ordered=ordered) as (batch, look):
        sdk = batch.service.client
        await sdk.table("t").set_ordering(max_attempts=1)
        await look()

        async def operations() -> list[Operation]:
            return [one async for one in sdk.operations("t")]

        async def waits() -> bool:
            if ordered:
                return await batch.waits()
            waiting = [one async for one in sdk.table("t").backlog(ordered=False)]
            return [(one.state, one.attempts) for one in waiting if one.error] == [("waiting", 0)]

        [reads] = await eventually(operations)  # there is nobody to do its jobs
        batch.begin()
        async with runner(client):
            ended = await sdk.operation(reads.name).wait(timeout_s=60)
            assert ended.state is OperationState.FAILED
            assert await eventually(waits)
            batch.complete()
            assert await eventually(lambda: batch.has_rows(11, 12))


@pytest.mark.parametrize("way", ["ordered", "unordered", "staged"])
async def test_an_applied_batch_that_is_written_again_is_named_until_it_is_replaced(
    etcd_config: EtcdConfig, client: EtcdClient, tmp_path: Path, way: str
) -> None:
    """A3: by landing, why and doctor, once it is complete; one of an older version is not compared."""
    ordered = way != "unordered"
    async with rewritten(etcd_config, tmp_path, client, ordered=ordered) as (batch, look), runner(client):
        sdk = batch.service.client

        async def approved() -> None:
            """A staged batch is published by its approval."""
            if way == "staged":
                assert (
                    await eventually(lambda: sdk.table("t").ordering(), holds=lambda now: now.awaiting)
                ).staged
                await sdk.table("t").approve_batch("1")

        async def named() -> tuple[bool, bool]:
            sentence, diagnosis = (await sdk.table("t").why()).sentence, await sdk.diagnose("t")
            command = "distop batch replace t 1"
            found = [one.remedy for one in diagnosis.findings if one.code == "BATCH_REWRITTEN"]
            return command in sentence, found == [command]

        if way == "staged":
            await sdk.table("t").set_ordering(before=True)
        await look()
        await approved()
        assert await eventually(lambda: batch.has_rows(1, 2))
        for anew in (False, True):
            assert (await look(anew)).problems == {}
        batch.begin()
        assert (await look()).problems == {}
        batch.complete()
        for anew in (False, False, True):
            assert "distop batch replace t 1" in (await look(anew)).problems["1"]
        assert await named() == (True, True)
        await sdk.table("t").replace_batch("1")
        await approved()
        assert await eventually(lambda: batch.has_rows(11, 12))
        for anew in (False, True):
            assert (await look(anew)).problems == {}
        assert await named() == (False, False)
        keys = client.keyspace.table("t")
        key = keys.applied("1") if ordered else keys.unordered(DONE, "1")
        applied = decode((await client.get(key)).value, AppliedRecord, key)
        await client.put(key, encode(replace(applied, markers={})))
        batch.begin()
        batch.complete()
        for anew in (False, True):
            assert (await look(anew)).problems == {}


async def test_an_applied_batch_that_is_written_again_is_replaced_once_for_each_version(
    etcd_config: EtcdConfig, client: EtcdClient, tmp_path: Path
) -> None:
    """A3: whichever processes look, and also if it is written again while its replacement waits."""
    async with rewritten(etcd_config, tmp_path, client, replaces=True) as (batch, look), runner(client):
        sdk = batch.service.client

        async def replaced() -> list[str]:
            batch.begin()
            batch.complete()
            return [name for anew in (False, True, True, False) for name in (await look(anew)).published]

        async def applied(since: str = "") -> str:
            """By which operation, if by another one."""
            found = await sdk.table("t").batch("1")
            return found.operation if found.state == "applied" and found.operation != since else ""

        await look()
        assert await eventually(lambda: batch.has_rows(1, 2))
        first = await eventually(applied)
        assert await replaced() == ["1"]
        assert await eventually(lambda: batch.has_rows(11, 12))
        second = await eventually(lambda: applied(first))
        # A request that was on its way meanwhile.
        late = await sdk.table("t").batch_rewritten("1", first, "earlier", replace=True)
        assert late.became == "already applied"
        await sdk.table("t").set_ordering(gate="closed")
        assert await replaced() == ["1"]
        assert await replaced() == []
        await sdk.table("t").open_gate()
        assert await eventually(lambda: applied(second))
        assert [(await look(anew)).published for anew in (False, True)] == [[], []]
        # A replacement that somebody has withdrawn.
        await sdk.table("t").set_ordering(gate="closed")
        assert await replaced() == ["1"]
        await sdk.table("t").remove_batch("1")
        assert [(await look(anew)).published for anew in (False, True)] == [[], []]


@pytest.mark.parametrize("missing", ["not-there", "not/there/either"])
async def test_a_folder_that_is_not_there_yet_is_waited_for(dock: Dock, missing: str) -> None:
    landing = Landing(dock.client, "t", str(dock.folder / missing), type="noop")
    assert (await dock.look(landing)).published == []


async def test_configuration_above_the_tables_holds_for_all_and_the_nearest_wins(dock: Dock) -> None:
    """B12."""
    await dock.sdk.create_table("u", nowhere())
    dock.control("_config/ORDERME")
    dock.control("_config/base.json", '{"csv": {"delimiter": ",", "header": true}}')
    dock.control("u/_config/more.json", '{"csv": {"delimiter": ";"}}')
    for table in ("t", "u"):
        dock.drop(f"{table}/1", data="x")
    reports = await blocking(Landings(dock.client, str(dock.folder), type="noop").poll)
    assert {table: report.published for table, report in reports.items()} == {"t": ["1"], "u": ["1"]}
    assert (await dock.arguments())["1"]["csv"] == {"delimiter": ",", "header": True}
    [batch] = [batch async for batch in dock.sdk.table("u").backlog()]
    assert batch.argument["csv"] == {"delimiter": ";", "header": True}


async def test_files_above_the_folders_of_tables_are_reported(dock: Dock) -> None:
    """B12: and a configuration that cannot be read lets nothing through."""
    for name in ("_SUCCESS", "_HISTORYDONE", "_BACKFILL"):
        dock.control(name)
    dock.control("t/_config/ORDERME")
    dock.drop("t/1", data="x")
    dock.drop("_done/t/0", data="x")
    landings = Landings(dock.client, str(dock.folder), type="noop")
    dock.control("_config/x.json", "{")
    reports = await blocking(landings.poll)
    wrong = {"_SUCCESS", "_HISTORYDONE", "_BACKFILL", "_done/t/0/_SUCCESS"}
    assert set(reports) == {""}
    assert set(reports[""].problems) == wrong | {"_config/x.json"}
    dock.control("_config/x.json", "{}")
    reports = await blocking(landings.poll)
    assert set(reports[""].problems) == wrong
    assert reports["t"].published == ["1"]
    dock.control("ORDERME")
    dock.drop("t/2", data="x")
    reports = await blocking(landings.poll)
    assert set(reports) == {""}
    assert "misplaced" in reports[""].problems["ORDERME"]


async def test_each_folder_feeds_the_table_of_its_name(dock: Dock, tmp_path: Path) -> None:
    """B12: and one whose table does not exist, or is configured badly, keeps no other."""
    await dock.sdk.create_table("u", nowhere())
    for table in ("t", "u", "missing", "_ignored"):
        dock.control(f"{table}/_config/ORDERME")
        dock.drop(f"{table}/1", data="x")
    dock.control("u/_config/x.json", "[]")
    landings = Landings(dock.client, str(dock.folder), type="noop")
    reports = await blocking(landings.poll)
    assert {table: report.published for table, report in reports.items()} == {
        "": [],
        "t": ["1"],
        "u": [],
        "missing": [],
    }
    assert list(reports[""].problems) == ["_ignored/1/_SUCCESS"]
    assert "TABLE_NOT_FOUND" in reports["missing"].problems[""]
    assert list(reports["u"].problems) == ["_config/x.json"]
    await dock.sdk.create_table("missing", nowhere())
    (dock.folder / "u/_config/x.json").write_text("{}")
    reports = await blocking(landings.poll)
    assert (reports["u"].published, reports["missing"].published) == (["1"], ["1"])
    assert await blocking(Landings(dock.client, str(tmp_path / "nowhere")).poll) == {}


async def test_names_and_files_that_nobody_can_read_keep_no_other_table_waiting(dock: Dock) -> None:
    """U3: they are reported, in letters that can be printed."""
    await dock.sdk.create_table("other", nowhere())
    dock.drop("t/caf\udce9")  # the byte E9, which is no UTF-8
    dock.drop("t/fine")
    dock.drop("other/1")
    dock.control("t/_config/deep.json", "[" * 90_000)
    landings = Landings(dock.client, str(dock.folder), type="noop")
    reports = await blocking(landings.poll)
    assert reports["other"].published == ["1"]
    assert set(reports["t"].problems) == {"caf\\udce9", "_config/deep.json"}
    (dock.folder / "t/_config/deep.json").unlink()
    assert (await blocking(landings.poll))["t"].published == ["fine"]
