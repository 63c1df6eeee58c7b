"""Messages between a process and its workers: pickles, after their kind and length, over a socket."""

from __future__ import annotations

import io
import pickle
import select
import socket
import struct
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")

CALL, RESULT, ERROR, ALIVE, LOG = b"C", b"R", b"E", b"A", b"L"

SMALL = 1 << 16
"""Bytes of a message that an event loop may write, read and copy by itself."""

_HEAD = struct.Struct("=cQ")
_MAX_FILES = 4
_PART = 1 << 20

Message = tuple[bytes, Any, list[int]]
"""Its kind, its value, and the files that came with it."""


class Link:
    """One end of the socket. Any thread may send; one thread at a time receives."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        end.setblocking(False)
        self._sending = threading.Lock()

    def fileno(self) -> int:
        return self._end.fileno()

    def send(self, kind: bytes, value: Any = None, *files: int) -> None:
        """Raises ``OSError`` when the other end is closed."""
        body = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
        with self._sending:
            self._send(_HEAD.pack(kind, len(body)), body, files)

    def send_now(self, kind: bytes, value: Any) -> bool:
        """Send a small message without waiting, or nothing: whether it was sent. Raises as :meth:`send`."""
        try:
            pickle.dump(value, body := _Small(), protocol=pickle.HIGHEST_PROTOCOL)
        except _TooLarge:
            return False
        with self._sending:
            if not self._poll(select.POLLOUT, 0):
                return False
            # What is free has room for a small message.
            self._send(_HEAD.pack(kind, body.tell()), body.getvalue(), ())
        return True

    def _send(self, head: bytes, body: bytes, files: tuple[int, ...]) -> None:
        # Together, so that the other end finds all of a small message at once.
        sent = self._done(select.POLLOUT, partial(socket.send_fds, self._end, [head, body], files))
        for part in (head, body):
            rest = memoryview(part)[sent:]
            sent = max(sent - len(part), 0)
            while rest:
                rest = rest[self._done(select.POLLOUT, partial(self._end.send, rest)) :]

    def is_readable(self, limit_s: float | None) -> bool:
        """Whether there is a message, or the end of all messages, within a time; ``None``: waits for it."""
        return self._poll(select.POLLIN, limit_s)

    def is_at_end(self) -> bool:
        """Whether the other end is closed, and everything that it sent was received."""
        try:
            return not self._end.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def receive(self) -> Message | None:
        """The next message; ``None`` at their end. Waits for all of it.

        Raises whatever unpickling raises; the message after it can be received all the same.
        """
        try:
            begin = partial(socket.recv_fds, self._end, _HEAD.size, _MAX_FILES)
            head, files, _, _ = self._done(select.POLLIN, begin)
            while head and len(head) < _HEAD.size:
                more = self._done(select.POLLIN, partial(self._end.recv, _HEAD.size - len(head)))
                head = head + more if more else b""
            if not head:
                return None
            kind, length = _HEAD.unpack(head)
            body = bytearray(length)
            rest = memoryview(body)
            while rest:
                count = self._done(select.POLLIN, partial(self._end.recv_into, rest[:_PART]))
                if not count:
                    return None
                rest = rest[count:]
        except ConnectionError:  # the other end was killed
            return None
        return kind, pickle.loads(body), files

    def receive_now(self) -> Message | None:
        """Receive a message without waiting; raises ``BlockingIOError`` if a small one is not all there."""
        try:
            there = self._end.recv(_HEAD.size + SMALL, socket.MSG_PEEK)
        except ConnectionError:
            return None
        if there and (len(there) < _HEAD.size or len(there) < _HEAD.size + _HEAD.unpack_from(there)[1]):
            raise BlockingIOError
        return self.receive()

    def _done(self, event: int, attempt: Callable[[], T]) -> T:
        while True:
            try:
                return attempt()
            except BlockingIOError:
                self._poll(event, None)

    def _poll(self, event: int, limit_s: float | None) -> bool:
        poll = select.poll()
        poll.register(self._end, event)
        return bool(poll.poll(None if limit_s is None else max(limit_s, 0.0) * 1000.0))

    def shut(self) -> None:
        """Let both ends find the end of all messages, also a thread that waits for one here."""
        try:
            self._end.shutdown(socket.SHUT_RDWR)
        except OSError:  # the other end has gone
            return

    def close(self) -> None:
        self._end.close()


class _TooLarge(Exception):
    pass


class _Small(io.BytesIO):
    """Refuses what is larger than a small message: its pickling ends there."""

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > SMALL:
            raise _TooLarge
        return super().write(data)
