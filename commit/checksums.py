"""A checksum of what is written, made while it is written."""

from __future__ import annotations

import hashlib
from typing import Any


class Checksummed:
    """A file being written whose content is digested on the way (SHA-256, hexadecimal)."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._digest = hashlib.sha256()
        self._length = 0

    @property
    def closed(self) -> bool:
        return bool(self._stream.closed)

    def write(self, content: Any) -> int:
        self._digest.update(content)
        self._stream.write(content)
        size = memoryview(content).nbytes
        self._length += size
        return size

    def tell(self) -> int:
        return self._length

    def flush(self) -> None:
        self._stream.flush()

    def close(self) -> None:
        self._stream.close()

    def checksum(self) -> str:
        """Of everything written so far."""
        return self._digest.hexdigest()
