"""The Bloom filters of a part of an index: one for the whole part, and one for each of its data files.

The first tells most parts that have nothing to do with a key before anything else of them is read. The
others are for the day when the sorted keys cannot be read: they still tell most files that need not be
opened.

One file: a magic word, the number of data files, the blocks of the part's own filter; number and blocks of
each data file's; then the blocks, in that order.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from pyiceberg.io import FileIO

from distop.commit.index.bloom import BLOCK_BYTES, Bloom, Hashes, blocks_for
from distop.errors import CorruptRecord

LARGEST_OF_PART = 64 << 20
"""Of a part's own filter, in bytes."""

READ_WHOLE_BYTES = 1 << 20
"""A part's own filter is read, and kept in mind, up to this size; of larger ones single blocks are read."""

REMEMBERED_BYTES = 64 << 20
"""Filters of parts that this process keeps in mind."""

MAX_PROBES = 16
"""Keys whose blocks are read one by one; with more of them the sorted keys are read at once."""

_HEADER = struct.Struct("<8sII")
_ENTRY = struct.Struct("<II")
_MAGIC = b"DXBLOOM1"


@dataclass
class PartBlooms:
    """The filters of one part, in memory."""

    whole: Bloom
    files: dict[int, Bloom] = field(default_factory=dict)
    """By the number of the data file."""

    @classmethod
    def of(cls, distinct: Mapping[int, int]) -> PartBlooms:
        """Empty ones, for so many distinct keys of each data file."""
        whole = Bloom(blocks_for(sum(distinct.values()), LARGEST_OF_PART))
        return cls(whole, {file: Bloom(blocks_for(count)) for file, count in distinct.items()})


def write_blooms(io: FileIO, location: str, blooms: PartBlooms) -> int:
    """Write them beside the part's entries; the size of the file."""
    files = sorted(blooms.files.items())
    pieces = [_HEADER.pack(_MAGIC, len(files), blooms.whole.blocks)]
    pieces += [_ENTRY.pack(file, bloom.blocks) for file, bloom in files]
    head = b"".join(pieces)
    size = len(head)
    with io.new_output(location).create(overwrite=True) as stream:
        stream.write(head)
        for bloom in (blooms.whole, *(bloom for _, bloom in files)):
            content = bloom.to_bytes()
            stream.write(content)
            size += len(content)
    return size


def read_blooms(io: FileIO, location: str) -> PartBlooms:
    """Read all of them. Raises :class:`~distop.errors.CorruptRecord`, or what the file system raises."""
    with io.new_input(location).open() as stream:
        content = memoryview(stream.read())
    count, blocks = _header(bytes(content[: _HEADER.size]), location)
    try:
        sizes = [_ENTRY.unpack_from(content, _HEADER.size + i * _ENTRY.size) for i in range(count)]
        at = _HEADER.size + count * _ENTRY.size
        whole = Bloom(blocks, content[at : at + blocks * BLOCK_BYTES])
        at += blocks * BLOCK_BYTES
        found = PartBlooms(whole)
        for file, size in sizes:
            found.files[file] = Bloom(size, content[at : at + size * BLOCK_BYTES])
            at += size * BLOCK_BYTES
        return found
    except (struct.error, ValueError) as error:
        raise CorruptRecord(f"the Bloom filters in {location} are cut short") from error


def may_hold(io: FileIO, location: str, hashes: Hashes) -> bool:
    """Whether a part may hold any of some keys, as its own filter says.

    Raises as :func:`read_blooms`.
    """
    known = _remembered(location)
    if known is not None:
        return known.may_hold(hashes)
    with io.new_input(location).open() as stream:
        count, blocks = _header(stream.read(_HEADER.size), location)
        at = _HEADER.size + count * _ENTRY.size
        if not blocks:
            return True
        if blocks * BLOCK_BYTES > READ_WHOLE_BYTES:
            return len(hashes) > MAX_PROBES or _probe(stream, at, blocks, hashes, location)
        stream.seek(at)
        bloom = Bloom(blocks, _exactly(stream, blocks * BLOCK_BYTES, location))
    _remember(location, bloom)
    return bloom.may_hold(hashes)


def _probe(stream: Any, at: int, blocks: int, hashes: Hashes, location: str) -> bool:
    for place in range(len(hashes)):
        one = hashes[place : place + 1]
        stream.seek(at + Bloom.block_of(blocks, int(one[0])) * BLOCK_BYTES)
        # A filter of a single block has each key there.
        if Bloom(1, _exactly(stream, BLOCK_BYTES, location)).may_hold(one):
            return True
    return False


def _exactly(stream: Any, count: int, location: str) -> bytes:
    content: bytes = stream.read(count)
    if len(content) != count:
        raise CorruptRecord(f"the Bloom filters in {location} are cut short")
    return content


def _header(content: bytes, location: str) -> tuple[int, int]:
    if len(content) != _HEADER.size or not content.startswith(_MAGIC):
        raise CorruptRecord(f"{location} holds no Bloom filters")
    _, count, blocks = _HEADER.unpack(content)
    return count, blocks


# -- kept in mind: the files never change ------------------------------------------------------------

_known: OrderedDict[str, Bloom] = OrderedDict()
_lock = Lock()


def _remembered(location: str) -> Bloom | None:
    with _lock:
        if location in _known:
            _known.move_to_end(location)
        return _known.get(location)


def _remember(location: str, bloom: Bloom) -> None:
    with _lock:
        _known[location] = bloom
        while sum(each.blocks for each in _known.values()) * BLOCK_BYTES > REMEMBERED_BYTES:
            _known.popitem(last=False)


def forget() -> None:
    """Keep nothing in mind."""
    with _lock:
        _known.clear()
