"""Our values to etcd's protobuf messages and back."""

from __future__ import annotations

from typing import Any

from aetcd.rpc import kv_pb2, rpc_pb2

from distop.metastore.txn import Compare, Delete, Get, KeyValue, Op, OpResult, Put, Txn, TxnResult

_TARGETS = {
    "mod": (rpc_pb2.Compare.MOD, "mod_revision"),
    "create": (rpc_pb2.Compare.CREATE, "create_revision"),
    "value": (rpc_pb2.Compare.VALUE, "value"),
    "lease": (rpc_pb2.Compare.LEASE, "lease"),
}


def compare_message(compare: Compare) -> Any:
    target, field = _TARGETS[compare.target]
    return rpc_pb2.Compare(
        result=rpc_pb2.Compare.EQUAL, target=target, key=compare.key, **{field: compare.expected}
    )


def op_message(op: Op) -> Any:
    match op:
        case Put():
            return rpc_pb2.RequestOp(
                request_put=rpc_pb2.PutRequest(key=op.key, value=op.value, lease=op.lease)
            )
        case Delete():
            return rpc_pb2.RequestOp(
                request_delete_range=rpc_pb2.DeleteRangeRequest(key=op.key, range_end=op.end)
            )
        case Get():
            return rpc_pb2.RequestOp(
                request_range=rpc_pb2.RangeRequest(
                    key=op.key, range_end=op.end, keys_only=op.keys_only, limit=op.limit
                )
            )
        case Txn():
            return rpc_pb2.RequestOp(request_txn=txn_message(op))


def txn_message(txn: Txn) -> Any:
    return rpc_pb2.TxnRequest(
        compare=[compare_message(compare) for compare in txn.compares],
        success=[op_message(op) for op in txn.then],
        failure=[op_message(op) for op in txn.otherwise],
    )


def key_value(message: kv_pb2.KeyValue) -> KeyValue:
    return KeyValue(message.key, message.value, message.mod_revision, message.create_revision, message.lease)


def txn_result(response: Any, revision: int) -> TxnResult:
    """``revision`` is that of the outermost header; nested responses carry none of their own."""
    return TxnResult(
        response.succeeded, revision, tuple(_op_result(item, revision) for item in response.responses)
    )


def _op_result(item: Any, revision: int) -> OpResult:
    kind = item.WhichOneof("response")
    if kind == "response_put":
        return None
    if kind == "response_range":
        return [key_value(kv) for kv in item.response_range.kvs]
    if kind == "response_delete_range":
        return int(item.response_delete_range.deleted)
    return txn_result(item.response_txn, revision)
