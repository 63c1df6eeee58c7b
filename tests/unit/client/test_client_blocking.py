"""The client for programs without an event loop."""

import asyncio
import signal
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from distop.client import Client, OperationState, blocking
from distop.errors import OperationNotFound, PreconditionFailed
from distop.proto import distop_pb2 as pb
from support.services.fake_service import FakeService, serving_in_thread
from support.waiting import until


@pytest.fixture
def service() -> Iterator[tuple[FakeService, str]]:
    fake = FakeService()
    with serving_in_thread(fake) as address:
        yield fake, address


@pytest.fixture
def client(service: tuple[FakeService, str]) -> Iterator[Client]:
    with Client(service[1]) as client:
        yield client


def test_the_blocking_client_calls_and_iterates(service: tuple[FakeService, str]) -> None:
    _, address = service
    with Client(address, identity="me") as client:
        started = client.start("flights", "noop", {"partitions": 2})
        assert started.started.started_by == "me"
        assert [update.operation.jobs.done for update in started.watch()] == [0, 2]
        assert started.wait().state is OperationState.SUCCEEDED
        assert [operation.name for operation in client.operations("flights")] == [started.name]
        assert client.create_table("flights", "/data") == client.table("flights").get()
        with pytest.raises(OperationNotFound):
            client.operation("flights/noop/9").get()


def test_a_client_without_an_address_goes_to_that_of_the_environment(
    service: tuple[FakeService, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTOP_ADDRESS", service[1])
    with Client() as client:
        assert client.create_table("flights", "/data") == client.table("flights").get()


def test_an_iteration_can_be_left(client: Client) -> None:
    started = client.start("flights", "noop", {"partitions": 2})
    for update in started.watch():
        assert update.operation.jobs.done == 0
        break
    assert client.members() == []


def test_several_threads_share_a_client(service: tuple[FakeService, str]) -> None:
    fake, address = service
    with Client(address) as client, ThreadPoolExecutor(8) as threads:
        names = set(threads.map(lambda _: client.start("flights", "noop").name, range(40)))
    assert len(names) == 40 == len(fake.calls["start"])


def test_a_closed_client_says_so(service: tuple[FakeService, str]) -> None:
    _, address = service
    client = Client(address)
    client.close()
    client.close()
    with pytest.raises(PreconditionFailed, match="closed"):
        client.members()


def test_closing_ends_calls_of_other_threads(service: tuple[FakeService, str]) -> None:
    fake, address = service
    fake.world.add(pb.Operation(name="flights/noop/1", state=pb.RUNNING))
    client = Client(address)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(client.operation("flights/noop/1").wait)
        until(lambda: bool(fake.calls["watch"]))
        client.close()
        with pytest.raises(PreconditionFailed, match="closed"):
            waiting.result(60)


def test_an_iteration_may_end_while_the_client_is_closed(
    service: tuple[FakeService, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """U4: by another thread, after a look whether it is."""
    _, address = service
    client = Client(address)
    updates = client.start("flights", "noop", {"partitions": 2}).watch()
    next(updates)
    client.close()
    monkeypatch.setattr(client._runner.thread.loop, "is_closed", lambda: False)
    updates.close()  # type: ignore[attr-defined]


def test_an_interrupt_is_one_also_while_the_client_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client("127.0.0.1:1")

    def interrupted(_: object) -> None:
        client.close()
        raise KeyboardInterrupt

    monkeypatch.setattr(blocking, "result_of", interrupted)
    with pytest.raises(KeyboardInterrupt):
        client.members()


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C interrupts, also where these tests run in the background of a shell that has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("of_main", [True, False])
def test_an_interrupted_call_ends_and_others_go_on(service: tuple[FakeService, str], of_main: bool) -> None:
    """Also by a signal that another thread of the process gets: then nothing wakes the one that waits."""
    fake, address = service
    fake.world.add(pb.Operation(name="flights/noop/1", state=pb.RUNNING))
    main = threading.get_ident()

    def interrupt() -> None:
        until(lambda: bool(fake.calls["watch"]))
        signal.pthread_kill(main if of_main else threading.get_ident(), signal.SIGINT)

    # A busy machine may take its time; and nothing but the signal ends the call.
    with Client(address, connect_timeout_s=3600, timeout_s=3600) as client, ThreadPoolExecutor(1) as threads:
        interrupting = threads.submit(interrupt)
        with pytest.raises(KeyboardInterrupt):
            client.operation("flights/noop/1").wait()
        interrupting.result()
        assert client.operation("flights/noop/1").get().state is OperationState.RUNNING


def test_a_call_that_is_interrupted_while_it_is_handed_over_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop may be at work on it before the thread that is interrupted has got anything back."""
    begun, ended = threading.Event(), threading.Event()

    async def call() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    hand_over = asyncio.run_coroutine_threadsafe

    def interrupted(coroutine: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> None:
        hand_over(coroutine, loop)
        assert begun.wait(60)
        raise KeyboardInterrupt

    with Client("127.0.0.1:1") as client:
        monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", interrupted)
        with pytest.raises(KeyboardInterrupt):
            client._runner.run(call)
        monkeypatch.undo()
        assert ended.is_set()
