"""Following an operation over everything that can happen to a stream."""

import asyncio
import time
from contextlib import aclosing

import pytest

from distop.client import AsyncClient, OperationState, OperationUpdate, connection
from distop.client.connection import Connection
from distop.client.handles import follow
from distop.errors import DeadlineExceeded, OperationNotFound, Unavailable
from distop.metastore.etcd.embedded import free_port
from distop.proto import distop_pb2 as pb
from support.services.fake_service import Context, FakeService, World, serving
from support.waiting import PATIENCE, eventually

NAME = "flights/noop/1"


def world(jobs: int) -> World:
    """An operation whose jobs finish one by one at revisions 101 and up, and which then succeeds."""
    shared = World()

    def at(done: int, state: pb.OperationState = pb.RUNNING) -> pb.Operation:
        counts = pb.JobCounts(total=jobs, succeeded=done)
        return pb.Operation(name=NAME, table="flights", type="noop", instance=1, state=state, jobs=counts)

    shared.add(
        at(0),
        *(
            pb.OperationUpdate(operation=at(n), jobs=[pb.JobUpdate(partition=str(n - 1), state="success")])
            for n in range(1, jobs + 1)
        ),
        pb.OperationUpdate(operation=at(jobs, pb.SUCCEEDED)),
    )
    return shared


class Slow(FakeService):
    """Does not answer its first call."""

    def __init__(self, shared: World) -> None:
        super().__init__(shared)
        self.asked = asyncio.Event()

    async def ListMembers(self, request: pb.ListMembersRequest, context: Context) -> pb.ListMembersResponse:
        if not self.asked.is_set():
            self.asked.set()
            await asyncio.Event().wait()
        return await super().ListMembers(request, context)


def replace_channels(client: AsyncClient) -> None:
    client._connection._leave_channels()
    client._connection._service(client._connection.address)


async def everything(client: AsyncClient, after_revision: int = 0) -> list[OperationUpdate]:
    return [update async for update in client.operation(NAME).watch(after_revision=after_revision)]


async def test_a_watch_shows_the_present_then_every_change_to_the_end() -> None:
    async with serving(FakeService(world(3))) as address, AsyncClient(address) as client:
        updates = await everything(client)
        assert [update.revision for update in await everything(client, 102)] == [103, 104]
    assert [update.operation.jobs.done for update in updates] == [0, 1, 2, 3, 3]
    assert [job.partition for update in updates for job in update.jobs] == ["0", "1", "2"]
    assert updates[-1].operation.state is OperationState.SUCCEEDED


async def test_a_broken_stream_goes_on_after_the_last_revision_seen() -> None:
    """O27, O28: no change is lost, none is shown twice."""
    fake = FakeService(world(5), break_streams_after=[2, 0, 1, 3])
    async with serving(fake) as address, AsyncClient(address) as client:
        updates = await everything(client)
    assert [update.revision for update in updates] == [100, 101, 102, 103, 104, 105, 106]
    assert [request.after_revision for request in fake.calls["watch"]] == [0, 101, 101, 102, 105]


async def test_a_coordinator_that_stops_is_replaced_in_the_middle_of_a_watch() -> None:
    shared = world(4)
    shared.updates[NAME], rest = shared.updates[NAME][:2], shared.updates[NAME]
    async with serving(FakeService(shared)) as b:
        async with serving(FakeService(shared)) as a:
            client = AsyncClient(f"{a},{b}")
            watching = client.operation(NAME).watch()
            seen = [(await anext(watching)).revision, (await anext(watching)).revision]
            shared.updates[NAME] = rest
        seen += [update.revision async for update in watching]
        await client.close()
    assert seen == [100, 101, 102, 103, 104, 105]


async def test_a_watch_and_a_call_go_on_when_certificates_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """S3: gRPC cancels what is under way on a channel that is closed."""
    monkeypatch.setattr(connection, "LEAVE_S", 0.0)
    shared = world(1)
    last = shared.updates[NAME].pop()
    fake, slow = FakeService(shared), Slow(shared)
    async with (
        serving(fake) as address,
        serving(slow) as other,
        AsyncClient(address) as client,
        AsyncClient(other) as caller,
    ):
        watching = client.operation(NAME).watch()
        assert [(await anext(watching)).revision for _ in range(2)] == [100, 101]
        following = asyncio.create_task(anext(watching))
        calling = asyncio.create_task(caller.members())
        await slow.asked.wait()
        for one in (client, caller):
            replace_channels(one)
        assert await calling == []
        await eventually(lambda: len(fake.calls["watch"]) == 2)
        shared.updates[NAME].append(last)
        assert (await following).revision == 102
        await watching.aclose()


async def test_closing_a_client_ends_its_watches_and_calls_at_once() -> None:
    """Also those that are left on a channel whose certificates have changed."""
    shared = world(1)
    shared.updates[NAME].pop()
    slow = Slow(shared)
    async with serving(slow) as address, AsyncClient(address) as client:
        watching = client.operation(NAME).watch()
        assert [(await anext(watching)).revision for _ in range(2)] == [100, 101]
        left = [asyncio.create_task(anext(watching)), asyncio.create_task(client.members())]
        await slow.asked.wait()
        replace_channels(client)
        async with asyncio.timeout(60):
            await client.close()
        for one in left:
            with pytest.raises(asyncio.CancelledError):
                await one


async def test_a_silent_stream_is_left_for_another_coordinator() -> None:
    """U4: a coordinator that was stopped keeps its connections."""
    shared = world(1)
    hung, well = FakeService(shared, hang=True), FakeService(shared)
    async with serving(hung) as a, serving(well) as b:
        connection = Connection((a, b), timeout_s=5, connect_timeout_s=5)
        updates = [update.revision async for update in follow(connection, NAME, heartbeat_s=0.1)]
        await connection.close()
    assert updates == [100, 101, 102]
    assert len(hung.calls["watch"]) == 1


async def test_heartbeats_are_not_shown() -> None:
    shared = world(1)
    first, *rest = shared.updates[NAME]
    shared.updates[NAME] = [first, first, first, *rest]
    async with serving(FakeService(shared)) as address, AsyncClient(address) as client:
        assert [update.revision for update in await everything(client)] == [100, 101, 102]


@pytest.mark.timed(0.5)
async def test_a_watch_gives_up_when_nobody_answers_any_more() -> None:
    shared = world(1)
    del shared.updates[NAME][1:]
    async with AsyncClient(f"127.0.0.1:{(port := free_port())}", timeout_s=0.5) as client:
        async with serving(FakeService(shared), port=port):
            watching = client.operation(NAME).watch()
            await anext(watching)
        begin = time.monotonic()
        with pytest.raises(Unavailable):
            await anext(watching)
        assert time.monotonic() - begin < 3 * PATIENCE


async def test_an_unknown_operation_ends_a_watch_at_once() -> None:
    async with serving(FakeService()) as address, AsyncClient(address) as client:
        with pytest.raises(OperationNotFound):
            await everything(client)


async def test_a_watch_that_is_left_ends_its_stream() -> None:
    fake = FakeService(world(3))
    async with serving(fake) as address, AsyncClient(address) as client:
        async with aclosing(client.operation(NAME).watch()) as watching:
            await anext(watching)
        assert await client.members() == []


async def test_waiting_ends_with_its_time() -> None:
    shared = world(1)
    del shared.updates[NAME][1:]
    async with serving(FakeService(shared)) as address, AsyncClient(address) as client:
        with pytest.raises(DeadlineExceeded, match=r"0\.2 s, .*running"):
            await client.operation(NAME).wait(timeout_s=0.2)
