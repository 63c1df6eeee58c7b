"""Messages between a coordinator and its worker processes: pickles, after their kind and length."""

from __future__ import annotations

import pickle
import socket
import struct
from typing import Any

CALL, RESULT, ERROR, ALIVE, LOG, HELLO = b"C", b"R", b"E", b"A", b"L", b"H"

HEAD = struct.Struct("=cQ")


def framed(kind: bytes, value: Any = None) -> bytes:
    """An encoded message."""
    body = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    return HEAD.pack(kind, len(body)) + body


def receive(source: socket.socket) -> tuple[bytes, Any] | None:
    """The next message of a blocking socket; ``None`` at its end."""
    head = _exactly(source, HEAD.size)
    if head is None:
        return None
    kind, length = HEAD.unpack(head)
    body = _exactly(source, length)
    return None if body is None else (kind, pickle.loads(body))


def _exactly(source: socket.socket, count: int) -> bytes | None:
    data = bytearray()
    while len(data) < count:
        part = source.recv(min(count - len(data), 1 << 20))
        if not part:
            return None
        data += part
    return bytes(data)
