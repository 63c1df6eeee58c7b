"""Calls of the client: fail-over, lost replies, deadlines, pages."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest
from grpc.aio import EOF  # type: ignore[attr-defined]  # the stubs lack it

from distop.client import AsyncClient, OperationError, OperationFailed, OperationState
from distop.client.connection import Connection, parse_addresses
from distop.errors import (
    RETRY_AFTER,
    ArgumentTooLarge,
    Busy,
    Cancelled,
    DeadlineExceeded,
    DistopError,
    EtcdUnavailable,
    IncompatibleOperation,
    InvalidArgument,
    OutcomeUnknown,
    TableExists,
    Unavailable,
)
from distop.metastore.etcd.embedded import free_port
from distop.proto import distop_pb2 as pb
from support.etcd.proxy import Proxy
from support.refusals import refused
from support.services.fake_service import Context, FakeService, World, serving
from support.waiting import PATIENCE


@pytest.fixture
async def service() -> AsyncIterator[tuple[FakeService, str]]:
    fake = FakeService()
    async with serving(fake) as address:
        yield fake, address


@pytest.fixture
def fake(service: tuple[FakeService, str]) -> FakeService:
    return service[0]


@pytest.fixture
async def client(service: tuple[FakeService, str]) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(service[1]) as client:
        yield client


def nobody() -> str:
    """An address where nothing listens."""
    return f"127.0.0.1:{free_port()}"


async def test_a_started_operation_can_be_read(service: tuple[FakeService, str]) -> None:
    fake, address = service
    async with AsyncClient(address, identity="me@here") as client:
        started = await client.start(
            "flights",
            "noop",
            {"partitions": 3},
            deadline_s=1.5,
            max_job_attempts=2,
            job_backoff_s=0.25,
            attempt_timeout_s=90,
            partitions=["a", "b"],
        )
        assert started.name == "flights/noop/1"
        assert started.started.state is OperationState.RUNNING
        assert started.started.jobs.total == 3
        assert started.started.started_by == "me@here"
        assert await started.get() == started.started
        repeated = await client.start("flights", "noop", run=started.started.run)
        assert repeated.started == started.started
    request = fake.calls["start"][0]
    assert request.options.deadline.ToMilliseconds() == 1500
    assert request.options.max_job_attempts == 2
    assert request.options.job_backoff.ToMilliseconds() == 250
    assert request.options.attempt_timeout.seconds == 90
    assert list(request.partitions) == ["a", "b"]
    assert request.run == started.started.run != ""


async def test_a_client_refused_as_busy_tries_again_when_it_was_advised_to(
    fake: FakeService, client: AsyncClient
) -> None:
    """G6: nobody who uses the client hears of it within the deadline."""
    fake.refuse = [Busy(details={RETRY_AFTER: "0.3"}), Busy(), Busy()]
    began = time.monotonic()
    started = await client.start("flights", "noop")
    assert time.monotonic() - began >= 0.3
    assert started.name == "flights/noop/1"
    assert len(fake.calls["start"]) == 4


async def test_a_service_that_stays_busy_is_left_at_the_deadline(service: tuple[FakeService, str]) -> None:
    """G6: also if it has asked for more patience than there is."""
    fake, address = service
    fake.refuse = [Busy(details={RETRY_AFTER: "30"}) for _ in range(100)]
    async with AsyncClient(address, timeout_s=1.0) as client:
        with pytest.raises(Busy):
            await client.start("flights", "noop")
    assert len(fake.calls["start"]) > 2


async def test_a_lost_reply_is_repeated_with_the_same_id(fake: FakeService, client: AsyncClient) -> None:
    """O7, C10: the repeat returns the first answer."""
    fake.lose_replies = 2
    started = await client.start("flights", "noop")
    assert len(fake.calls["start"]) == 3
    assert {request.run for request in fake.calls["start"]} == {started.started.run}
    assert list(fake.world.operations) == ["flights/noop/1"]
    fake.world.add(pb.Operation(name="flights/noop/9", state=pb.COMMITTING))
    fake.lose_replies = 1
    await client.operation("flights/noop/9").retry()
    fake.lose_replies = 1
    assert (await client.create_table("flights", "/data/f")).location == "/data/f"
    for first, second in (fake.calls["resolve"], fake.calls["create_table"]):
        assert first.call_id == second.call_id != ""
    with pytest.raises(TableExists):
        await client.create_table("flights", "/data/f")


async def test_a_lost_reply_is_repeated_on_another_coordinator() -> None:
    """O7"""
    world = World()
    first, second = FakeService(world, lose_replies=1), FakeService(world)
    async with serving(first) as a, serving(second) as b, AsyncClient(f"{a},{b}") as client:
        started = await client.start("flights", "noop")
    assert first.calls["start"] == second.calls["start"]
    assert list(world.operations) == [started.name]


async def test_a_dead_coordinator_is_left_for_the_next_and_not_asked_again() -> None:
    fake = FakeService()
    async with serving(fake) as address, AsyncClient(f"{nobody()},{address}") as client:
        await client.members()
        assert client._connection.address == address
        await client.members()
    assert len(fake.calls["members"]) == 2


@pytest.mark.parametrize("connect_timeout_s", [2.0, 0.1])
async def test_a_hung_coordinator_costs_its_share_of_the_deadline(connect_timeout_s: float) -> None:
    """U4: which may be longer than the time to connect: all are asked before a client gives up."""
    hung, well = FakeService(hang=True), FakeService()
    async with (
        serving(hung) as a,
        serving(well) as b,
        AsyncClient(f"{a},{b}", timeout_s=2.0, connect_timeout_s=connect_timeout_s) as client,
    ):
        begin = time.monotonic()
        await client.members()
        assert time.monotonic() - begin > 0.9
        await client.members()
    assert len(hung.calls["members"]) == 1
    assert len(well.calls["members"]) == 2


async def test_a_stream_that_is_cancelled_as_a_message_comes_is_over() -> None:
    class Call:
        def __init__(self, request: object, **_: object) -> None:
            self.messages = [b"one", EOF]

        async def read(self) -> object:
            following.cancel()
            return self.messages.pop(0)

        def cancel(self) -> None:
            cancelled.append(self)

    async def follow() -> None:
        async with aclosing(connection.stream(lambda _service: Call, None, silence_s=5)) as messages:
            async for message in messages:
                seen.append(message)
                await asyncio.sleep(0)

    connection = Connection(("127.0.0.1:1",), timeout_s=1, connect_timeout_s=1)
    seen, cancelled = list[object](), list[object]()
    following = asyncio.create_task(follow())
    with pytest.raises(asyncio.CancelledError):
        await following
    assert len(seen) == 1
    assert len(cancelled) == 1
    await connection.close()


async def test_many_calls_that_fail_together_move_on_by_one() -> None:
    fake = FakeService()
    async with serving(fake) as address, AsyncClient(f"{nobody()},{address},{nobody()}") as client:
        await asyncio.gather(*(client.members() for _ in range(20)))
        assert client._connection.address == address


@pytest.mark.timed(0.5)
async def test_all_hung_ends_at_the_deadline() -> None:
    """U4"""
    hung = FakeService(hang=True)
    async with serving(hung) as address, AsyncClient(address, timeout_s=0.5) as client:
        begin = time.monotonic()
        with pytest.raises(DeadlineExceeded, match=address):
            await client.members()
        assert time.monotonic() - begin < 1.5 * PATIENCE


async def test_nobody_there_is_reported_soon_and_says_what_to_check() -> None:
    address = nobody()
    async with AsyncClient(address, timeout_s=3600, connect_timeout_s=0.3) as client, asyncio.timeout(60):
        with pytest.raises(Unavailable) as caught:
            await client.members()
    assert caught.value.hint == f"is a coordinator running at {address}?"


async def test_a_service_far_away_is_reached_with_one_connection() -> None:
    async with serving(FakeService()) as address, Proxy(address) as far:
        far.delay_s = 0.3
        async with AsyncClient(far.endpoint, timeout_s=20, connect_timeout_s=20) as client:
            assert await client.members() == []
        assert far.connections == 1


@pytest.mark.parametrize("reached", [False, True])
async def test_a_service_that_comes_up_is_waited_for(reached: bool) -> None:
    """One that was reached before until the deadline, another one when asked to."""
    port = free_port()
    connect_s = 0.1 if reached else 20
    async with AsyncClient(f"127.0.0.1:{port}", timeout_s=20, connect_timeout_s=connect_s) as client:
        if reached:
            async with serving(FakeService(), port=port):
                await client.members()
        waiting = asyncio.create_task(client.members())
        _done, pending = await asyncio.wait({waiting}, timeout=0.3)
        assert pending
        async with serving(FakeService(), port=port):
            assert await waiting == []


@pytest.mark.parametrize("error", [EtcdUnavailable(), OutcomeUnknown(), Unavailable(), DeadlineExceeded()])
async def test_a_call_that_failed_retryably_is_repeated(
    fake: FakeService, client: AsyncClient, error: DistopError
) -> None:
    fake.refuse = [error]
    assert (await client.start("flights", "noop")).started.instance == 1
    assert len(fake.calls["start"]) == 2


async def test_a_call_that_failed_for_good_is_not_repeated(fake: FakeService, client: AsyncClient) -> None:
    fake.refuse = [IncompatibleOperation("flights/ingest/1 is in the way")]
    with pytest.raises(IncompatibleOperation, match="flights/ingest/1") as caught:
        await client.start("flights", "noop")
    assert caught.value.retryable
    assert len(fake.calls["start"]) == 1


@pytest.mark.timed(0.5)
async def test_an_outage_is_reported_at_the_deadline(service: tuple[FakeService, str]) -> None:
    """U4: a dead etcd is reported within the deadline of the call."""
    fake, address = service
    fake.refuse = [EtcdUnavailable("etcd does not answer") for _ in range(1000)]
    async with AsyncClient(address, timeout_s=0.5) as client:
        begin = time.monotonic()
        with pytest.raises(EtcdUnavailable):
            await client.start("flights", "noop")
        assert time.monotonic() - begin < 1.5 * PATIENCE
    assert len(fake.calls["start"]) < 30


async def test_lists_come_in_pages(fake: FakeService, client: AsyncClient) -> None:
    names = [(await client.start("flights", "noop")).name for _ in range(5)]
    assert [operation.name async for operation in client.operations("flights", page_size=2)] == names
    assert [request.page_token for request in fake.calls["list"]] == ["", "2", "4"]
    running = client.operations(states=[OperationState.RUNNING], type="noop", table="other")
    assert [operation async for operation in running] == []
    for name in "ab":
        await client.create_table(name, f"/data/{name}")
    assert [table.name async for table in client.tables(page_size=1)] == ["a", "b"]


async def test_only_the_pages_needed_are_fetched(fake: FakeService, client: AsyncClient) -> None:
    for _ in range(5):
        await client.start("flights", "noop")
    listing = client.operations(page_size=2)
    assert (await anext(listing)).instance == 1
    await listing.aclose()
    assert len(fake.calls["list"]) == 1


class Overtaken(FakeService):
    """Somebody else makes a table of the same name before the caller learns that one was dropped."""

    async def _leave(self, context: Context) -> None:
        if self.lose_replies:
            self.world.tables["flights"] = pb.Table(name="flights", uuid="new")
        await super()._leave(context)


async def test_a_repeated_drop_leaves_the_next_table_of_that_name() -> None:
    """P8: the reply of the first one was lost."""
    fake = Overtaken(World(tables={"flights": pb.Table(name="flights", uuid="old")}), lose_replies=1)
    async with serving(fake) as address, AsyncClient(address) as client:
        await client.table("flights").drop()
    assert len(fake.calls["drop_table"]) == 2
    assert "flights" in fake.world.tables


async def test_an_oversize_argument_is_refused_here(fake: FakeService, client: AsyncClient) -> None:
    """U3"""
    with pytest.raises(ArgumentTooLarge, match="8,388,608"):
        await client.start("flights", "noop", {"text": "x" * 9_000_000})
    assert not fake.calls["start"]


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"argument": {"when": object()}}, "argument.when"),
        ({"argument": {"a": [1, {"b": 2**64}]}}, "argument.a[1].b"),
        ({"deadline_s": 0}, "options.deadline"),
        ({"deadline_s": float("nan")}, "options.deadline"),
        ({"deadline_s": 1e300}, "options.deadline"),
        ({"job_backoff_s": 0}, "options.job_backoff"),
        ({"attempt_timeout_s": -1}, "options.attempt_timeout"),
        ({"partitions": "abc"}, "partitions"),
    ],
)
async def test_bad_requests_are_refused_here(arguments: dict[str, object], field: str) -> None:
    """U3, O4: with the field's name."""
    async with AsyncClient(nobody()) as client:
        with pytest.raises(InvalidArgument) as caught:
            await client.start("flights", "noop", **arguments)  # type: ignore[arg-type]
    assert caught.value.details["field"] == field


async def test_text_that_is_no_unicode_is_refused_here() -> None:
    async with AsyncClient(nobody()) as client:
        with pytest.raises(InvalidArgument):
            await client.table("\udcff").get()
        with pytest.raises(InvalidArgument):
            await client.start("flights", "noop", {"path": "\udcff"})


async def test_each_outcome_of_an_operation_is_a_result_or_an_error(client: AsyncClient) -> None:
    good = await client.start("flights", "noop", {"partitions": 2})
    assert (await good.result()).state is OperationState.SUCCEEDED
    bad = await (await client.start("flights", "noop", {"partitions": 1, "fail": ["0"]})).wait()
    with pytest.raises(OperationFailed, match="job 0") as failed:
        bad.raise_for_outcome()
    assert failed.value.details == {"operation": bad.name, "cause": "JOB_FAILED"}
    assert not failed.value.retryable
    assert bad.duration_s == 2
    gone = await client.start("flights", "noop")
    asked = await gone.cancel("no longer needed")
    assert asked.cancel_requested
    assert not asked.done
    with refused(error=Cancelled, operation=gone.name):
        await gone.result()


@pytest.mark.parametrize(
    ("code", "message", "retryable"),
    [
        ("DEADLINE_EXCEEDED", "not finished within 3 s", True),
        ("OF_A_LATER_RELEASE", "", True),
        ("HEAD_CONFLICT", "", False),
        ("COMPLETION_FAILED", "aborted by ann", False),
        ("JOB_FAILED", "job 2 failed: BAD_ROW: s3://in/1.csv, line 7", False),
        ("JOB_FAILED", "3 of 9 jobs failed, 2 may; job 2 failed: CRASHED: OSError: the disk is away", True),
        ("JOB_FAILED", "job 2 failed: BAD_ROW: a step of job 2 failed: EOF: no more", False),
        ("JOB_FAILED", "job 2 failed: told by the job: job 3 failed: EOF: no more", False),
    ],
)
def test_a_failure_says_whether_another_try_may_succeed(code: str, message: str, retryable: bool) -> None:
    """Of a job, its own error decides; what a user has aborted, nobody starts again by himself."""
    assert OperationError(code, message).retryable == retryable


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("a:1", ("a:1",)),
        (" a:1 ,b, a:1,", ("a:1", "b:7070")),
        ("[::1]:9,[::1]", ("[::1]:9", "[::1]:7070")),
        ("10.0.0.1", ("10.0.0.1:7070",)),
    ],
)
def test_addresses_of_coordinators_are_parsed(text: str, addresses: tuple[str, ...]) -> None:
    assert parse_addresses(text) == addresses


@pytest.mark.parametrize(
    "text", ["", ",", "a:0", "a:x", "a:99999", ":7070", "http://a:1", "a:1/b", "u@a:1", "a:1:2"]
)
def test_a_malformed_address_is_refused_by_its_field(text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_addresses(text)
    assert caught.value.details["field"] == "address"
    with pytest.raises(InvalidArgument):
        Connection(("a:1",), timeout_s=0, connect_timeout_s=1)
