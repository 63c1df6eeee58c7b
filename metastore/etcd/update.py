"""Changes etcd: one transaction until its outcome is known, and *read, decide, send* until a change is made.

A write to etcd may have happened although its reply was lost, or although etcd reports that it is full. Every
change of the metastore uses one of the two functions here, which alone handle that:

- :func:`settle` sends a transaction that is fixed until it is known whether it happened;
- :func:`update` reads, lets its caller decide on a transaction, settles it, and starts again when another
  process was faster.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import tenacity
from tenacity import wait_random_exponential as backoff
from tenacity.stop import stop_base

from distop.errors import Busy, DistopError, EtcdOutOfSpace, LeaseLost, OutcomeUnknown
from distop.metastore.etcd.config import deadline_is_over
from distop.metastore.etcd.txn import Get, Txn, TxnResult

if TYPE_CHECKING:
    # Processes that have no client of etcd import this module, too, and must not load gRPC.
    from distop.metastore.etcd.client import EtcdClient

A = TypeVar("A")

PATIENCE_S = 60.0
"""How long to wait, if at all, for an etcd that does not answer; and how long a change may lose races."""

MAX_TRIES = 8
"""Attempts at a transaction while only a lost reply is a reason to repeat it."""

MAX_RACES = 60
"""How many races in a row a change may lose; each lost race means that another change was made."""


class Settled(TxnResult, frozen=True):
    """The known outcome of a transaction."""

    doubt: bool = False
    """Whether the outcome of an earlier copy was unknown: when this one was refused, that copy may have made
    the present state."""


async def settle(
    client: EtcdClient,
    txn: Txn | Callable[[bool], Txn],
    *,
    patience_s: float | None = None,
    replied: Callable[[], None] | None = None,
) -> Settled:
    """Send a transaction until its outcome is known.

    It must be safe to send twice: what it writes makes its compares fail, or is the same the second time. Its
    ``otherwise`` branch only reads what distinguishes an earlier copy of it from another process's write.

    Parameters
    ----------
    txn:
        The transaction; or a function that makes it, given whether an earlier copy may have reached etcd.
    patience_s:
        Seconds for which it is retried while etcd is unreachable or full. ``None``: only a lost reply is a
        reason to repeat it, up to :data:`MAX_TRIES` times within four deadlines of a call.
    replied:
        Called with each reply: the crash point after the transaction is there, so that it can lose one.

    Raises
    ------
    OutcomeUnknown
        A reply was lost, and none has come since. Also when a later copy was not sent, or was refused: the
        first one may still happen, so nothing may be concluded and no file deleted.
    EtcdOutOfSpace
        etcd is full. If the transaction's own writes make its compares fail, it certainly did not happen.
    DistopError
        The last error, when no copy can have happened.
    """
    doubt = False

    async def send() -> Settled:
        nonlocal doubt
        current = txn if isinstance(txn, Txn) else txn(doubt)
        before = doubt
        try:
            result = await client.txn(current)
            if replied is not None:
                replied()
        except EtcdOutOfSpace:
            doubt = True
            if any(isinstance(op, Txn) and op.writes() for op in current.then):
                raise  # the compares of the outer one do not show whether a nested one happened
            outcome = await _outcome_when_full(client, current)
            if outcome is not None:
                return outcome
            doubt = before
            raise
        except OutcomeUnknown:
            doubt = True
            raise
        return Settled(result.succeeded, result.revision, result.results, doubt=doubt)

    def goes_on(error: BaseException) -> bool:
        return isinstance(error, DistopError) and (doubt or (patience_s is not None and _may_pass(error)))

    if patience_s is None:
        stop = tenacity.stop_any(
            tenacity.stop_after_attempt(MAX_TRIES - 1),
            tenacity.stop_after_delay(4 * client.config.timeout_s),
            _TooLate(),
        )
    else:
        stop = tenacity.stop_any(tenacity.stop_after_delay(patience_s), _TooLate())
    try:
        try:
            return await send()  # nearly always enough
        except DistopError as error:
            if not goes_on(error) or deadline_is_over():
                raise
        await asyncio.sleep(random.uniform(0.0, 0.02))
        wait = backoff(multiplier=0.02, max=1.0)
        return await tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(goes_on), wait=wait, stop=stop, reraise=True
        )(send)
    except DistopError as error:
        if not doubt or type(error) is OutcomeUnknown:
            raise
        raise OutcomeUnknown(f"a write may have happened: {error.message}", details=error.details) from error


class _TooLate(stop_base):
    """The caller has stopped waiting."""

    def __call__(self, retry_state: tenacity.RetryCallState) -> bool:
        return deadline_is_over()


def _may_pass(error: DistopError) -> bool:
    # An expired lease never comes back, although a new session may try the same thing.
    return error.retryable and not isinstance(error, LeaseLost)


async def _outcome_when_full(client: EtcdClient, txn: Txn) -> Settled | None:
    """The state after a full etcd has refused a transaction; ``None`` if it certainly did not happen.

    etcd also refuses what it has just done. Then something that the transaction compared has changed.
    """
    compared = tuple(Get(compare.key, compare.end, limit=1) for compare in txn.compares)
    if not compared:
        return None
    read = await client.txn(Txn(then=(*txn.otherwise, *compared)))  # a full etcd can still be read
    first = len(txn.otherwise)
    if all(compare.holds(read.single(first + at, compare.key)) for at, compare in enumerate(txn.compares)):
        return None
    return Settled(False, read.revision, read.results[:first], doubt=True)


async def update(
    client: EtcdClient,
    reads: Sequence[Get],
    decide: Callable[[TxnResult], Awaitable[tuple[Txn | None, A]]],
    recognise: Callable[[TxnResult], A | None] | None = None,
    *,
    subject: str,
    first: TxnResult | None = None,
    patience_s: float | None = None,
    replied: Callable[[], None] | None = None,
) -> tuple[A, int]:
    """Read, decide, send; and again, when another process has changed what was read.

    Parameters
    ----------
    reads:
        What is read, at one revision, before each decision.
    decide:
        Makes the transaction from the read, and the answer for when it happens; without a transaction the
        answer holds as it is. An error it raises ends the update, and nothing has been written: so the
        transaction must compare everything that a refusal depends on. That transaction reads nothing: its
        ``otherwise`` branch is ``reads``.
    recognise:
        Called after a lost reply, with the read of a refused copy: returns the answer if the update's own
        write is there, else ``None``. Not needed where ``decide`` recognises it.
    subject:
        Name of what is changed, for an error.
    first:
        Given to the first ``decide``, instead of reading.
    patience_s, replied:
        As of :func:`settle`.

    Returns
    -------
    The answer, and the revision it was written or read at.

    Raises
    ------
    Busy
        Too many races were lost in a row. Nothing was written.
    OutcomeUnknown
        As of :func:`settle`; and when no attempt is left to find out who has won.
    DistopError
        As of :func:`settle` and ``decide``.
    """
    known = first

    async def attempt() -> tuple[A, int]:
        nonlocal known
        read, known = known, None
        if read is None:
            read = await client.read_at_once(reads)
        txn, answer = await decide(read)
        if txn is None:
            return answer, read.revision
        txn = Txn(txn.compares, txn.then, tuple(reads), txn.lane)
        result = await settle(client, txn, patience_s=patience_s, replied=replied)
        if result.succeeded:
            return answer, result.revision
        if result.doubt:
            own = recognise(result) if recognise is not None else None
            if own is not None:
                return own, result.revision
            known = result  # this decides, and not a later read, which might fail
        raise tenacity.TryAgain

    def too_busy(_: tenacity.RetryCallState) -> tuple[A, int]:
        if known is not None:
            raise OutcomeUnknown(f"the last try to change {subject} may have happened")
        raise Busy(f"{subject} is too busy: {MAX_RACES} tries in a row lost a race")

    try:
        return await attempt()
    except tenacity.TryAgain:
        await asyncio.sleep(random.uniform(0.0, 0.01))

    # Random back-off, so that many writers of one key do not retry in step.
    retrying = tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception_type(tenacity.TryAgain),
        wait=backoff(multiplier=0.01, exp_base=1.3, max=1.0),
        stop=tenacity.stop_any(
            tenacity.stop_after_attempt(MAX_RACES - 1), tenacity.stop_after_delay(PATIENCE_S), _TooLate()
        ),
        retry_error_callback=too_busy,
    )
    return await retrying(attempt)
