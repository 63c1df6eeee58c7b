"""Connections to the members of etcd: how they are opened, which one is used, and what their failures mean.

A failed call goes to another member if that cannot repeat a write. Failures of gRPC and of etcd become errors
of distop here. Values become etcd's protobuf messages and back: tens of thousands of writes a second pass
through, so messages are filled in place, since building them from parts would copy each part.
"""

from __future__ import annotations

import asyncio
import math
import re
import ssl
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, TypeAlias

import grpc
import grpc.aio
from aetcd.rpc import kv_pb2, rpc_pb2, rpc_pb2_grpc

from distop import errors
from distop.metastore.etcd import txn as etcd
from distop.metastore.etcd.config import EtcdConfig, deadline
from distop.metastore.etcd.outage import Outage
from distop.process.secret import Secret
from distop.process.threads import check_not_forked

_TARGETS = {
    "mod": (rpc_pb2.Compare.MOD, "mod_revision"),
    "create": (rpc_pb2.Compare.CREATE, "create_revision"),
    "value": (rpc_pb2.Compare.VALUE, "value"),
}

Failure: TypeAlias = grpc.aio.AioRpcError | TimeoutError
"""How a call can fail; a :class:`TimeoutError` means that the call was not even sent in time."""

_TRANSIENT = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
)

# gRPC's messages for a request that never left this process. Any other may have reached the server.
_NEVER_SENT = ("failed to connect to all addresses", "connections to all backends failing", "no leader")

# etcd's messages for rejected credentials, under several status codes.
_REFUSALS = ("authentication failed", "user name is empty", "invalid auth token", "permission denied")
_OLD_TOKEN = ("invalid auth token", "revision of auth store is old")

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


def txn_message(txn: etcd.Txn) -> Any:
    """A transaction, nested ones included."""
    message = rpc_pb2.TxnRequest()
    _fill_txn(message, txn)
    return message


def _fill_txn(message: Any, txn: etcd.Txn) -> None:
    for compare in txn.compares:
        _fill_compare(message.compare.add(), compare)
    _fill_ops(message.success, txn.then)
    _fill_ops(message.failure, txn.otherwise)


def _fill_compare(message: Any, compare: etcd.Compare) -> None:
    target, field = _TARGETS[compare.target]
    message.key, message.target = compare.key, target  # result: EQUAL is the default
    if compare.end:
        message.range_end = compare.end
    setattr(message, field, compare.expected)


def _fill_ops(messages: Any, ops: Iterable[etcd.Op]) -> None:
    for op in ops:
        message = messages.add()
        if type(op) is etcd.Put:
            message = message.request_put
            message.key, message.value = op.key, op.value
            if op.lease:
                message.lease = op.lease
        elif type(op) is etcd.Txn:
            _fill_txn(message.request_txn, op)
        elif type(op) is etcd.Get:
            message = message.request_range
            message.key, message.range_end = op.key, op.end
            message.keys_only, message.limit = op.keys_only, op.limit
            message.revision = op.revision
        else:
            message = message.request_delete_range
            message.key, message.range_end = op.key, op.end


def key_value(message: kv_pb2.KeyValue) -> etcd.KeyValue:
    """A key with its value and revisions, from etcd's message."""
    return etcd.KeyValue(
        message.key, message.value, message.mod_revision, message.create_revision, message.lease
    )


def txn_result(response: Any, revision: int) -> etcd.TxnResult:
    """``revision`` is that of the outermost header; nested responses have none of their own."""
    results: list[etcd.OpResult] = []
    counts: list[int] = []
    for item in response.responses:
        kind, count = item.WhichOneof("response"), 0
        if kind == "response_put":
            results.append(None)
        elif kind == "response_txn":
            results.append(txn_result(item.response_txn, revision))
        elif kind == "response_range":
            page = item.response_range
            count = page.count
            results.append([key_value(kv) for kv in page.kvs])
        else:
            results.append(int(item.response_delete_range.deleted))
        counts.append(count)
    return etcd.TxnResult(response.succeeded, revision, tuple(results), tuple(counts))


def is_transient(error: Failure) -> bool:
    """Whether another member, or the same one a moment later, may answer."""
    return isinstance(error, TimeoutError) or error.code() in _TRANSIENT


def was_never_sent(error: Failure) -> bool:
    """Whether the request certainly never reached etcd."""
    if isinstance(error, TimeoutError):
        return True
    return error.code() is grpc.StatusCode.UNAVAILABLE and _says(error, _NEVER_SENT)


def says_token_is_old(error: Failure) -> bool:
    """Whether a new authentication may help."""
    return not isinstance(error, TimeoutError) and _says(error, _OLD_TOKEN)


def translated(error: Failure, *, in_doubt: bool, endpoint: str) -> errors.DistopError:
    """The failure as an error of distop.

    Parameters
    ----------
    in_doubt:
        Whether it is the failure of a write that etcd may have received.
    """
    if isinstance(error, TimeoutError):
        code, text = grpc.StatusCode.DEADLINE_EXCEEDED, "no answer in time"
    else:
        code, text = error.code(), error.details() or ""
    where = {"endpoint": endpoint}
    if "space exceeded" in text:
        return errors.EtcdOutOfSpace(details=where)
    if "compacted" in text:
        return errors.Compacted(text, details=where)
    if "lease not found" in text:
        return errors.LeaseLost(text, details=where)
    if any(refusal in text for refusal in _REFUSALS):
        return errors.EtcdDenied(f"etcd at {endpoint} refuses this user: {text}", details=where)
    if "future revision" in text:
        return errors.FutureRevision(text, details=where)
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        return errors.InvalidArgument(f"etcd refuses the request: {text}", details=where)
    # A too large answer is refused on this side, after etcd has executed the request.
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and not (in_doubt and "Received message larger" in text):
        return errors.Busy(f"etcd at {endpoint}: {text}", details=where)
    reason = text.rpartition(": ")[2]  # gRPC begins with its addresses, etcd with its own name
    if in_doubt:
        return errors.OutcomeUnknown(f"etcd at {endpoint} gave no answer to a write: {reason}", details=where)
    return errors.EtcdUnavailable(f"etcd at {endpoint} does not answer: {reason}", details=where)


def _says(error: grpc.aio.AioRpcError, texts: tuple[str, ...]) -> bool:
    details = error.details() or ""
    return any(text in details for text in texts)


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

    async def read_txn(self, reading: etcd.Txn, *, metadata: Any, timeout: float) -> etcd.TxnResult:
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
        sent = reading if self._reads_in_txns else etcd.Txn(then=(reading,))
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
    """A channel for a thread without an event loop; it connects when it is first used."""
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
    bundle = next((path for path in bundles if path and Path(path).is_file()), None)
    return _content(bundle) if bundle else None


def _content(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:  # perhaps it is being replaced
        raise errors.EtcdUnavailable(f"a certificate, key or CA for etcd cannot be read: {error}") from None


def authenticate_request(config: EtcdConfig) -> rpc_pb2.AuthenticateRequest:
    """Requests a token from etcd."""
    return rpc_pb2.AuthenticateRequest(name=config.user, password=Secret(config.password).reveal())


class MemberConnections:
    """Connections to the members, each made when it is needed; belongs to one event loop."""

    def __init__(self, config: EtcdConfig) -> None:
        self._config = config
        self._stubs: dict[str, MemberStubs] = {}
        self._current = 0
        self._closed = False
        self._token: str | None = None
        self._authenticating = asyncio.Lock()
        self.outage = Outage()

    async def close(self) -> None:
        """Close all connections; calls in progress fail, and so do later ones."""
        self._closed = True
        existing, self._stubs = list(self._stubs.values()), {}
        for stubs in existing:
            await stubs.channel.close(None)

    @property
    def endpoint(self) -> str:
        """The endpoint of the present member."""
        return self._config.endpoints[self._current]

    def leave(self, endpoint: str) -> None:
        """Use another member from now on, unless ``endpoint`` has been left already.

        Many calls fail together when a member dies; together they move on by one.
        """
        if endpoint == self.endpoint:
            self._current = (self._current + 1) % len(self._config.endpoints)

    def forget_token(self) -> None:
        """Authenticate again before the next call: a restarted etcd does not know earlier tokens."""
        self._token = None

    def stubs(self) -> MemberStubs:
        """The services of the present member."""
        if self._closed:
            raise errors.EtcdUnavailable("the etcd client is closed")
        stubs = self._stubs.get(self.endpoint)
        if stubs is None:
            stubs = self._stubs[self.endpoint] = MemberStubs(open_channel(self._config, self.endpoint))
        return stubs

    async def metadata(self, timeout_s: float) -> list[tuple[str, str]] | None:
        """Metadata of a call: the user's token, if there is one."""
        if not self._config.user:
            return None
        if self._token is None:
            async with asyncio.timeout(timeout_s), self._authenticating:
                # One call authenticates for all that wait: it is expensive for etcd.
                if self._token is None:
                    self._token = await self._authenticated()
        return [("token", self._token)]

    async def _authenticated(self) -> str:
        request = authenticate_request(self._config)
        return str((await self.stubs().auth.Authenticate(request, timeout=self._config.timeout_s)).token)

    async def call(
        self,
        once: Callable[[MemberStubs, Any, float], Awaitable[Any]],
        *,
        writes: bool,
        timeout_s: float | None,
    ) -> Any:
        """Try the members in turn until the deadline; a write only if it was certainly not sent.

        Parameters
        ----------
        once:
            Makes the call, with a member's services, metadata, and seconds.
        """
        sent_at = time.monotonic()
        try:
            reply = await self._call(once, writes=writes, timeout_s=timeout_s)
        except (errors.EtcdUnavailable, errors.OutcomeUnknown) as error:
            if type(error) in (errors.EtcdUnavailable, errors.OutcomeUnknown) and not self._closed:
                self.outage.failed(error.message, sent_at=sent_at)
            raise
        self.outage.answered()
        return reply

    async def _call(
        self,
        once: Callable[[MemberStubs, Any, float], Awaitable[Any]],
        *,
        writes: bool,
        timeout_s: float | None,
    ) -> Any:
        loop = asyncio.get_running_loop()
        end = min(loop.time() + (timeout_s or self._config.timeout_s), deadline())
        reauthenticated, pause, untried = False, 0.02, len(self._config.endpoints)
        while True:
            endpoint, left = self.endpoint, end - loop.time()
            # A silent member gets a share of the time, so that the others get theirs.
            share = max(left if writes else left / max(untried, 1), 0.001)
            sent = False
            try:
                metadata = await self.metadata(share)
                sent = True
                return await once(self.stubs(), metadata, share)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling() or not self._closed:
                    raise
                # The task was not cancelled: gRPC cancels the calls of a channel that is closed.
                failure = errors.OutcomeUnknown if writes and sent else errors.EtcdUnavailable
                raise failure("the etcd client was closed") from None
            except (grpc.aio.AioRpcError, TimeoutError) as error:
                if self._config.user and not reauthenticated and says_token_is_old(error):
                    reauthenticated, self._token = True, None
                    continue
                sent = sent and not was_never_sent(error)
                transient = is_transient(error)
                if transient:
                    self.leave(endpoint)
                out_of_time = loop.time() + pause >= end
                if not transient or out_of_time or (writes and sent):
                    raise translated(error, in_doubt=writes and sent, endpoint=endpoint) from error
                untried -= 1
            await asyncio.sleep(pause)
            pause = min(pause * 2, 0.5)
