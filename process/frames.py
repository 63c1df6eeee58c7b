"""Messages between a process and its workers: pickles, after their kind and length, over a socket."""

from __future__ import annotations

import pickle
import select
import socket
import struct
import threading
from typing import Any

CALL, RESULT, ERROR, ALIVE, LOG = b"C", b"R", b"E", b"A", b"L"

_HEAD = struct.Struct("=cQ")
_MAX_FILES = 4
_PART = 1 << 20


class Link:
    """One end of the socket. Any thread may send; one thread at a time receives."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._sending = threading.Lock()

    def send(self, kind: bytes, value: Any = None, *files: int) -> None:
        """Raises ``OSError`` when the other end is closed."""
        body = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
        with self._sending:
            socket.send_fds(self._end, [_HEAD.pack(kind, len(body))], files)
            self._end.sendall(body)

    def is_readable(self, limit_s: float | None) -> bool:
        """Whether there is a message, or the end of all messages, within a time; ``None``: waits for it."""
        poll = select.poll()
        poll.register(self._end, select.POLLIN)
        return bool(poll.poll(None if limit_s is None else max(limit_s, 0.0) * 1000.0))

    def is_at_end(self) -> bool:
        """Whether the other end is closed, and everything that it sent was received."""
        try:
            return not self._end.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def receive(self) -> tuple[bytes, Any, list[int]] | None:
        """The next message: its kind, its value, and the files that came with it; ``None`` at their end.

        Raises whatever unpickling raises; the message after it can be received all the same.
        """
        try:
            head, files, _, _ = socket.recv_fds(self._end, _HEAD.size, _MAX_FILES)
        except ConnectionError:  # the other end was killed
            return None
        if head and len(head) < _HEAD.size:
            head += self._end.recv(_HEAD.size - len(head), socket.MSG_WAITALL)
        if len(head) < _HEAD.size:
            return None
        kind, length = _HEAD.unpack(head)
        body = bytearray(length)
        rest = memoryview(body)
        while rest:
            count = self._end.recv_into(rest[:_PART])
            if not count:
                return None
            rest = rest[count:]
        return kind, pickle.loads(body), files

    def shut(self) -> None:
        """Let both ends find the end of all messages, also a thread that waits for one here."""
        try:
            self._end.shutdown(socket.SHUT_RDWR)
        except OSError:  # the other end has gone
            return

    def close(self) -> None:
        self._end.close()
