"""A TCP proxy that carries requests through and loses the replies from :meth:`LossyProxy.lose_replies` on."""

from __future__ import annotations

import socket
import threading
from types import TracebackType


class LossyProxy:
    """Forwards connections to ``target`` (``host:port``). After :meth:`lose_replies` the server still gets
    everything, and the client receives nothing any more until its connection is cut."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = [self._listener]
        self._losing = threading.Event()
        self.lost_bytes = 0
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def lose_replies(self) -> None:
        self._losing.set()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
            except OSError:
                return
            self._sockets += [client, server]
            threading.Thread(target=self._forward, args=(client, server, False), daemon=True).start()
            threading.Thread(target=self._forward, args=(server, client, True), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket, replies: bool) -> None:
        try:
            while data := source.recv(65536):
                if replies and self._losing.is_set():
                    self.lost_bytes += len(data)
                else:
                    sink.sendall(data)
        except OSError:
            pass
        finally:
            sink.close()

    def __enter__(self) -> LossyProxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for opened in self._sockets:
            opened.close()
