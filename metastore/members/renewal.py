"""Renews a lease in a separate thread, over separate connections, however busy its process is.

It uses gRPC without an event loop: all loops of a process share one queue of events, so a busy one would
delay this one. Only its thread opens and closes its channels: gRPC ends the process when one thread prepares
a call on a channel that another has closed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import grpc
from aetcd.rpc import rpc_pb2, rpc_pb2_grpc

from distop.metastore.etcd.channels import authenticate_request, open_blocking_channel
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.failures import says_token_is_old


class Renewal:
    """A thread that keeps one lease alive.

    Parameters
    ----------
    keep:
        Its main function: called once, may call :meth:`renew` and :meth:`pause` until that says to stop.
    """

    def __init__(self, config: EtcdConfig, lease: int, keep: Callable[[Renewal], None]) -> None:
        self._config, self._lease = config, lease
        self._stop = threading.Event()
        self._channel: grpc.Channel | None = None
        self._running: Any = None
        self._token = ""
        self._current = 0
        self._thread = threading.Thread(target=self._run, args=(keep,), name=f"lease-{lease:x}", daemon=True)
        self._thread.start()

    def _run(self, keep: Callable[[Renewal], None]) -> None:
        try:
            keep(self)
        finally:
            self._leave()

    def pause(self, seconds: float) -> bool:
        """Wait for this long, without a connection if that is long; return whether to continue."""
        if seconds > _IDLE_S:
            self._leave()
        return not self._stop.wait(max(0.0, seconds))

    def renew(self, timeout_s: float) -> int:
        """Seconds that the lease lives from now on; 0 if it has expired.

        Raises ``grpc.RpcError`` when the member did not answer; the next call goes to the next member.
        """
        share = timeout_s / len(self._config.endpoints)
        try:
            if self._channel is None:
                endpoint = self._config.endpoints[self._current]
                self._channel = open_blocking_channel(self._config, endpoint)
            request = iter([rpc_pb2.LeaseKeepAliveRequest(ID=self._lease)])
            stub = rpc_pb2_grpc.LeaseStub(self._channel)
            call = self._begun(stub.LeaseKeepAlive(request, metadata=self._metadata(share), timeout=share))
            try:
                return int(next(call).TTL)
            finally:
                call.cancel()
        except StopIteration:
            return 0
        except grpc.RpcError as error:
            failure: Any = error  # it is also the call, which grpc.RpcError does not show
            if says_token_is_old(failure):
                self._token = ""
            else:
                self._leave()
                self._current = (self._current + 1) % len(self._config.endpoints)
            raise
        finally:
            self._running = None  # a call that outlives Python's shutdown can hang it

    def _metadata(self, timeout_s: float) -> list[tuple[str, str]] | None:
        if not self._config.user:
            return None
        if not self._token:
            stub = rpc_pb2_grpc.AuthStub(self._channel)
            request = authenticate_request(self._config)
            call = self._begun(stub.Authenticate.future(request, timeout=timeout_s))
            if call.code() is not grpc.StatusCode.OK:
                raise call
            self._token = str(call.result().token)
        return [("token", self._token)]

    def _begun(self, call: Any) -> Any:
        """The call, which :meth:`close` cancels; or this object, if it is already closed."""
        self._running = call
        if self._stop.is_set():
            call.cancel()
        return call

    def _leave(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def close(self) -> None:
        """Stop; a renewal in progress is cancelled."""
        self._stop.set()
        if (call := self._running) is not None:
            call.cancel()
        if self._thread is not threading.current_thread():
            self._thread.join(_CLOSING_S)


_IDLE_S = 60.0
"""Longest pause during which its connection stays open, in seconds."""

_CLOSING_S = 2.0
"""Longest wait for the thread to end."""
