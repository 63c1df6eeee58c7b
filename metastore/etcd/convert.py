"""Converts our values to etcd's protobuf messages and back.

Tens of thousands of marks a second pass through here, so messages are filled in place: building them from
parts would copy each part.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from aetcd.rpc import kv_pb2, rpc_pb2

from distop.metastore.etcd.txn import Compare, Get, KeyValue, Op, OpResult, Put, Txn, TxnResult

_TARGETS = {
    "mod": (rpc_pb2.Compare.MOD, "mod_revision"),
    "create": (rpc_pb2.Compare.CREATE, "create_revision"),
    "value": (rpc_pb2.Compare.VALUE, "value"),
}


def txn_message(txn: Txn) -> Any:
    """A transaction, nested ones included."""
    message = rpc_pb2.TxnRequest()
    _fill_txn(message, txn)
    return message


def _fill_txn(message: Any, txn: Txn) -> None:
    for compare in txn.compares:
        _fill_compare(message.compare.add(), compare)
    _fill_ops(message.success, txn.then)
    _fill_ops(message.failure, txn.otherwise)


def _fill_compare(message: Any, compare: Compare) -> None:
    target, field = _TARGETS[compare.target]
    message.key, message.target = compare.key, target  # result: EQUAL is the default
    if compare.end:
        message.range_end = compare.end
    setattr(message, field, compare.expected)


def _fill_ops(messages: Any, ops: Iterable[Op]) -> None:
    for op in ops:
        message = messages.add()
        if type(op) is Put:
            message = message.request_put
            message.key, message.value = op.key, op.value
            if op.lease:
                message.lease = op.lease
        elif type(op) is Txn:
            _fill_txn(message.request_txn, op)
        elif type(op) is Get:
            message = message.request_range
            message.key, message.range_end = op.key, op.end
            message.keys_only, message.limit = op.keys_only, op.limit
            message.revision = op.revision
        else:
            message = message.request_delete_range
            message.key, message.range_end = op.key, op.end


def key_value(message: kv_pb2.KeyValue) -> KeyValue:
    """One key as etcd describes it."""
    return KeyValue(message.key, message.value, message.mod_revision, message.create_revision, message.lease)


def txn_result(response: Any, revision: int) -> TxnResult:
    """``revision`` is that of the outermost header; nested responses have none of their own."""
    results: list[OpResult] = []
    counts: list[int] = []
    for item in response.responses:
        kind, count = item.WhichOneof("response"), 0
        if kind == "response_put":
            results.append(None)
        elif kind == "response_txn":
            results.append(txn_result(item.response_txn, revision))
        elif kind == "response_range":
            found = item.response_range
            count = found.count
            results.append([key_value(kv) for kv in found.kvs])
        else:
            results.append(int(item.response_delete_range.deleted))
        counts.append(count)
    return TxnResult(response.succeeded, revision, tuple(results), tuple(counts))
