"""An etcd client whose transactions fail in chosen ways."""

import asyncio
from collections.abc import Callable
from enum import Enum

from distop.errors import EtcdOutOfSpace, EtcdUnavailable, OutcomeUnknown
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.txn import DeleteRange, Put, Txn, TxnResult


class Fault(Enum):
    """What becomes of one transaction."""

    LOST_REPLY = "it happens, and nobody learns of it"
    LOST_REQUEST = "it does not happen, and nobody learns of that"
    DOWN = "it certainly does not happen"
    FULL = "etcd refuses it for lack of space"
    FULL_YET_DONE = "etcd says so, too, and has done it"


class LossyClient(EtcdClient):
    """Transactions that write meet the given faults, one after the other; then all is well again."""

    def __init__(self, config: EtcdConfig) -> None:
        super().__init__(config)
        self.sent: list[Txn] = []
        """All transactions that were to write, whatever became of them."""
        self._faults: list[Fault] = []
        self._meets: Callable[[Txn], bool] = lambda txn: True
        self.meanwhile: list[Callable[[], object]] = []
        """What happens, in a thread, after the next faults: before the caller learns of anything."""

    def fail(self, *faults: Fault, when: Callable[[Txn], bool] = lambda txn: True) -> None:
        """Let the next writing transactions that ``when`` holds for meet these faults."""
        self._faults, self._meets = list(faults), when

    @property
    def spent(self) -> bool:
        """Whether all faults have been met."""
        return not self._faults

    async def txn(self, txn: Txn, *, timeout_s: float | None = None) -> TxnResult:
        if not any(isinstance(op, Put | DeleteRange | Txn) for op in txn.then):
            return await super().txn(txn, timeout_s=timeout_s)
        self.sent.append(txn)
        fault = self._faults.pop(0) if self._faults and self._meets(txn) else None
        if fault in (None, Fault.LOST_REPLY, Fault.FULL_YET_DONE):
            result = await super().txn(txn, timeout_s=timeout_s)
        if fault is None:
            return result
        if self.meanwhile:
            await asyncio.to_thread(self.meanwhile.pop(0))
        match fault:
            case Fault.LOST_REPLY:
                raise OutcomeUnknown("the reply was lost")
            case Fault.LOST_REQUEST:
                raise OutcomeUnknown("the request was lost")
            case Fault.DOWN:
                raise EtcdUnavailable
            case _:
                raise EtcdOutOfSpace


def puts(key: bytes) -> Callable[[Txn], bool]:
    """Whether a transaction would write ``key``."""
    return lambda txn: any(isinstance(op, Put) and op.key == key for op in txn.then)


def deletes(key: bytes) -> Callable[[Txn], bool]:
    """Whether a transaction would delete ``key`` by name."""
    return lambda txn: any(isinstance(op, DeleteRange) and op.key == key for op in txn.then)
