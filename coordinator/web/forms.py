"""Forms that do something: who may send one, and that each does it once.

Forms are signed with the secret of the installation: each of its coordinators accepts them. The one that acts
on a form claims it first, by a key with a lease that outlives the form. So it counts once, to whichever of
them it is sent, and however often.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from hashlib import sha256

from distop.errors import DistopError, Exhausted, InvalidArgument, Kind, PreconditionFailed
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import Get, KeyValue, Put, Txn, absent
from distop.metastore.etcd.update import settle
from distop.metastore.records.names import prefix_end
from distop.metastore.records.record import decode, encode
from distop.metastore.records.table import AnswerRecord

FORM_S = 3600.0
"""Seconds for which a form can be sent."""

CLAIM_S = 2 * int(FORM_S)
"""Seconds for which it is known what was sent: longer than a form can be, also by clocks that differ."""

MAX_SENT = 10_000
"""Forms of one caller of which that is known at a time: each has a lease."""

_IN_DOUBT = frozenset({Kind.UNAVAILABLE, Kind.DEADLINE, Kind.INTERNAL})
"""Errors after which something may have been done."""


class Forms:
    """The forms of one page; belongs to one event loop.

    Parameters
    ----------
    secret:
        Returns the secret of the installation.
    clock:
        Seconds since the Unix epoch.
    """

    def __init__(
        self,
        client: EtcdClient,
        secret: Callable[[], Awaitable[bytes]],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client, self._secret, self._clock = client, secret, clock
        self._acting: dict[str, asyncio.Task[str]] = {}

    async def sign(self, call_id: str, holder: str) -> str:
        """The token of a form. ``holder``: who may send it, such as a session and its subject."""
        shown = repr(self._clock())
        return f"{shown}:{await self._mac(shown, call_id, holder)}"

    async def once(
        self,
        token: str,
        call_id: str,
        holder: str,
        act: Callable[[], Awaitable[str]],
        *,
        subject: str = "",
    ) -> str:
        """Act on a form, or return what came of it when it was sent before.

        One that was refused may be sent again. A sender that goes away stops nothing.

        Parameters
        ----------
        subject:
            The verified name of the sender, part of ``holder``: its forms are counted.

        Raises
        ------
        Exhausted
            The sender has sent :data:`MAX_SENT` forms within :data:`CLAIM_S`.
        InvalidArgument
            The form is not one that was shown to this sender, or is too old.
        PreconditionFailed
            It was sent before, and what came of that is not known: it may still be under way.
        """
        shown, _, mac = token.partition(":")
        if not hmac.compare_digest(mac.encode(), (await self._mac(shown, call_id, holder)).encode()):
            raise InvalidArgument(
                "this form was not shown to you", hint="open it again", details={"field": "form"}
            )
        if float(shown) <= self._clock() - FORM_S:
            raise InvalidArgument("this form is too old", hint="open it again", details={"field": "form"})
        if (task := self._acting.get(call_id)) is None:
            task = self._acting[call_id] = asyncio.create_task(self._claimed(subject, call_id, act))
            task.add_done_callback(lambda done: self._forget(call_id, done))
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Stop what is being done."""
        tasks = list(self._acting.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _claimed(self, subject: str, call_id: str, act: Callable[[], Awaitable[str]]) -> str:
        of_sender = f"form.{sha256(subject.encode()).hexdigest()[:16]}."
        prefix, own = self._client.keyspace.answer(of_sender), secrets.token_hex(8)
        key = self._client.keyspace.answer(f"{of_sender}{call_id}")
        if (sent := await self._client.get(key)).exists:
            return _outcome_of(sent)
        # Above the limit there are a few, of forms that are sent at the same time.
        counted = await self._client.get_range(prefix, prefix_end(prefix), keys_only=True, limit=1)
        if counted.count >= MAX_SENT:
            raise Exhausted(
                f"{MAX_SENT:,} forms were sent within {CLAIM_S // 3600} hours, the limit for one caller",
                hint="call distop on the command line, or send it again later",
            )
        lease = await self._client.lease_grant(CLAIM_S)
        claim = Put(key, encode(AnswerRecord(digest=own)), lease)
        try:
            claimed = await settle(self._client, Txn((absent(key),), (claim,), (Get(key),)))
        except DistopError:
            await self._give_back(lease)  # nothing has been done, and an old copy of the claim fails now
            raise
        # Refused: another coordinator was faster, or an earlier copy of this claim.
        if not claimed.succeeded and _sent(claimed.single(0, key)).digest != own:
            await self._give_back(lease)
            return _outcome_of(claimed.single(0, key))
        try:
            address = await act()
        except DistopError as error:
            if error.kind not in _IN_DOUBT:
                await self._give_back(lease)
            raise
        done = Put(key, encode(AnswerRecord(digest=own, result=address)), lease)
        with suppress(DistopError):  # without it, a sender of the form again has to look
            await settle(self._client, Txn(then=(done,)))
        return address

    async def _give_back(self, lease: int) -> None:
        with suppress(DistopError):  # then the form cannot be sent again
            await self._client.lease_revoke(lease)

    def _forget(self, call_id: str, task: asyncio.Task[str]) -> None:
        self._acting.pop(call_id, None)
        if not task.cancelled():
            task.exception()  # its sender may be gone

    async def _mac(self, *parts: str) -> str:
        return hmac.digest(await self._secret(), "\n".join(("form", *parts)).encode(), "sha256").hex()


def _sent(kv: KeyValue) -> AnswerRecord:
    return decode(kv.value, AnswerRecord, kv.key)


def _outcome_of(kv: KeyValue) -> str:
    """Where one sees the effect of a form that was sent before."""
    if not (address := _sent(kv).result):
        raise PreconditionFailed(
            "this form was sent before, and what came of it is not known: it may still be under way",
            hint="look at it again",
        )
    return address
