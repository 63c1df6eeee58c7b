"""Bloom filters, as Parquet has them: split into blocks of 256 bits, of which a key sets eight in one.

A block is eight words of 32 bits. The upper half of a key's hash chooses the block, the lower half one bit
in each word. Source: the Parquet format's description of split block Bloom filters (BloomFilter.md). The
number of blocks need not be a power of two.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np

Hashes: TypeAlias = np.ndarray[Any, np.dtype[np.uint64]]

BLOCK_BYTES = 32

BITS_PER_KEY = 10.8
"""Takes false positives to about 1 %: blocks are not filled evenly, so a little more than 9.6 is needed."""

MAX_BYTES = 16 << 20
"""A filter that would be larger is left out: then every key may be there."""

_SALT = np.array(
    [0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31],
    np.uint32,
)


def blocks_for(keys: int, largest: int = MAX_BYTES) -> int:
    """Blocks of a filter for so many distinct keys; 0: none is made, since it would take more bytes than
    that."""
    blocks = max(1, math.ceil(keys * BITS_PER_KEY / (8 * BLOCK_BYTES)))
    return blocks if blocks * BLOCK_BYTES <= largest else 0


class Bloom:
    """A set of keys that may say yes to one that is not in it, and never no to one that is."""

    def __init__(self, blocks: int, words: bytes | memoryview | None = None) -> None:
        self.blocks = blocks
        if words is None:
            self._words = np.zeros((blocks, 8), np.uint32)
        else:
            self._words = np.frombuffer(words, "<u4").reshape(blocks, 8)

    def add(self, hashes: Hashes) -> None:
        """Put keys in, by their hashes."""
        if self.blocks:
            block, bits = self._places(hashes)
            np.bitwise_or.at(self._words, (block[:, None], np.arange(8)[None, :]), bits)

    def may_hold(self, hashes: Hashes) -> bool:
        """Whether any of these keys may be in it."""
        if not self.blocks:
            return True
        block, bits = self._places(hashes)
        return bool(np.any(np.all(self._words[block] & bits == bits, axis=1)))

    def _places(self, hashes: Hashes) -> tuple[Any, Any]:
        block = ((hashes >> np.uint64(32)) * np.uint64(self.blocks)) >> np.uint64(32)
        low = hashes.astype(np.uint32)  # the lower half
        with np.errstate(over="ignore"):
            bits = np.uint32(1) << ((low[:, None] * _SALT[None, :]) >> np.uint32(27))
        return block.astype(np.int64), bits

    @staticmethod
    def block_of(blocks: int, hash: int) -> int:
        """The block that a key is in, if there are so many."""
        return ((hash >> 32) * blocks) >> 32

    def to_bytes(self) -> bytes:
        """Little-endian words, block after block."""
        return self._words.astype("<u4").tobytes()
