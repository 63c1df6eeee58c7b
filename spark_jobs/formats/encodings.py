"""Text in other encodings as UTF-8, while it is read.

What an encoding does not have becomes bytes that are not UTF-8: the rows with them are bad, and no others.
"""

from __future__ import annotations

import codecs
import io
from typing import BinaryIO, cast

CHUNK_BYTES = 1 << 20


def known_encoding(name: str) -> str:
    """The name that Python has for an encoding; empty for UTF-8, which needs no other treatment.

    Raises
    ------
    ValueError
        There is no such encoding of text.
    """
    try:
        "".encode(name)
        found = codecs.lookup(name).name
    except (LookupError, ValueError):
        raise ValueError(f"{name!r} is no encoding of text that Python knows") from None
    return "" if found in ("utf-8", "utf-8-sig", "ascii") else found


def utf_8(text: bytes, encoding: str) -> bytes:
    """The same text."""
    return text.decode(encoding, "surrogateescape").encode("utf-8", "surrogateescape")


def as_utf_8(source: BinaryIO, encoding: str) -> BinaryIO:
    """The same text as a stream; damaged text of UTF-16 or UTF-32 raises ``UnicodeDecodeError``."""
    return cast(BinaryIO, io.BufferedReader(_Recoded(source, encoding), CHUNK_BYTES))


class _Recoded(io.RawIOBase):
    def __init__(self, source: BinaryIO, encoding: str) -> None:
        self._source = source
        self._decoder = codecs.getincrementaldecoder(encoding)("surrogateescape")
        self._rest = memoryview(b"")
        self._ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, target: memoryview) -> int:  # type: ignore[override]
        while not self._rest and not self._ended:
            data = self._source.read(CHUNK_BYTES)
            self._ended = not data
            text = self._decoder.decode(data, final=self._ended)
            self._rest = memoryview(text.encode("utf-8", "surrogateescape"))
        size = min(len(target), len(self._rest))
        target[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size

    def close(self) -> None:
        self._source.close()
        super().close()
