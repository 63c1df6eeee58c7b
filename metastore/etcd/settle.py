"""Sending a transaction until its outcome is known.

Only for transactions that are safe to send twice: whose compares let only one copy happen, and whose
``otherwise`` branch reads what tells "an earlier copy of mine" from "somebody else".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt, stop_after_delay, stop_any
from tenacity import wait_random_exponential as backoff

from distop.errors import DistopError, LeaseLost, OutcomeUnknown
from distop.metastore.etcd.txn import Txn, TxnResult

if TYPE_CHECKING:
    # Workers that only send marks through a sidecar import this module, and must not pay for gRPC.
    from distop.metastore.etcd.client import EtcdClient

PATIENCE_S = 60.0
"""How long a transaction is sent again while etcd does not answer."""

MAX_TRIES = 1000
"""How often, at most; with the pauses between them, patience ends long before."""


async def settle(
    client: EtcdClient,
    txn: Txn | Callable[[bool], Txn],
    *,
    patience_s: float = PATIENCE_S,
    tries: int = MAX_TRIES,
    insist: bool = True,
    replied: Callable[[], None] | None = None,
) -> TxnResult:
    """Send a transaction until its outcome is known.

    Parameters
    ----------
    txn:
        The transaction; or what makes it, given whether an earlier copy of it may have reached etcd.
    patience_s:
        Seconds after which it gives up.
    tries:
        How often it is sent at most.
    insist:
        Whether to wait for an etcd that is away, too. Else only a lost reply is a reason to send again.
    replied:
        Called with each reply; where the crash point after the transaction stands, so that it can lose one.

    Raises
    ------
    OutcomeUnknown
        A reply was lost, and none came since. Also when a later try was not sent, or refused (for lack of
        space, say): the first one may still have happened, so nothing may be concluded and no file deleted.
    DistopError
        The last error, when no copy can have happened.
    """
    doubt = False

    async def send() -> TxnResult:
        nonlocal doubt
        try:
            result = await client.txn(txn if isinstance(txn, Txn) else txn(doubt))
            if replied is not None:
                replied()
            return result
        except OutcomeUnknown:
            doubt = True
            raise

    def goes_on(error: BaseException) -> bool:
        return isinstance(error, DistopError) and (doubt or (insist and _may_pass(error)))

    retrying = AsyncRetrying(
        retry=retry_if_exception(goes_on),
        wait=backoff(multiplier=0.02, max=1.0),
        stop=stop_any(stop_after_delay(patience_s), stop_after_attempt(tries)),
        reraise=True,
    )
    try:
        return await retrying(send)
    except DistopError as error:
        if not doubt or isinstance(error, OutcomeUnknown):
            raise
        raise OutcomeUnknown(f"a write may have happened: {error.message}", details=error.details) from error


def _may_pass(error: DistopError) -> bool:
    # An expired lease never comes back, although a new session may try the same thing.
    return error.retryable and not isinstance(error, LeaseLost)
