"""The limits of concurrent calls of one caller, and the error beyond them."""

from contextlib import ExitStack
from typing import Any

import pytest

from distop.coordinator.api.calls import Callers, Limits, address_of
from distop.errors import Busy
from distop.proto.addresses import caller_of


@pytest.mark.parametrize("kind", ["call", "stream"])
def test_calls_in_progress_are_limited_for_each_caller_and_in_all(kind: str) -> None:
    """S1: one caller has its limit, all of them together have theirs, and what has ended counts no more."""
    callers = Callers(Limits(calls_each=2, calls=3, streams_each=2, streams=3))
    enter = getattr(callers, kind)
    with ExitStack() as held:
        held.enter_context(enter("a"))
        with enter("a"):
            with pytest.raises(Busy, match=r"2 .* of a are in progress") as told:
                held.enter_context(enter("a"))
            assert told.value.retry_after_s > 0
            with enter("b"), pytest.raises(Busy, match=r"3 .* are in progress here"):
                held.enter_context(enter("c"))
        held.enter_context(enter("a"))


def test_starts_come_back_at_the_pace_that_is_allowed() -> None:
    now = [0.0]
    callers = Callers(Limits(starts_per_s=10.0), clock=lambda: now[0])
    for _ in range(20):
        callers.start("a")
    with pytest.raises(Busy) as told:
        callers.start("a")
    callers.start("b")  # another caller has its own
    now[0] += told.value.retry_after_s
    callers.start("a")
    with pytest.raises(Busy):
        callers.start("a")
    now[0] += 3600
    for _ in range(20):
        callers.start("a")
    with pytest.raises(Busy):
        callers.start("a")


def test_callers_that_are_remembered_are_bounded() -> None:
    callers = Callers(Limits(starts_per_s=1.0))
    for number in range(10_000):
        callers.start(f"caller {number}")
    assert len(callers._starts) < 5_000


class Peer:
    def __init__(self, peer: str) -> None:
        self._peer = peer

    def peer(self) -> str:
        return self._peer


@pytest.mark.parametrize(
    ("peer", "address", "caller"),
    [
        ("ipv4:10.1.2.3:5000", "10.1.2.3", "10.1.2.3"),
        ("ipv6:%5B::1%5D:5000", "::1", "::/64"),
        ("ipv6:[2001:db8:1:2:3::4]:5000", "2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("ipv6:%5Bfe80::1%25eth0%5D:5000", "fe80::1", "fe80::/64"),
        ("ipv6:[::ffff:10.1.2.3]:5000", "10.1.2.3", "10.1.2.3"),
        ("unix:", "unix", "unix"),
        ("unknown", "unknown", "unknown"),
    ],
)
def test_a_caller_is_known_by_its_address(peer: str, address: str, caller: str) -> None:
    context: Any = Peer(peer)
    assert address_of(context) == address
    assert caller_of(address) == caller
