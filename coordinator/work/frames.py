"""Messages between a coordinator and its worker processes: pickles, after their kind and length."""

from __future__ import annotations

import pickle
import struct
from typing import Any, BinaryIO

CALL, RESULT, ERROR, ALIVE, LOG, HELLO = b"C", b"R", b"E", b"A", b"L", b"H"

HEAD = struct.Struct("=cQ")


def framed(kind: bytes, value: Any = None) -> bytes:
    """An encoded message."""
    body = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    return HEAD.pack(kind, len(body)) + body


def receive(source: BinaryIO) -> tuple[bytes, Any] | None:
    """The next message of a buffered, blocking stream; ``None`` at its end."""
    head = source.read(HEAD.size)
    if len(head) < HEAD.size:
        return None
    kind, length = HEAD.unpack(head)
    body = source.read(length)
    return None if len(body) < length else (kind, pickle.loads(body))
