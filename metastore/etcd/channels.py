"""Channels to the members of etcd: TLS, keep-alive, and aetcd's stubs on top."""

from __future__ import annotations

import asyncio
import math
import re
import ssl
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from aetcd.rpc import rpc_pb2, rpc_pb2_grpc

from distop.errors import EtcdUnavailable
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.convert import txn_message, txn_result
from distop.metastore.etcd.failures import is_transient, says_token_is_old
from distop.metastore.etcd.txn import Txn, TxnResult
from distop.process.secret import Secret
from distop.process.threads import check_not_forked

_CA_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")
"""Where Linux distributions keep their trusted CAs."""

CHANNEL_OPTIONS = [
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 8 << 20),
    # Detects a dead connection within 15 s, also for a stream that only waits. That needs the timeout of
    # pings (a minute by default), not that of keep-alives; and pings must continue without data.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 50),
    # Also the time limit of a new connection, TLS included.
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # A proxy in the environment is for the world outside.
    ("grpc.enable_http_proxy", 0),
    # Two clients of one process (tests, several incarnations) must not share one connection.
    ("grpc.use_local_subchannel_pool", 1),
]


JUDGED_FOR_S = 60.0
"""How long the version of a member is remembered: another one may be started in its place."""


class MemberStubs:
    """The services of one member. Made once: making the stubs takes a good part of a call."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.kv: Any = rpc_pb2_grpc.KVStub(channel)
        self.lease: Any = rpc_pb2_grpc.LeaseStub(channel)
        self.watch: Any = rpc_pb2_grpc.WatchStub(channel)
        self.auth: Any = rpc_pb2_grpc.AuthStub(channel)
        self.maintenance: Any = rpc_pb2_grpc.MaintenanceStub(channel)
        self._reads_in_txns, self._judged_at = False, -math.inf

    async def read_txn(self, reading: Txn, *, metadata: Any, timeout: float) -> TxnResult:
        """The result of a transaction that only reads. Some versions (see :func:`reads_in_txns`) get it
        nested in another one: that never counts as one that only reads, and goes through the log."""
        now = asyncio.get_running_loop().time()
        if now - self._judged_at > JUDGED_FOR_S:
            try:
                status = rpc_pb2.StatusRequest()
                version = (await self.maintenance.Status(status, metadata=metadata, timeout=timeout)).version
            except grpc.aio.AioRpcError as error:
                if is_transient(error) or says_token_is_old(error):
                    raise
                version = ""  # some give it to root only
            self._reads_in_txns, self._judged_at = reads_in_txns(version), now
        sent = reading if self._reads_in_txns else Txn(then=(reading,))
        reply = await self.kv.Txn(txn_message(sent), metadata=metadata, timeout=timeout)
        result = txn_result(reply, reply.header.revision)
        return result if sent is reading else result.nested(0)


def reads_in_txns(version: str) -> bool:
    """Whether etcd of this version can be sent a transaction that only reads.

    From 3.5.0 to 3.5.6 such a transaction ends the *server* if its caller leaves meanwhile (etcd issues 14110
    and 14891). Before 3.4.23 it was not tried.
    """
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:3])
    return len(numbers) == 3 and ((3, 4, 23) <= numbers < (3, 5) or numbers >= (3, 5, 7))


def open_channel(config: EtcdConfig, endpoint: str) -> grpc.aio.Channel:
    """A channel that connects when it is first used."""
    check_not_forked()
    if not config.tls:
        return grpc.aio.insecure_channel(endpoint, options=CHANNEL_OPTIONS)
    return grpc.aio.secure_channel(endpoint, _credentials(config), options=CHANNEL_OPTIONS)


def open_blocking_channel(config: EtcdConfig, endpoint: str) -> grpc.Channel:
    """The same for a thread without an event loop."""
    check_not_forked()
    if not config.tls:
        return grpc.insecure_channel(endpoint, options=CHANNEL_OPTIONS)
    return grpc.secure_channel(endpoint, _credentials(config), options=CHANNEL_OPTIONS)


def _credentials(config: EtcdConfig) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(
        _roots(config),
        _content(config.key) if config.key else None,
        _content(config.cert) if config.cert else None,
    )


def _roots(config: EtcdConfig) -> bytes | None:
    """The CAs to trust: the configured one, else the system's; ``None``: those that gRPC contains."""
    if config.ca_cert:
        return _content(config.ca_cert)
    bundles = [ssl.get_default_verify_paths().cafile or "", *_CA_BUNDLES]
    found = next((path for path in bundles if path and Path(path).is_file()), None)
    return _content(found) if found else None


def _content(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:  # perhaps it is being replaced
        raise EtcdUnavailable(f"a certificate, key or CA for etcd cannot be read: {error}") from None


def authenticate_request(config: EtcdConfig) -> rpc_pb2.AuthenticateRequest:
    """Requests a token from etcd."""
    return rpc_pb2.AuthenticateRequest(name=config.user, password=Secret(config.password).reveal())
