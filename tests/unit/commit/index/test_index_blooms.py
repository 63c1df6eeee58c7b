"""Bloom filters of an index: never a wrong no, and few a wrong yes."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from pyiceberg.expressions.literals import literal
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    UUIDType,
)

from distop.commit.index import blooms as index_blooms
from distop.commit.index.bloom import Bloom, blocks_for
from distop.commit.index.blooms import PartBlooms, forget, may_hold, read_blooms, write_blooms
from distop.commit.index.keys import bounded, hashes, key_of
from distop.commit.layout.model import file_io
from distop.errors import CorruptRecord, InvalidArgument


@pytest.mark.parametrize("keys", [1, 50, 10_000])
def test_every_key_is_there_and_one_in_a_hundred_others_seems_to_be(keys: int) -> None:
    bloom = Bloom(blocks_for(keys))
    bloom.add(hashes(range(keys)))
    inside, outside = hashes(range(keys)), hashes(range(10**6, 10**6 + 20_000))
    assert all(bloom.may_hold(inside[n : n + 1]) for n in range(0, keys, max(1, keys // 500)))
    wrong = np.mean([bloom.may_hold(outside[n : n + 1]) for n in range(20_000)])
    assert wrong <= 0.0125
    again = Bloom(bloom.blocks, bloom.to_bytes())
    assert again.may_hold(inside[:1])


def test_a_filter_that_would_be_too_large_says_yes_to_everything() -> None:
    assert blocks_for(10**9) == 0
    bloom = Bloom(0)
    bloom.add(hashes([1]))
    assert bloom.may_hold(hashes([2]))
    assert bloom.to_bytes() == b""


def written(folder: Path) -> tuple[Any, str, int]:
    """Filters of two files: 0 to 4999, and 5000 to 5009."""
    io, location = file_io(f"file://{folder}"), f"file://{folder}/part.bloom"
    blooms = PartBlooms.of({0: 5000, 3: 10})
    for file, keys in ((0, range(5000)), (3, range(5000, 5010))):
        blooms.files[file].add(hashes(keys))
        blooms.whole.add(hashes(keys))
    return io, location, write_blooms(io, location, blooms)


@pytest.mark.parametrize("read_whole", [1 << 20, 0])
def test_a_part_tells_what_it_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_whole: int) -> None:
    """Read as a whole, or block by block."""
    monkeypatch.setattr(index_blooms, "READ_WHOLE_BYTES", read_whole)
    forget()
    io, location, size = written(tmp_path)
    assert size == (tmp_path / "part.bloom").stat().st_size
    for key in (0, 4999, 5009):
        assert may_hold(io, location, hashes([9**15, key]))
    assert sum(may_hold(io, location, hashes([key])) for key in range(10**6, 10**6 + 300)) < 20
    files = read_blooms(io, location).files
    assert [file for file, bloom in files.items() if bloom.may_hold(hashes([5003]))] == [3]


def test_damaged_filters_are_told(tmp_path: Path) -> None:
    io, location, _ = written(tmp_path)
    path = tmp_path / "part.bloom"
    whole = path.read_bytes()
    for content in (b"", b"x" * 200, whole[:50], whole[:-1]):
        path.write_bytes(content)
        forget()
        with pytest.raises(CorruptRecord):
            read_blooms(io, location)
    path.write_bytes(whole[:50])
    with pytest.raises(CorruptRecord):
        may_hold(io, location, hashes([1]))
    path.unlink()
    with pytest.raises(FileNotFoundError):
        may_hold(io, location, hashes([1]))


@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [
        (LongType(), 5, "5"),
        (LongType(), 5, literal(5)),
        (IntegerType(), 5, Decimal("5.0")),
        (DoubleType(), 0.0, "-0"),
        (FloatType(), 0.1, literal(0.1)),
        (DecimalType(9, 2), Decimal("1.5"), "1.50"),
        (DecimalType(9, 2), -2, literal(Decimal("-2.00"))),
        (DateType(), "2013-02-01", literal("2013-02-01")),
        (TimestampType(), "2013-02-01T00:00:00", "2013-02-01T00:00:00.000000"),
        (StringType(), "x", literal("x")),
        (BinaryType(), b"\x01\xff", "01ff"),
        (UUIDType(), UUID(int=5), str(UUID(int=5))),
    ],
)
def test_a_value_has_one_key_however_it_is_written(kind: IcebergType, one: Any, other: Any) -> None:
    assert key_of("c", one, kind) == key_of("c", other, kind) is not None


def test_what_no_value_of_the_type_equals_has_no_key() -> None:
    assert key_of("c", 2**40, IntegerType()) is None
    assert key_of("c", 1.5, LongType()) is None
    assert key_of("c", "1.555", DecimalType(9, 2)) is None
    for value, kind in (("x", LongType()), ("x", BinaryType()), ("x", DateType()), ("x", DoubleType())):
        with pytest.raises(InvalidArgument, match="column 'c'"):
            key_of("c", value, kind)


def test_long_values_are_told_apart_by_a_digest() -> None:
    long = b"x" * 1000
    assert len(bounded(long)) == 64
    assert bounded(long) != bounded(long + b"y")
    assert bounded(b"x" * 64) == b"x" * 64
