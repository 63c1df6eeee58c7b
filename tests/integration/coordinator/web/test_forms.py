"""Forms of the page count once, to whichever coordinator they are sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from distop.coordinator.web.forms import FORM_S, Forms
from distop.errors import Exhausted, InvalidArgument, PreconditionFailed, Unavailable
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import TxnResult
from distop.metastore.members.installation import page_secret

Open = Callable[..., Forms]


class Clock:
    now = 1e9

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def page(client: EtcdClient, clock: Clock) -> Open:
    """Makes the forms of one more coordinator."""
    return lambda: Forms(client, lambda: page_secret(client), clock=clock)


async def test_a_form_counts_once_wherever_it_is_sent(page: Open, clock: Clock) -> None:
    """S5: also after a restart of the one that has shown it, and not when it is too old."""
    done, here, there = list[str](), page(), page()

    async def act() -> str:
        done.append("")
        return "/"

    token = await here.sign("r", "me")
    assert [await to.once(token, "r", "me", act) for to in (there, here, page())] == ["/"] * 3
    assert len(done) == 1
    for call_id, holder in (("other", "me"), ("r", "you")):
        with pytest.raises(InvalidArgument, match="not shown to you"):
            await there.once(token, call_id, holder, act)
    late = await here.sign("late", "me")
    clock.now += FORM_S
    with pytest.raises(InvalidArgument, match="too old"):
        await there.once(late, "late", "me", act)
    assert len(done) == 1


async def test_a_form_that_was_refused_may_be_sent_again(page: Open) -> None:
    done, here, there = list[str](), page(), page()

    async def act() -> str:
        done.append("")
        if len(done) == 1:
            raise InvalidArgument("type the name")
        return "/"

    token = await here.sign("r", "me")
    with pytest.raises(InvalidArgument):
        await here.once(token, "r", "me", act)
    assert await there.once(token, "r", "me", act) == "/"


async def test_a_form_whose_outcome_is_unknown_does_nothing_more(page: Open) -> None:
    """S5: a reply was lost, or the coordinator that acts on it was killed."""

    async def act() -> str:
        raise Unavailable("no reply")

    here = page()
    token = await here.sign("r", "me")
    with pytest.raises(Unavailable):
        await here.once(token, "r", "me", act)
    for form in (here, page()):
        with pytest.raises(PreconditionFailed, match="was sent before"):
            await form.once(token, "r", "me", act)


async def test_a_sender_that_goes_away_stops_nothing(page: Open) -> None:
    here, begun, may = page(), asyncio.Event(), asyncio.Event()

    async def act() -> str:
        begun.set()
        await may.wait()
        return "/"

    token = await here.sign("r", "me")
    first = asyncio.create_task(here.once(token, "r", "me", act))
    await begun.wait()
    first.cancel()
    second = asyncio.create_task(here.once(token, "r", "me", act))
    with pytest.raises(PreconditionFailed, match="under way"):
        await page().once(token, "r", "me", act)
    may.set()
    assert await second == "/"


async def test_a_claim_that_does_not_count_gives_its_lease_back(
    page: Open, client: EtcdClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G3: one that lost the race, and one that etcd did not answer, whose form may be sent again."""
    held, grant, revoke = set[int](), client.lease_grant, client.lease_revoke

    async def granted(ttl_s: int) -> int:
        held.add(lease := await grant(ttl_s))
        return lease

    async def revoked(lease: int) -> None:
        await revoke(lease)
        held.discard(lease)

    async def unanswered(*_: object, **__: object) -> TxnResult:
        raise Unavailable("no reply")

    async def act() -> str:
        return "/"

    monkeypatch.setattr(client, "lease_grant", granted)
    monkeypatch.setattr(client, "lease_revoke", revoked)
    here, there = page(), page()
    token = await here.sign("r", "me")
    with monkeypatch.context() as patch:
        patch.setattr(client, "txn", unanswered)
        with pytest.raises(Unavailable):
            await here.once(token, "r", "me", act)
    assert not held
    sent = [form.once(token, "r", "me", act) for form in (here, there)]
    assert "/" in await asyncio.gather(*sent, return_exceptions=True)
    assert len(held) == 1


async def test_the_forms_of_one_sender_are_bounded(page: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """G3: each holds a lease of etcd. One that was refused does not, and other senders are not held up."""
    monkeypatch.setattr("distop.coordinator.web.forms.MAX_SENT", 2)
    here, refusals = page(), [InvalidArgument("type the name")]

    async def act() -> str:
        if refusals:
            raise refusals.pop()
        return "/"

    async def send(call_id: str, subject: str) -> str:
        token = await here.sign(call_id, subject)
        return await here.once(token, call_id, subject, act, subject=subject)

    with pytest.raises(InvalidArgument):
        await send("0", "me")
    for call_id in ("0", "1"):
        assert await send(call_id, "me") == "/"
    with pytest.raises(Exhausted, match="the limit for one caller"):
        await send("2", "me")
    assert await send("1", "me") == "/"
    assert await send("2", "you") == "/"
