"""Integers that are what the texts say which they are made of.

Arrow's parser also knows hexadecimal ones: ``0x1F`` would be 31, and ``0xFFFFFFFFFFFFFFFF`` -1, which nothing
gives back. All others that it knows are decimal, and those are their texts.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_PIECE_BYTES = 1 << 18
"""What is looked at in one go: more would not stay in the processor's cache."""


def why_refused(texts: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> str:
    """Why an integer of a type is not the text, ``large_string``, that Arrow has made it of; empty if all
    are."""
    chunks = texts.chunks if isinstance(texts, pa.ChunkedArray) else [texts]
    for chunk in chunks:
        if _has_x(_characters(chunk)):
            hexadecimal = chunk.filter(pc.match_substring(chunk, "x", ignore_case=True))
            if len(hexadecimal):
                return f"invalid value {hexadecimal[0].as_py()!r} for {kind}"
    return ""


def may_be_hexadecimal(text: bytes, quote: bytes) -> bool:
    """Whether a text may hold a hexadecimal number.

    Parameters
    ----------
    quote:
        A sign that may be within a number; or empty.
    """
    if not _has_x(text):
        return False
    for start in range(0, len(text), _PIECE_BYTES):
        signs = np.frombuffer(text, np.uint8, min(_PIECE_BYTES + 2, len(text) - start), start)
        zeros, marks = signs == ord("0"), (signs | np.uint8(32)) == ord("x")
        if (zeros[:-1] & marks[1:]).any():
            return True
        if quote and (zeros[:-2] & (signs[1:-1] == ord(quote)) & marks[2:]).any():
            return True
    return False


def _has_x(text: bytes) -> bool:
    return b"x" in text or b"X" in text


def _characters(texts: pa.Array) -> bytes:
    """The bytes of all texts, one after the other."""
    _, offsets, characters = texts.buffers()
    if characters is None or not len(texts):
        return b""
    ends = np.frombuffer(offsets, np.int64)[texts.offset :]
    joined: bytes = characters[ends[0] : ends[len(texts)]].to_pybytes()
    return joined
