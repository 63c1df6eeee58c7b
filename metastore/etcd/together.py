"""Transactions of many that want to write at the same time, several in one request.

A request costs etcd and its callers about the same whether it carries one small transaction or thirty. So
those that come while some are under way gather, and go together, each with its own compares as a nested
transaction. Each belongs to a *lane*, a prefix of keys that no other lane's transactions touch. Few wait for
nobody. Where those of many lanes come one upon the other, requests keep a distance, the greater the more
lanes there are: some milliseconds, when all of them share the processors and need many times as long.
"""

from __future__ import annotations

import asyncio
import copy
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from contextvars import Context
from dataclasses import dataclass

from distop.errors import DistopError, EtcdUnavailable, OutcomeUnknown
from distop.metastore.etcd.config import deadline
from distop.metastore.etcd.txn import MAX_OPS, Txn, TxnResult

IN_FLIGHT = 2
"""Requests under way while others gather. The fewer there are, the more go together, and the less time of the
processor each of them takes; one that is slow must not hold all others up."""

MAX_TOGETHER = 32
"""Transactions in a request: etcd does nothing else while it executes one."""

FEW, LATELY_S = 8, 0.1
"""Lanes whose transactions, all of the last moments, wait for nobody."""

DISTANCE_EACH_S, LONGEST_DISTANCE_S = 0.0005, 0.01
"""From the beginning of a request to that of the next one: for each lane beyond these, and at the most."""

MAX_WEIGHT, MAX_BYTES = 32, 16_384
"""Of a transaction that may go with others."""

Send = Callable[[Txn, float | None], Awaitable[TxnResult]]
IsInLane = Callable[[bytes, bytes, bytes], bool]
"""Whether a lane has a key, or a range: lane, start, end."""


@dataclass(eq=False)
class _Waiting:
    txn: Txn
    weight: int
    answer: asyncio.Future[TxnResult]
    sent: bool = False


class Together:
    """What waits to be sent by one client; belongs to one event loop."""

    def __init__(self, send: Send, is_in_lane: IsInLane) -> None:
        self._send, self._is_in_lane = send, is_in_lane
        self._flying = 0
        self._began = -LONGEST_DISTANCE_S
        """When the last request did."""
        self._lately: OrderedDict[bytes, float] = OrderedDict()
        """When a lane was used last; of the last moments."""
        self._due: asyncio.TimerHandle | None = None
        self._waiting: deque[_Waiting] = deque()
        self._sending: set[asyncio.Task[None]] = set()

    async def txn(self, txn: Txn, timeout_s: float) -> TxnResult:
        """The result of a transaction with a lane; raises as :meth:`EtcdClient.txn`."""
        weight = txn.weight()
        if weight > MAX_WEIGHT or txn.size() > MAX_BYTES or self._leaves_lane(txn):
            return await self._send(txn, timeout_s)
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._lately[txn.lane] = now
        self._lately.move_to_end(txn.lane)
        if self._flying < IN_FLIGHT and not self._waiting and now >= self._next_at(now):
            self._flying += 1
            self._began = now
            try:
                return await self._send(txn, timeout_s)
            finally:
                self._landed()
        entry = _Waiting(txn, weight, loop.create_future())
        self._waiting.append(entry)
        self._send_what_may()
        try:
            async with asyncio.timeout_at(min(loop.time() + timeout_s, deadline())) as limit:
                return await entry.answer
        except TimeoutError:
            if not limit.expired():
                raise
            failure = OutcomeUnknown if entry.sent else EtcdUnavailable
            raise failure("etcd gave no answer to a write in time") from None

    def _leaves_lane(self, txn: Txn) -> bool:
        """Whether another lane's transaction may touch a key of it. In one request both would be compared
        with the state before both. A step of a user's own may contribute such a key to a finish."""
        lane = txn.lane
        for key, end in txn.ranges():
            # Most are single keys below the prefix, which is quickly seen.
            if (end or not key.startswith(lane)) and not self._is_in_lane(lane, key, end):
                return True
        return False

    def _next_at(self, now: float) -> float:
        """When the next request may begin, by the clock of the event loop."""
        while self._lately and next(iter(self._lately.values())) < now - LATELY_S:
            self._lately.popitem(last=False)
        many = len(self._lately) - FEW
        return self._began + min(many * DISTANCE_EACH_S, LONGEST_DISTANCE_S) if many > 0 else now

    def _landed(self) -> None:
        self._flying -= 1
        self._send_what_may()

    def _send_what_may(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting and self._flying < IN_FLIGHT:
            now = loop.time()
            if len(self._waiting) < MAX_TOGETHER and now < (at := self._next_at(now)):
                if self._due is None:
                    self._due = loop.call_at(at, self._is_due)
                return
            if not (group := self._gathered()):
                return
            self._flying += 1
            self._began = now
            # The caller whose request makes room for them has a deadline, which is not theirs.
            task = loop.create_task(self._send_group(group), context=Context())
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    def _is_due(self) -> None:
        self._due = None
        self._send_what_may()

    def _gathered(self) -> list[_Waiting]:
        """The next group, one of each lane, in the order in which they came."""
        group, stay = list[_Waiting](), list[_Waiting]()
        lanes, heaviest = set[bytes](), 0
        while self._waiting and len(group) < MAX_TOGETHER:
            entry = self._waiting.popleft()
            if entry.answer.done():
                continue  # nobody waits for it any more
            heavier = max(heaviest, entry.weight)
            if entry.txn.lane in lanes or len(group) + 1 + heavier > MAX_OPS:
                stay.append(entry)
                continue
            lanes.add(entry.txn.lane)
            heaviest = heavier
            group.append(entry)
        self._waiting.extendleft(reversed(stay))
        return group

    async def _send_group(self, group: list[_Waiting]) -> None:
        try:
            await self._settle(group)
        except BaseException as error:
            _fail(group, OutcomeUnknown(f"a write may have happened: {error!r}"))
            raise
        finally:
            self._landed()

    async def _settle(self, group: list[_Waiting]) -> None:
        for entry in group:
            entry.sent = True
        try:
            if len(group) == 1:
                _answer(group[0], await self._send(group[0].txn, None))
                return
            result = await self._send(Txn(then=tuple(entry.txn for entry in group)), None)
            for index, entry in enumerate(group):
                _answer(entry, result.nested(index))
        except DistopError as error:
            if len(group) == 1 or isinstance(error, OutcomeUnknown | EtcdUnavailable):
                _fail(group, error)
                return
            # Nothing was written: etcd has refused all for what one of them asks, such as an expired lease.
            for entry in group:
                await self._settle([entry])


def _answer(entry: _Waiting, result: TxnResult) -> None:
    if not entry.answer.done():
        entry.answer.set_result(result)


def _fail(group: list[_Waiting], error: DistopError) -> None:
    for entry in group:
        if not entry.answer.done():
            own = copy.copy(error)  # those who catch it add to its details
            own.details = dict(error.details)
            entry.answer.set_exception(own)
