"""The event loop in a thread that the blocking client calls: nobody waits for ever for it (U4)."""

import asyncio
import concurrent.futures
import threading

import pytest

from distop.errors import PreconditionFailed
from distop.process.threads import LoopThread, cancel_others, result_of


class Owner:
    """Whose end is that of the loop."""


async def _work() -> None:
    await asyncio.sleep(3600)


def test_a_call_that_comes_while_the_loop_is_being_closed_ends() -> None:
    """U4: as do calls in progress, and those that come afterwards."""
    closing, others, owner = threading.Event(), LoopThread("closing"), Owner()
    let = threading.Event()

    async def close() -> None:
        await cancel_others()
        closing.set()
        await asyncio.to_thread(let.wait, 60)

    others.belongs_to(owner, close)
    before = others.submit(_work)
    closer = threading.Thread(target=others.close)
    closer.start()
    assert closing.wait(60)
    meanwhile = others.submit(_work)
    let.set()
    for waiting in (before, meanwhile):
        with pytest.raises(concurrent.futures.CancelledError):
            result_of(waiting)
    closer.join(60)
    with pytest.raises(PreconditionFailed, match="closed"):
        others.submit(_work)
